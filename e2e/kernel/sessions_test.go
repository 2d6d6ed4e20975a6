package kernel

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var _ = Describe("a volume with several sessions to each portal", Ordered, func() {
	var r *rig
	var w *worker
	var t *tried
	var one *volume
	var oldest [2]string
	BeforeAll(func(ctx SpecContext) {
		r, w = newWorkerRig(ctx, "sessions")
		w.sh(ctx, "dmesg -C")
	})
	AfterEach(func() { tellFailure(w) })

	// sids are the numbers of the sessions to a portal, in their order.
	sids := func(ctx context.Context, i int) []string {
		GinkgoHelper()
		return strings.Fields(w.sh(ctx, `for c in /sys/class/iscsi_connection/*; do
[ "$(cat $c/persistent_address)" = `+portalIP[i]+` ] && basename $c | sed 's/connection\(.*\):0/\1/'; done | sort -n`))
	}
	recorded := func(ctx context.Context) string {
		GinkgoHelper()
		return w.sh(ctx, "grep -rh node.session.nr_sessions /etc/iscsi/nodes | sort | uniq -c | sed 's/^ *//'")
	}
	// whole waits until all paths of a volume serve, in two groups of as many paths as there are
	// sessions.
	whole := func(ctx context.Context, v *volume, sessions string) {
		GinkgoHelper()
		Eventually(func() (string, error) {
			return w.Shell(ctx, `multipathd show paths format "%w %t %T" | grep "3`+v.wwid+` *active *ready" | wc -l
dmsetup table 3`+v.wwid+` | grep -oE 'alua [0-9]+|service-time 0 [0-9]+' | tr '\n' ';'`)
		}).WithTimeout(sometime).Should(Equal(map[string]string{"1": "2", "4": "8"}[sessions] +
			"\nalua 2;service-time 0 " + sessions + ";service-time 0 " + sessions + ";"))
	}

	It("36: has a path for each session, in one group for each node, and uses them all", hazard(36), func(ctx SpecContext) {
		v, err := w.create(ctx, 512<<20, harness.Names[0], "xfs")
		Expect(err).NotTo(HaveOccurred())
		v.context[attach.KeySessions] = "4"
		t = tryOn(ctx, v, "xfs")
		whole(ctx, v, "4")
		for i := range oldest {
			Expect(sids(ctx, i)).To(HaveLen(4))
			oldest[i] = sids(ctx, i)[0]
		}
		Expect(recorded(ctx)).To(Equal("2 node.session.nr_sessions = 4"))
		t.goesOn(ctx)
		writes := w.sh(ctx, `for d in $(ls /sys/block/$(basename $(readlink -f `+v.device()+`))/slaves); do
grep -qx active/optimized /sys/block/$d/device/access_state && awk '{ print ($5 > 0) }' /sys/block/$d/stat; done | tr '\n' ' '`)
		Expect(writes).To(Equal("1 1 1 1"), "paths of the owner that have written")
	}, NodeTimeout(5*time.Minute))

	It("holds what was written while a node is killed and comes back", func(ctx SpecContext) {
		for i := range harness.Names {
			Expect(r.pair.Kill(i)).To(Succeed())
			t.goesOn(ctx)
			Expect(r.pair.StartNode(i)).To(Succeed())
			Expect(r.pair.WaitInSync(ctx)).To(Succeed())
			whole(ctx, t.volume, "4")
			Expect(sids(ctx, i)).To(And(HaveLen(4), ContainElement(oldest[i])), "iscsid got the same sessions back")
		}
	}, NodeTimeout(8*time.Minute))

	It("19: gets one session back that was ended", hazard(19), func(ctx SpecContext) {
		before := sids(ctx, 1)
		w.sh(ctx, "iscsiadm -m session -r "+before[2]+" --logout")
		Eventually(func() []string { return sids(ctx, 1) }).WithTimeout(soon).
			Should(And(HaveLen(4), ContainElements(before[0], before[1], before[3]), Not(ContainElement(before[2]))))
		whole(ctx, t.volume, "4")
		t.goesOn(ctx)
	}, NodeTimeout(5*time.Minute))

	It("36: does not multiply the paths of a volume that needs one session", hazard(36), func(ctx SpecContext) {
		one = w.raw(ctx)
		Expect(one.stage(ctx)).To(Succeed())
		whole(ctx, one, "1")
		whole(ctx, t.volume, "4")
		Expect(recorded(ctx)).To(Equal("2 node.session.nr_sessions = 4"))
	})

	It("36: takes away what no other volume needs", hazard(36), func(ctx SpecContext) {
		t.end(ctx)
		Expect(w.complaints(ctx)).To(BeEmpty())
		t.clean(ctx)
		for i := range oldest {
			Expect(sids(ctx, i)).To(Equal([]string{oldest[i]}))
		}
		Expect(recorded(ctx)).To(Equal("2 node.session.nr_sessions = 1"))
		whole(ctx, one, "1")
		Expect(one.unstage(ctx)).To(Succeed())
		Expect(w.left(ctx)).To(BeEmpty())
	}, NodeTimeout(5*time.Minute))
})
