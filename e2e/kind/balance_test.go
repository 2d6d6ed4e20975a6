package kind

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A cluster of its own, whose nodes are thought to have a fraction of a CPU: what a small machine
// can bear is then much.
const (
	hotCluster = "hot"
	hotPair    = "hot-p0"
	hotClass   = "e2e-hot"
	hotDisks   = "e2e-hot-disks"
	hotDir     = "/var/lib/gemel-backing/hot-e2e"
)

func hotUp(ctx context.Context) {
	GinkgoHelper()
	for _, w := range workers(ctx) {
		on(ctx, w, "mkdir -p "+hotDir)
	}
	localVolumes(ctx, "hot", hotDisks, hotDir)
	apply(ctx, namespace, fmt.Sprintf(`apiVersion: gemel.storage/v1alpha1
kind: StorageCluster
metadata: {name: %[1]s}
spec:
  pairs: 1
  lease: 2s # the machine may be busy, and a failure would begin the five minutes again
  balancing: {cpus: 100m}
  pools:
  - {name: main, storageClassName: %[2]s, size: 1Gi}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %[3]s}
provisioner: csi.gemel.storage
volumeBindingMode: WaitForFirstConsumer
parameters:
  cluster: %[1]s
`, hotCluster, hotDisks, hotClass))
	Eventually(func() string { return condition(ctx, "targetpair", hotPair, "", "InSync") }).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("True"))
}

func forgetHot(ctx context.Context) {
	GinkgoHelper()
	forgetCluster(ctx, hotCluster, "hot", "rm -rf "+hotDir, hotClass, hotDisks)
}

var _ = Describe("two busy LUNs of one node", func() {
	It("part company, and the reason is shown", func(ctx context.Context) {
		DeferCleanup(forgetHot, NodeTimeout(8*time.Minute))
		hotUp(ctx)
		ns := newNamespace(ctx)
		// Both pods are on the worker of node a, which becomes the home of both volumes.
		worker := field(ctx, "targetpair", hotPair, "", `{.spec.nodes[?(@.name=="a")].worker}`)
		names := []string{"one", "two"}
		for _, name := range names {
			claimOf(ctx, ns, name, hotClass, "64Mi", "Block", "")
			pod(ctx, ns, name, name, worker, `dd if=/dev/urandom of=/dev/data bs=1M count=64 oflag=direct 2>/dev/null
exec fio --name=hot --filename=/dev/data --size=64m --direct=1 --ioengine=libaio --iodepth=1 --rw=randread --bs=4k --rate_iops=300 --time_based --runtime=3600 --randrepeat=0`, true)
		}
		lun := map[string]string{}
		for _, name := range names {
			running(ctx, ns, name)
			lun[name] = lunOf(ctx, ns, name)
			Expect(field(ctx, "logicalunit", lun[name], "", "{.spec.placement.home}")).To(Equal("a"))
		}
		start := time.Now()
		// Five minutes after the last change of the pair; a starved machine may cause one.
		var move v1alpha1.OwnershipMove
		Eventually(func() bool {
			for _, m := range movesOf(ctx, hotPair) {
				if m.Reason == "Balance" {
					move = m
					return true
				}
			}
			return false
		}).WithContext(ctx).WithTimeout(16 * time.Minute).WithPolling(2 * time.Second).Should(BeTrue())
		results.Hot = &hot{Seconds: time.Since(start).Seconds(), Message: move.Message}
		GinkgoWriter.Printf("after %.0f s: %s\n", results.Hot.Seconds, move.Message)
		Expect(move.From + move.To).To(Equal("ab"))
		Expect(move.Message).To(MatchRegexp(`node a uses [0-9.]+ and node b [0-9.]+ of its (CPUs|disk of volume [-a-z0-9]+); this LUN is [0-9.]+ of that`))
		out, err := run(ctx, "", "kubectl", "gemel", "status")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`last move: .* from node a to node b .*Balance: node a uses`))

		By("checking that they stay apart, each at its home")
		owners := func() string {
			return field(ctx, "logicalunit", lun["one"], "", "{.status.owner}") + field(ctx, "logicalunit", lun["two"], "", "{.status.owner}")
		}
		Eventually(owners).WithContext(ctx).Should(BeElementOf("ab", "ba"))
		Consistently(owners).WithContext(ctx).WithTimeout(time.Minute).WithPolling(2 * time.Second).Should(BeElementOf("ab", "ba"))
		homes := field(ctx, "logicalunit", lun["one"], "", "{.status.preferredNode}") + field(ctx, "logicalunit", lun["two"], "", "{.status.preferredNode}")
		Expect(homes).To(Equal(owners()))
		for _, name := range names {
			Expect(phase(ctx, ns, name)).To(Equal("Running"), "fio ends when a command fails")
			Expect(strings.ToLower(kubectl(ctx, "logs", "-n", ns, name))).NotTo(ContainSubstring("error"))
		}
	}, NodeTimeout(28*time.Minute))
})
