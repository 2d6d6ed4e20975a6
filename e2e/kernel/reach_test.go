package kernel

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Two workers have a volume each, and share a third one; all belong to node a. Workers lose their
// way to that node, and get it back.
var _ = Describe("workers that lose the owner", Ordered, func() {
	const (
		moveLimit = 30 * time.Second
		homeLimit = 90 * time.Second
	)
	var first, second *ordeal
	var both [2]*volume
	BeforeAll(func(ctx SpecContext) {
		first, second = &ordeal{}, &ordeal{}
		first.r, first.w = newWorkerRig(ctx, "reach")
		w, err := first.r.worker(ctx, "reach-2")
		Expect(err).NotTo(HaveOccurred())
		second.r, second.w = first.r, w
		first.begin(ctx)
		second.begin(ctx)
	})
	AfterEach(func() { tellFailure(first.w, second.w) })

	It("has the volume of a worker at the node that it reaches, and leaves those of others", func(ctx SpecContext) {
		before := second.rate(ctx)
		first.loses(ctx, 0)
		first.owned(ctx, 1, moveLimit)
		Expect(second.owner(ctx)).To(Equal(0))
		// Paths are told of the move, and are used by it, within this time.
		Eventually(func() float64 { return first.forwarded(ctx, 5*time.Second) }).WithTimeout(time.Minute).Should(BeNumerically("<", 0.01))
		after := second.rate(ctx)
		AddReportEntry("the other worker's operations a second", fmt.Sprintf("%.0f before, %.0f after", before, after))
		Expect(after).To(BeNumerically(">", 0.8*before))
		first.finds(ctx, 0)
		first.settled(ctx)
		first.homeAgain(ctx, 0, homeLimit)
		first.settled(ctx)
		second.settled(ctx)
	})

	It("leaves a volume where it is while only one of its two workers is back", func(ctx SpecContext) {
		v, err := first.w.create(ctx, 64<<20, "a", "")
		Expect(err).NotTo(HaveOccurred())
		v.cap.AccessMode = &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}
		other, err := v.mapTo(ctx, second.w)
		Expect(err).NotTo(HaveOccurred())
		both = [2]*volume{v, other}
		shared := &ordeal{r: first.r, w: first.w, v: v}
		for _, x := range both {
			Expect(x.stage(ctx)).To(Succeed())
			Expect(x.publish(ctx)).To(Succeed())
			x.w.sh(ctx, "(while dd if="+x.device()+" of=/dev/null bs=4k count=1 iflag=direct; do sleep 0.2; done) >/dev/null 2>&1 & echo $! >/tmp/reader")
		}
		first.loses(ctx, 0)
		second.loses(ctx, 0)
		shared.owned(ctx, 1, moveLimit)
		first.finds(ctx, 0)
		Eventually(func() (int, error) { return v.activePaths(ctx) }).WithTimeout(homeLimit).Should(Equal(2)) // the worker is back
		Consistently(func() int { return shared.owner(ctx) }).WithTimeout(45 * time.Second).WithPolling(time.Second).Should(Equal(1))
		second.finds(ctx, 0)
		shared.owned(ctx, 0, homeLimit)
		for _, x := range both {
			x.w.sh(ctx, "kill $(cat /tmp/reader); sleep 0.5")
			Expect(x.unpublish(ctx)).To(Succeed())
			Expect(x.unstage(ctx)).To(Succeed())
		}
	})

	It("has lost no write", func(ctx SpecContext) {
		first.finish(ctx)
		second.finish(ctx)
	})
})

// loses makes a worker's way to the portal of a node a dead end, finds opens it again.
func (o *ordeal) loses(ctx context.Context, node int) {
	GinkgoHelper()
	o.w.sh(ctx, "ip route add blackhole "+portalIP[node])
}

func (o *ordeal) finds(ctx context.Context, node int) {
	GinkgoHelper()
	o.w.sh(ctx, "ip route del blackhole "+portalIP[node])
}

// rate is how many operations of the load are acknowledged in a second, over twenty seconds.
func (o *ordeal) rate(ctx context.Context) float64 {
	GinkgoHelper()
	before, err := o.l.count(ctx)
	Expect(err).NotTo(HaveOccurred())
	begun := time.Now()
	time.Sleep(20 * time.Second)
	after, err := o.l.count(ctx)
	Expect(err).NotTo(HaveOccurred())
	return float64(after.Operations-before.Operations) / time.Since(begun).Seconds()
}

// forwarded is the share of the volume's commands that came in at the node that does not own it,
// over a time.
func (o *ordeal) forwarded(ctx context.Context, over time.Duration) float64 {
	GinkgoHelper()
	own, other := o.commands(ctx)
	time.Sleep(over)
	own2, other2 := o.commands(ctx)
	Expect(own2 + other2).To(BeNumerically(">", own+other))
	return float64(other2-other) / float64(own2+other2-own-other)
}

// commands counts the commands of hosts so far, at their owner and at the other node.
func (o *ordeal) commands(ctx context.Context) (own, forwarded uint64) {
	GinkgoHelper()
	for i := range harness.Names {
		r, err := o.r.pair.Client(i).GetWork(ctx, &targetv1.GetWorkRequest{})
		Expect(err).NotTo(HaveOccurred())
		for _, l := range r.Luns {
			for _, w := range l.Work {
				switch {
				case l.Uuid != o.v.id:
				case w.Way == "own":
					own += w.Operations
				case w.Way == "forwarded":
					forwarded += w.Operations
				}
			}
		}
	}
	return own, forwarded
}
