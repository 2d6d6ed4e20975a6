package kernel

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
	"github.com/gemel-storage/gemel/e2e/harness"
)

// Bounds are generous: the machine that runs this is emulated, and may be busy with something else. What is measured is printed.
const (
	plannedBound = 4 * time.Second
	killedBound  = 8 * time.Second
	silentBound  = 15 * time.Second
)

var _ = Describe("a load on a worker", Ordered, func() {
	var r *rig
	var w *worker
	var v *volume
	var l *load
	BeforeAll(func(ctx SpecContext) {
		r, w = newWorkerRig(ctx, "failover")
		var err error
		v, err = w.create(ctx, 256<<20, "a", "")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(Succeed())
		l, err = startLoad(ctx, w.Guest, v.device(), 32<<20, 4)
		Expect(err).NotTo(HaveOccurred())
	})
	AfterEach(func() { tellFailure(w) })

	move := func(ctx context.Context, to string) error {
		_, err := r.pair.Client(0).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{v.id}, ToNode: to})
		return err
	}
	// during measures the longest operation around an event.
	during := func(ctx context.Context, what string, worst *float64, bound, wait time.Duration, f func() error) {
		GinkgoHelper()
		_, err := l.begin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(f()).To(Succeed())
		time.Sleep(wait) // the window that is measured
		rep, err := l.measure(ctx)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry(what, fmt.Sprintf("longest of %d operations: %.0f ms", rep.Operations, rep.LongestMS))
		*worst = max(*worst, rep.LongestMS)
		results.IOErrors = max(results.IOErrors, len(rep.Errors))
		Expect(rep.Errors).To(BeEmpty())
		Expect(rep.Operations).To(BeNumerically(">", 10))
		Expect(rep.LongestMS).To(BeNumerically("<", bound.Milliseconds()))
	}
	// settled waits until both paths serve again and the owner's, and no other, is optimized. The owner is asked for each time: a node that
	// is starved for longer than its lease loses its LUNs.
	settled := func(ctx context.Context) {
		GinkgoHelper()
		Expect(r.pair.WaitInSync(ctx)).To(Succeed())
		Eventually(func() (string, error) {
			l, err := r.pair.Client(0).GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: v.id})
			if err != nil {
				return "", err
			}
			want := "active " + portalIP[slices.Index(harness.Names[:], l.Owner)] + "\n"
			got, err := w.Shell(ctx, `n=$(multipathd show paths format "%t" | grep -c active); [ $n = 2 ] || { echo $n paths; exit; }
for d in $(ls /sys/block/dm-*/slaves); do
  h=$(readlink -f /sys/block/$d/device | grep -o 'session[0-9]*' | head -1); s=$(cat /sys/class/iscsi_connection/connection${h#session}:0/persistent_address)
  [ "$(cat /sys/block/$d/device/access_state)" = active/optimized ] && echo active $s
done
true`)
			if err != nil || got == want {
				return "", err
			}
			return "the owner is " + l.Owner + ", the worker has " + got, nil
		}).WithTimeout(60 * time.Second).WithPolling(time.Second).Should(BeEmpty())
	}

	It("hardly notices a planned transfer", func(ctx SpecContext) {
		for range 2 {
			during(ctx, "planned transfer to b", &results.Pause.PlannedTransfer, plannedBound, 3*time.Second, func() error { return move(ctx, "b") })
			settled(ctx)
			during(ctx, "planned transfer to a", &results.Pause.PlannedTransfer, plannedBound, 3*time.Second, func() error { return move(ctx, "a") })
			settled(ctx)
		}
	})

	It("goes on when the owner is killed", func(ctx SpecContext) {
		during(ctx, "owner killed", &results.Pause.OwnerKilled, killedBound, 10*time.Second, func() error { return r.pair.Kill(0) })
		Expect(r.pair.StartNode(0)).To(Succeed())
		settled(ctx)
		Expect(move(ctx, "a")).To(Succeed())
		settled(ctx)
	})

	It("10: goes on when the owner falls silent", hazard(10), func(ctx SpecContext) {
		DeferCleanup(func() { _ = r.net.heal(0); _ = r.pair.Signal(0, syscall.SIGCONT) })
		during(ctx, "owner silent", &results.Pause.OwnerSilent, silentBound, 18*time.Second, func() error {
			if err := r.net.silence(0, "portal", "inter"); err != nil {
				return err
			}
			return r.pair.Signal(0, syscall.SIGSTOP) // its arbiter is a file that no network keeps it from
		})
		Expect(r.net.heal(0)).To(Succeed())
		Expect(r.pair.Signal(0, syscall.SIGCONT)).To(Succeed())
		settled(ctx)
		Expect(move(ctx, "a")).To(Succeed())
		settled(ctx)
	})

	It("goes on when the owner's portal falls silent", func(ctx SpecContext) {
		DeferCleanup(func() { _ = r.net.heal(0) })
		during(ctx, "owner's portal silent", &results.Pause.OneNetworkCut, silentBound, 15*time.Second, func() error { return r.net.silence(0, "portal") })
		Expect(r.net.heal(0)).To(Succeed())
		settled(ctx)
	})

	It("has lost nothing", func(ctx SpecContext) {
		rep, err := l.finish(ctx)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("operations", rep.Operations)
		results.Operations += rep.Operations
		results.IOErrors, results.LostWrites = max(results.IOErrors, len(rep.Errors)), len(rep.Lost)
		Expect(rep.Errors).To(BeEmpty())
		Expect(rep.Lost).To(BeEmpty())
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	})
})
