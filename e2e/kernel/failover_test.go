package kernel

import (
	"fmt"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

const (
	plannedBound = 2 * time.Second
	killedBound  = 6 * time.Second
	silentBound  = 15 * time.Second
)

// events are how often something happens whose longest pause is a result. The short part of the
// suite shows that it works.
func events() int {
	if GinkgoLabelFilter() != "" {
		return 2
	}
	return 10
}

// One load goes through everything that happens to targets and networks (cuts_test.go,
// restarts_test.go).
var _ = Describe("a load on a worker", Ordered, func() {
	o := &ordeal{}
	BeforeAll(func(ctx SpecContext) {
		o.r, o.w = newWorkerRig(ctx, "failover", twoNetworks, supervised)
		o.begin(ctx)
	})
	AfterEach(func() { tellFailure(o.w) })

	// What the machine does to a load to which nothing happens: pauses are judged beyond that.
	It("pauses a little by itself", Label("smoke"), func(ctx SpecContext) {
		repeat(events(), func() bool {
			return o.event(ctx, "nothing happens", &results.Pause.Steady, plannedBound, func() error {
				before, err := o.l.count(ctx)
				// The worker is asked for its paths for as long as after a move: on an emulated
				// machine the question costs something as well.
				for done := before; err == nil && done.Operations < before.Operations+4*enough; done, err = o.l.count(ctx) {
					o.switched(ctx)
				}
				return err
			})
		})
	})

	It("pauses shortly during a planned transfer", Label("smoke"), func(ctx SpecContext) {
		repeat(events(), func() bool {
			to := 1 - o.owner(ctx)
			// Until the worker uses the paths of the new owner: that changes the map as well.
			return o.event(ctx, "planned transfer to "+harness.Names[to], &results.Pause.PlannedTransfer, plannedBound, func() error {
				err := o.v.move(ctx, to)
				if err == nil {
					o.switched(ctx)
				}
				return err
			})
		})
	})

	It("continues when the owner is killed, without waiting for a timeout", Label("smoke"), func(ctx SpecContext) {
		repeat(events(), func() bool {
			i := o.owner(ctx)
			o.w.sh(ctx, "dmesg -C")
			counted := o.event(ctx, "owner "+harness.Names[i]+" killed", &results.Pause.OwnerKilled, killedBound, func() error { return o.r.pair.Kill(i) })
			if counted {
				Expect(o.lossesOf(ctx, i)).To(And(Not(BeEmpty()), HaveEach(connectionClosed)))
			}
			o.event(ctx, "node "+harness.Names[i]+" comes back", nil, killedBound, func() error { return o.r.pair.StartNode(i) })
			o.settled(ctx)
			return counted
		})
	})

	// As soon as the supervisor has said that the process has ended, the other node takes over.
	It("continues when the owner's process crashes, without waiting for the lease", Label("smoke"), func(ctx SpecContext) {
		repeat(events(), func() bool {
			Expect(o.r.pair.WaitSupervisors(ctx)).To(Succeed())
			i := o.owner(ctx)
			counted := o.event(ctx, "process of owner "+harness.Names[i]+" crashed", &results.Pause.OwnerCrashed, killedBound, func() error { return o.r.pair.Crash(i) })
			o.settled(ctx)
			return counted
		})
	})

	It("10: continues when the owner falls silent", hazard(10), func(ctx SpecContext) {
		repeat(events(), func() bool {
			i := o.owner(ctx)
			DeferCleanup(func() { _ = o.r.net.heal(i); _ = o.r.pair.SignalProcess(i, syscall.SIGCONT) })
			counted := o.event(ctx, "owner "+harness.Names[i]+" silent", &results.Pause.OwnerSilent, silentBound, func() error {
				if err := o.r.net.silence(i, "portal", "cross", "inter"); err != nil {
					return err
				}
				return o.r.pair.SignalProcess(i, syscall.SIGSTOP) // its arbiter is a file, which it reaches without the network
			})
			Expect(o.r.net.heal(i)).To(Succeed())
			Expect(o.r.pair.SignalProcess(i, syscall.SIGCONT)).To(Succeed())
			o.settled(ctx)
			return counted
		})
	})

	It("continues when the owner's portals fall silent", func(ctx SpecContext) {
		i := o.owner(ctx)
		DeferCleanup(func() { _ = o.r.net.heal(i) })
		o.event(ctx, "owner's portals silent", nil, silentBound, func() error { return o.r.net.silence(i, "portal", "cross") })
		Expect(o.r.net.heal(i)).To(Succeed())
		o.settled(ctx)
	})

	It("has its volume back at home when the node is back", Label("smoke"), func(ctx SpecContext) {
		repeat(events(), func() bool {
			home := o.owner(ctx)
			Expect(o.v.move(ctx, home)).To(Succeed()) // it stays, and this is its home from now on
			// The operations that the kill delays belong to it: they end before the next event
			// begins.
			o.event(ctx, "its home killed", nil, killedBound, func() error { return o.r.pair.Kill(home) })
			o.owned(ctx, 1-home, time.Minute)
			o.event(ctx, "its home comes back", nil, killedBound, func() error { // and with it the paths to it
				err := o.r.pair.StartNode(home)
				if err == nil {
					o.settled(ctx)
				}
				return err
			})
			return o.homeAgain(ctx, home, 90*time.Second)
		})
	})

	It("has its volume at the node that it reaches, and home again later", func(ctx SpecContext) {
		home := o.owner(ctx)
		Expect(o.v.move(ctx, home)).To(Succeed())
		DeferCleanup(func() { _ = o.r.net.heal(home) })
		o.event(ctx, "the portals of its home are silent", nil, silentBound, func() error {
			err := o.r.net.silence(home, "portal", "cross")
			o.owned(ctx, 1-home, time.Minute)
			return err
		})
		o.event(ctx, "the portals of its home are back", nil, killedBound, func() error {
			err := o.r.net.heal(home)
			if err == nil {
				o.settled(ctx)
			}
			return err
		})
		o.homeAgain(ctx, home, 2*time.Minute)
	})

	cuts(o)
	restarts(o)

	It("has lost no write", Label("smoke"), func(ctx SpecContext) { o.finish(ctx) })
})

// connectionClosed is the kernel's number (ISCSI_ERR_TCP_CONN_CLOSE) for a connection that the
// other side has closed; a ping without an answer has another number.
const connectionClosed = "1020"

// lossesOf lists the number with which each connection to a node was lost first, since the kernel's
// messages were cleared.
func (o *ordeal) lossesOf(ctx SpecContext, node int) (numbers []string) {
	GinkgoHelper()
	for _, ip := range []string{portalIP[node], crossIP[node]} {
		out := o.w.sh(ctx, fmt.Sprintf(`c=$(basename $(dirname $(grep -lx %s /sys/class/iscsi_connection/*/persistent_address)))
dmesg | grep -o " $c: detected conn error ([0-9]*)" | grep -o '[0-9]*)$' | tr -d ')' | head -1`, ip))
		if out != "" {
			numbers = append(numbers, out)
		}
	}
	return numbers
}
