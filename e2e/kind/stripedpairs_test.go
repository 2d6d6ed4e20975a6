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

// A cluster of its own with two pairs, for volumes over both.
const (
	wideCluster = "wide"
	wideClass   = "e2e-over-pairs"
	wideDisks   = "e2e-over-pairs-disks"
	wideDir     = "/var/lib/gemel-backing/wide-e2e"
)

func wideUp(ctx context.Context) {
	GinkgoHelper()
	dirs := []string{wideDir + "/0", wideDir + "/1"}
	for _, w := range workers(ctx) {
		on(ctx, w, "mkdir -p "+strings.Join(dirs, " "))
	}
	localVolumes(ctx, "wide", wideDisks, dirs...)
	apply(ctx, namespace, fmt.Sprintf(`apiVersion: gemel.storage/v1alpha1
kind: StorageCluster
metadata: {name: %[1]s}
spec:
  pairs: 2
  lease: 2s # the machine may be busy
  pools:
  - {name: main, storageClassName: %[2]s, size: 1Gi}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %[3]s}
provisioner: csi.gemel.storage
allowVolumeExpansion: true
parameters:
  cluster: %[1]s
  luns: "4"
  spread: pairs
  csi.storage.k8s.io/fstype: xfs
`, wideCluster, wideDisks, wideClass))
	wideInSync(ctx)
}

func wideInSync(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() string {
		return condition(ctx, "targetpair", wideCluster+"-p0", "", "InSync") + condition(ctx, "targetpair", wideCluster+"-p1", "", "InSync")
	}).WithContext(ctx).WithTimeout(6*time.Minute).Should(Equal("TrueTrue"), func() string {
		return kubectl(context.Background(), "get", "storagecluster,targetpair", "-o", "yaml")
	})
}

var _ = Describe("a striped volume over two pairs", func() {
	It("outlives an owner of each pair under load, grows, and goes with all of its LUNs", func(ctx context.Context) {
		inSync(ctx)
		DeferCleanup(func(ctx context.Context) {
			forgetCluster(ctx, wideCluster, "wide", "rm -rf "+wideDir, wideClass, wideDisks)
		}, NodeTimeout(6*time.Minute))
		wideUp(ctx)
		ns := newNamespace(ctx)
		claimOf(ctx, ns, "data", wideClass, "400Mi", "Filesystem", "")
		load(ctx, ns, "load", "data", bystander(ctx), 40)
		volume := lunOf(ctx, ns, "data")

		By("seeing where its LUNs are")
		at := legsOf(ctx, volume, "{.spec.placement.pair}/{.status.preferredNode}")
		slices.Sort(at)
		Expect(at).To(Equal([]string{"wide-p0/a", "wide-p0/b", "wide-p1/a", "wide-p1/b"}))
		Expect(field(ctx, "logicalunit", volume, "", "{.status.hosts[0].legs[*].targetIQN}")).To(ContainSubstring("wide.wide-p"))

		By("deleting the pod of an owner of each pair")
		for _, p := range []string{"p0", "p1"} {
			kubectl(ctx, "delete", "pod", "-n", namespace, "gemel-"+wideCluster+"-"+p+"-a-0", "--grace-period=0", "--force")
			wideInSync(ctx)
		}
		GinkgoWriter.Printf("owners of two pairs deleted: longest operation %.0f ms\n", finish(ctx, ns, "load", 500))

		By("growing it while it is in use")
		deletePod(ctx, ns, "load")
		pod(ctx, ns, "app", "data", "", "sleep infinity", false)
		running(ctx, ns, "app")
		inPod(ctx, ns, "app", "head -c 50M /dev/urandom > /data/file && sha256sum < /data/file > /data/sum && sync")
		kubectl(ctx, "patch", "pvc", "data", "-n", ns, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"600Mi"}}}}`)
		Eventually(func() string { return field(ctx, "pvc", "data", ns, "{.status.capacity.storage}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("600Mi"))

		By("deleting it")
		deletePod(ctx, ns, "app")
		kubectl(ctx, "delete", "pvc", "data", "-n", ns, "--wait=true", "--timeout=120s")
		Eventually(func() string {
			return kubectl(ctx, "get", "logicalunit", "-o", "name", "-l", "gemel.storage/striped="+volume) + kubectl(ctx, "get", "logicalunit", volume, "-o", "name", "--ignore-not-found")
		}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeEmpty())
	}, NodeTimeout(15*time.Minute))
})
