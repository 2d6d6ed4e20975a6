package kind

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// A cluster of its own, because a pool is never taken away again: what a worker needs for it is
// made here and removed at the end. Its second volumes are in memory: they only have to be
// filesystems of their own.
const (
	poolsCluster = "pools"
	poolsPair    = "pools-p0"
	poolsDir     = "/var/lib/gemel-backing/pools-e2e"
	poolsFast    = "/var/lib/pools-e2e-fast"
)

// localVolumes are local volumes of one class, one on each worker in each of the folders. The label
// e2e names the spec that they are of.
func localVolumes(ctx context.Context, spec, class string, dirs ...string) {
	GinkgoHelper()
	manifest := fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`, class)
	for _, w := range workers(ctx) {
		for i, dir := range dirs {
			manifest += fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s-%[5]d, labels: {e2e: %[4]s}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: %[1]s
  local: {path: %[3]s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: kubernetes.io/hostname, operator: In, values: [%[2]s]}
`, class, w, dir, spec, i)
		}
	}
	apply(ctx, namespace, manifest)
}

// poolsStorageClass chooses a pool; none with an empty name.
func poolsStorageClass(ctx context.Context, name, pool string) {
	GinkgoHelper()
	chosen := ""
	if pool != "" {
		chosen = "pool: " + pool
	}
	apply(ctx, namespace, fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.gemel.storage
parameters:
  cluster: %s
  csi.storage.k8s.io/fstype: ext4
  %s
`, name, poolsCluster, chosen))
}

// deleteCluster deletes StorageClusters, which may take that long once it is accepted. It is
// refused as long as the status says that a pair holds a LUN, which it does for some seconds after
// the last one has gone.
func deleteCluster(ctx context.Context, limit time.Duration, which ...string) {
	GinkgoHelper()
	args := append([]string{"delete", "storagecluster", "--wait=true", fmt.Sprintf("--timeout=%.0fs", limit.Seconds())}, which...)
	Eventually(func() error {
		_, err := run(ctx, "", "kubectl", args...)
		return err
	}).WithContext(ctx).WithTimeout(limit + time.Minute).Should(Succeed())
}

// forgetCluster removes a cluster of a spec's own, in the order in which one thing lets go of the
// other: label is that of its volumes (e2e=LABEL), clean the command that removes their files on
// each worker.
func forgetCluster(ctx context.Context, cluster, label, clean string, classes ...string) {
	GinkgoHelper()
	deleteCluster(ctx, 3*time.Minute, cluster, "--ignore-not-found")
	kubectl(ctx, "delete", "pvc", "-n", namespace, "-l", "gemel.storage/cluster="+cluster, "--wait=true", "--timeout=120s")
	kubectl(ctx, "delete", "pv", "-l", "e2e="+label, "--wait=true", "--timeout=120s")
	kubectl(ctx, append([]string{"delete", "storageclass", "--ignore-not-found"}, classes...)...)
	for _, w := range workers(ctx) {
		on(ctx, w, clean)
	}
}

// forgetPools removes what the spec has made.
func forgetPools(ctx context.Context) {
	GinkgoHelper()
	forgetCluster(ctx, poolsCluster, "pools", fmt.Sprintf("umount %[2]s; rm -rf %[1]s %[2]s", poolsDir, poolsFast), "e2e-disks", "e2e-flash", "e2e-first", "e2e-fast")
}

var _ = Describe("a pool", func() {
	It("is added on a running cluster", func(ctx context.Context) {
		DeferCleanup(forgetPools, NodeTimeout(8*time.Minute))
		for _, w := range workers(ctx) {
			on(ctx, w, fmt.Sprintf("mkdir -p %[1]s %[2]s && mount -t tmpfs -o size=512m pools-e2e %[2]s", poolsDir, poolsFast))
		}
		localVolumes(ctx, "pools", "e2e-disks", poolsDir)
		apply(ctx, namespace, fmt.Sprintf(`apiVersion: gemel.storage/v1alpha1
kind: StorageCluster
metadata: {name: %s}
spec:
  pairs: 1
  pools:
  - {name: main, storageClassName: e2e-disks, size: 1Gi}
`, poolsCluster))
		statusOf := func(kind, path string) func() string {
			name := map[string]string{"storagecluster": poolsCluster, "targetpair": poolsPair}[kind]
			return func() string { return field(ctx, kind, name, "", path) }
		}
		inStep := statusOf("targetpair", `{.status.conditions[?(@.type=="InSync")].status}`)
		Eventually(inStep).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("True"))

		ns := newNamespace(ctx)
		poolsStorageClass(ctx, "e2e-first", "")
		poolsStorageClass(ctx, "e2e-fast", "fast")
		claimOf(ctx, ns, "data", "e2e-first", "128Mi", "Filesystem", "")
		load(ctx, ns, "load", "data", "", 90)

		By("adding a pool for which no worker has a backing volume")
		kubectl(ctx, "patch", "storagecluster", poolsCluster, "--type=json", "-p",
			`[{"op":"add","path":"/spec/pools/-","value":{"name":"fast","storageClassName":"e2e-flash","size":"1Gi"}}]`)
		claimOf(ctx, ns, "early", "e2e-fast", "64Mi", "Block", "")
		Eventually(statusOf("targetpair", `{.status.conditions[?(@.type=="UpToDate")].message}`)).WithContext(ctx).Should(ContainSubstring("spec.pools[fast]"))
		Consistently(inStep).WithContext(ctx).WithTimeout(10 * time.Second).Should(Equal("True"))

		By("adding backing volumes for the pool")
		localVolumes(ctx, "pools", "e2e-flash", poolsFast)
		Eventually(statusOf("storagecluster", `{.status.pools[?(@.name=="fast")].free}`)).WithContext(ctx).WithTimeout(4 * time.Minute).ShouldNot(Or(BeEmpty(), Equal("0")))
		Eventually(statusOf("targetpair", `{.status.conditions[?(@.type=="UpToDate")].status}`)).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Equal("True"))
		for _, n := range []string{"a", "b"} {
			Expect(field(ctx, "pvc", "gemel-"+poolsPair+"-"+n+"-d0", namespace, "{.status.phase}")).To(Equal("Bound"))
			Expect(field(ctx, "pvc", "gemel-"+poolsPair+"-"+n+"-d0.fast", namespace, "{.status.phase}")).To(Equal("Bound"))
		}

		By("creating volumes in the pool")
		Eventually(func() string { return field(ctx, "pvc", "early", ns, "{.status.phase}") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("Bound"))
		Expect(field(ctx, "logicalunit", lunOf(ctx, ns, "early"), "", "{.spec.placement.pool}")).To(Equal("fast"))
		Expect(field(ctx, "logicalunit", lunOf(ctx, ns, "data"), "", "{.spec.placement.pool}")).To(Equal("main"))
		pod(ctx, ns, "block", "early", "", "echo kept | dd of=/dev/data bs=512 count=1 conv=sync,fsync && dd if=/dev/data bs=5 count=1 iflag=fullblock && sleep infinity", true)
		running(ctx, ns, "block")
		Eventually(func() string { return kubectl(ctx, "logs", "-n", ns, "block") }).WithContext(ctx).Should(ContainSubstring("kept"))

		By("checking that invalid requests are refused")
		_, err := run(ctx, "", "kubectl", "patch", "storagecluster", poolsCluster, "--type=json", "-p", `[{"op":"remove","path":"/spec/pools/1"}]`)
		Expect(err).To(MatchError(ContainSubstring("pools: a pool cannot be taken away or renamed")))
		poolsStorageClass(ctx, "e2e-none", "none")
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "delete", "storageclass", "e2e-none") }, NodeTimeout(time.Minute))
		claimOf(ctx, ns, "none", "e2e-none", "64Mi", "Block", "")
		Eventually(func() string { return kubectl(ctx, "get", "events", "-n", ns, "-o", "jsonpath={.items[*].message}") }).WithContext(ctx).
			Should(ContainSubstring("has no pool none; its pools are main, fast"))

		By("checking the load and the members of the pair")
		Expect(finish(ctx, ns, "load", 1000)).To(BeNumerically("<", 20_000))
		Expect(strings.Fields(kubectl(ctx, "get", "targetpair", poolsPair, "-o", "jsonpath={.status.members[*]}"))).To(HaveLen(2))
	}, NodeTimeout(20*time.Minute))
})
