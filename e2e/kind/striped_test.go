package kind

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// legsOf a striped volume, in their order, with fields of each.
func legsOf(ctx context.Context, volume, fields string) []string {
	GinkgoHelper()
	return strings.Split(strings.TrimSpace(kubectl(ctx, "get", "logicalunit", "-l", "gemel.storage/striped="+volume, "--sort-by={.spec.leg.number}",
		"-o", fmt.Sprintf(`jsonpath={range .items[*]}%s{"\n"}{end}`, fields))), "\n")
}

var _ = Describe("a striped volume", func() {
	It("is spread over both nodes, outlives an owner, grows, and goes with all of its LUNs", func(ctx context.Context) {
		const class = "e2e-striped"
		inSync(ctx)
		DeferCleanup(func(ctx context.Context) { inSync(ctx) }, NodeTimeout(6*time.Minute))
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "delete", "storageclass", class, "--ignore-not-found") }, NodeTimeout(time.Minute))
		apply(ctx, namespace, fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.gemel.storage
allowVolumeExpansion: true
parameters:
  cluster: %s
  luns: "4"
  csi.storage.k8s.io/fstype: xfs
`, class, cluster))
		ns := newNamespace(ctx)
		claimOf(ctx, ns, "data", class, "402Mi", "Filesystem", "")
		load(ctx, ns, "load", "data", bystander(ctx), 30)
		volume := lunOf(ctx, ns, "data")

		By("seeing where its LUNs are")
		homes := legsOf(ctx, volume, "{.status.preferredNode}")
		slices.Sort(homes)
		Expect(homes).To(Equal([]string{"a", "a", "b", "b"}))
		Expect(legsOf(ctx, volume, "{.status.size}")).To(HaveEach("101Mi"))
		Expect(field(ctx, "logicalunit", volume, "", "{.status.size}")).To(Equal("404Mi"))
		Expect(legsOf(ctx, volume, "{.status.hosts[*].iqn}")).To(HaveEach(Not(BeEmpty())))

		By("killing the owner of two of them")
		killTarget(ctx, targetWorker(ctx, "a"), "a")
		GinkgoWriter.Printf("owner killed: longest operation %.0f ms\n", finish(ctx, ns, "load", 500))

		By("growing it while it is in use")
		pod(ctx, ns, "app", "data", "", "sleep infinity", false)
		running(ctx, ns, "app")
		inPod(ctx, ns, "app", "head -c 100M /dev/urandom > /data/file && sha256sum < /data/file > /data/sum && sync")
		kubectl(ctx, "patch", "pvc", "data", "-n", ns, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"800Mi"}}}}`)
		Eventually(func() string { return field(ctx, "pvc", "data", ns, "{.status.capacity.storage}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("800Mi"))
		Expect(inPod(ctx, ns, "app", "test $(df --output=size -k /data | tail -1) -gt 700000 && echo grown")).To(Equal("grown"))

		By("reading it on another worker")
		deletePod(ctx, ns, "app")
		pod(ctx, ns, "app", "data", targetWorker(ctx, "b"), "sleep infinity", false)
		running(ctx, ns, "app")
		Expect(inPod(ctx, ns, "app", "sha256sum < /data/file | diff - /data/sum && echo same")).To(Equal("same"))

		By("deleting it")
		deletePod(ctx, ns, "app")
		deletePod(ctx, ns, "load")
		kubectl(ctx, "delete", "pvc", "data", "-n", ns, "--wait=true", "--timeout=120s")
		Eventually(func() string {
			return kubectl(ctx, "get", "logicalunit", "-o", "name", "-l", "gemel.storage/striped="+volume) + kubectl(ctx, "get", "logicalunit", volume, "-o", "name", "--ignore-not-found")
		}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeEmpty())
		Expect(orphans(ctx)).To(BeEmpty())
	}, NodeTimeout(12*time.Minute))
})
