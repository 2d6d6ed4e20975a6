package kernel

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var _ = Describe("a striped volume over two pairs on a worker", Ordered, func() {
	var pairs [2]*rig
	var w, second *worker // the worker, as each pair knows it
	var t *tried
	BeforeAll(func(ctx SpecContext) {
		pairs[0], w = newWorkerRig(ctx, "pairs")
		var err error
		pairs[1], err = pairs[0].beside(ctx, target)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(pairs[1].pair.Close()).To(Succeed()) })
		other := *w
		second = &other
		second.rig = pairs[1]
		w.sh(ctx, "dmesg -C")
	})
	AfterEach(func() { tellFailure(w) })

	sessions := func(ctx context.Context) string {
		return w.sh(ctx, "cat /sys/class/iscsi_session/*/targetname 2>/dev/null | sort | uniq -c | sed 's/^ *//'")
	}

	It("32: is one device over the maps of its LUNs, with sessions to both nodes of both pairs", hazard(32), func(ctx SpecContext) {
		t = tryOn(ctx, w.stripedOver(ctx, 512<<20, "xfs", w, second), "xfs")
		Expect(t.stage(ctx)).To(Succeed(), "again")
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		Expect(strings.Split(sessions(ctx), "\n")).To(ConsistOf("2 "+pairs[0].pair.IQN(), "2 "+pairs[1].pair.IQN()))
		t.goesOn(ctx)
	})

	It("holds what was written while nodes of either pair are killed", func(ctx SpecContext) {
		for _, r := range pairs {
			for i := range harness.Names {
				Expect(r.pair.Kill(i)).To(Succeed())
				t.goesOn(ctx)
				Expect(r.pair.StartNode(i)).To(Succeed())
				t.legsSettled(ctx)
			}
		}
	})

	It("33: goes on without the plugin, which finds it again", hazard(33), func(ctx SpecContext) {
		Expect(w.kill(ctx)).To(Succeed())
		t.goesOn(ctx)
		Expect(w.start(ctx)).To(Succeed())
		Expect(t.stage(ctx)).To(Succeed())
		Expect(t.publish(ctx)).To(Succeed())
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		t.goesOn(ctx)
	})

	It("23: grows under load", hazard(23), func(ctx SpecContext) {
		size, err := t.expand(ctx, 768<<20)
		Expect(err).NotTo(HaveOccurred())
		Expect(size).To(BeEquivalentTo(768 << 20))
		Expect(t.below(ctx)).To(Equal(t.inOrder()))
		t.goesOn(ctx)
	})

	It("leaves the sessions of one pair to a volume of that pair", func(ctx SpecContext) {
		second.node, second.conn = w.node, w.conn
		one := second.raw(ctx)
		Expect(one.stage(ctx)).To(Succeed())
		t.end(ctx)
		Expect(w.complaints(ctx)).To(BeEmpty())
		t.clean(ctx)
		Expect(sessions(ctx)).To(Equal("2 " + pairs[1].pair.IQN()))
		Expect(one.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(5*time.Minute))

	It("31: is not made without a LUN of the second pair, nor while that pair is away", hazard(31), func(ctx SpecContext) {
		v := w.stripedOver(ctx, 64<<20, "", w, second)
		_, err := pairs[1].pair.Client(0).UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: v.legs[3].id, HostIqn: w.iqn})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stage(ctx)).To(MatchError(ContainSubstring("leg 3")))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
		v = w.stripedOver(ctx, 64<<20, "", w, second)
		for i := range harness.Names {
			Expect(pairs[1].pair.Kill(i)).To(Succeed())
		}
		Expect(v.stage(ctx)).To(MatchError(And(ContainSubstring("leg 1"), ContainSubstring(pairs[1].pair.IQN()))))
		Expect(v.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(5*time.Minute))
})
