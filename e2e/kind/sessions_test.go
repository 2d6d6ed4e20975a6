package kind

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a volume with several sessions", func() {
	It("is used over all of them, and outlives its owner", func(ctx context.Context) {
		const class = "e2e-sessions"
		inSync(ctx)
		DeferCleanup(func(ctx context.Context) { inSync(ctx) }, NodeTimeout(6*time.Minute))
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "delete", "storageclass", class, "--ignore-not-found") }, NodeTimeout(time.Minute))
		apply(ctx, namespace, fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.gemel.storage
parameters:
  cluster: %s
  sessions: "3"
  preferredNode: a
  csi.storage.k8s.io/fstype: xfs
`, class, cluster))
		ns := newNamespace(ctx)
		claimOf(ctx, ns, "data", class, "320Mi", "Filesystem", "")
		load(ctx, ns, "load", "data", bystander(ctx), 120)
		volume := lunOf(ctx, ns, "data")
		Expect(field(ctx, "logicalunit", volume, "", "{.spec.sessions}")).To(Equal("3"))

		By("counting what the nodes see of the worker")
		iqn := field(ctx, "logicalunit", volume, "", "{.status.hosts[0].iqn}")
		Eventually(func() string {
			return kubectl(ctx, "get", "host", "-o", fmt.Sprintf(`jsonpath={.items[?(@.spec.iqn=="%s")].status.targets[*].nodes[*].sessions}`, iqn))
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(MatchRegexp(`^([3-9]|\d\d+) ([3-9]|\d\d+)`))

		By("killing the owner")
		killTarget(ctx, targetWorker(ctx, "a"), "a")
		GinkgoWriter.Printf("owner killed: longest operation %.0f ms\n", finish(ctx, ns, "load", 500))
		deletePod(ctx, ns, "load")
	}, NodeTimeout(10*time.Minute))
})
