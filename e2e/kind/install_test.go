package kind

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// The label is for runs that only install Gemel on the cluster, which the setup of the suite does.
var _ = Describe("the installation", Label("smoke", "install"), func() {
	It("has classes, and the driver on every worker", func(ctx context.Context) {
		Expect(field(ctx, "storageclass", "gemel", "", "{.provisioner}")).To(Equal("csi.gemel.storage"))
		Expect(field(ctx, "volumesnapshotclass", "gemel", "", "{.driver}")).To(Equal("csi.gemel.storage"))
		Expect(field(ctx, "volumegroupsnapshotclass", "gemel", "", "{.driver}")).To(Equal("csi.gemel.storage"))
		for _, w := range workers(ctx) {
			Eventually(func() []string {
				return strings.Fields(field(ctx, "csinode", w, "", "{.spec.drivers[*].name}"))
			}).WithContext(ctx).Should(ContainElement("csi.gemel.storage"), w)
		}
	}, NodeTimeout(3*time.Minute))
})
