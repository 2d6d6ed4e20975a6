package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// movesOf the LUNs of a pair, as its status has them.
func movesOf(ctx context.Context, pair string) (moves []v1alpha1.OwnershipMove) {
	GinkgoHelper()
	if text := field(ctx, "targetpair", pair, "", "{.status.ownership.moves}"); text != "" {
		Expect(json.Unmarshal([]byte(text), &moves)).To(Succeed(), text)
	}
	return moves
}

// since are the moves of a LUN since a time, whose clock is that of the nodes.
func since(all []v1alpha1.OwnershipMove, lun string, at time.Time) (moves []v1alpha1.OwnershipMove) {
	for _, m := range all {
		if m.LogicalUnit == lun && !m.Time.Time.Before(at.Truncate(time.Second)) {
			moves = append(moves, m)
		}
	}
	return moves
}

var _ = Describe("a drained worker", func() {
	It("gets its LUNs back once, when its node has been in sync for a while", func(ctx context.Context) {
		ns := volume(ctx)
		pod(ctx, ns, "first", "data", "", "sleep 1", false) // the volume may wait for a pod
		Eventually(func() string { return phase(ctx, ns, "first") }).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Equal("Succeeded"))
		deletePod(ctx, ns, "first")
		atHome(ctx)
		home := ownerOf(ctx, ns, "data")
		lun, worker := lunOf(ctx, ns, "data"), targetWorker(ctx, home)
		owned := func() string {
			return field(ctx, "targetpair", pair, "", fmt.Sprintf(`{.status.nodes[?(@.name=="%s")].owned}`, home))
		}
		synced := func() string { return condition(ctx, "targetpair", pair, "", "InSync") }
		pod(ctx, ns, "app", "data", bystander(ctx), "exec sleep infinity", false) // the LUN follows it to neither node
		running(ctx, ns, "app")
		p := startProbe(ctx, GinkgoT().TempDir(), ns, "app", "probe")

		By("draining the worker of the owner")
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "uncordon", worker) }, NodeTimeout(time.Minute))
		start := time.Now()
		kubectl(ctx, "drain", worker, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
		Eventually(synced).WithContext(ctx).Should(Equal("False"))
		Eventually(func() string { return field(ctx, "pod", targetPod(home), namespace, "{.status.phase}{.spec.nodeName}") }).WithContext(ctx).
			Should(Equal("Pending"), "the disk of the node is on the worker")
		Consistently(owned).WithContext(ctx).WithTimeout(20 * time.Second).Should(BeElementOf("0", ""))

		By("taking the worker back")
		kubectl(ctx, "uncordon", worker)
		Eventually(synced).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Equal("True"))
		back := time.Now()
		Expect(owned()).To(BeElementOf("0", ""), "nothing moves home before the node has been in sync for 30 s")
		Eventually(owned).WithContext(ctx).WithTimeout(90 * time.Second).ShouldNot(BeElementOf("0", ""))
		took := time.Since(back)
		atHome(ctx)

		moves := since(movesOf(ctx, pair), lun, start)
		var homeward []v1alpha1.OwnershipMove
		for _, m := range moves {
			if m.To == home {
				homeward = append(homeward, m)
			}
		}
		Expect(homeward).To(HaveLen(1), "%+v", moves)
		Expect(homeward[0].Reason).To(Equal("FailBack"))
		Expect(homeward[0].Time.Sub(back)).To(BeNumerically(">", 15*time.Second), "the delay is 30 s, and the status of the pair may be 10 s late")
		m := p.finish(ctx)
		results.Transfer = max(results.Transfer, m.LongestMS)
		GinkgoWriter.Printf("home %.0f s after the pair was in sync; %d operations, the longest took %.0f ms\n", took.Seconds(), m.Operations, m.LongestMS)
	}, NodeTimeout(16*time.Minute))
})
