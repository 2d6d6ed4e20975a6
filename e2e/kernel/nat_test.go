package kernel

import (
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// serviceIP are the portals' virtual addresses. No interface has them.
var serviceIP = [2]string{"10.97.0.1", "10.97.0.2"}

// movedIP are what nodes get when they start on another machine.
var movedIP = [2]string{"10.98.1.101", "10.98.2.101"}

// services do to the portals' addresses what kube-proxy does to those of Services: the test's
// namespace, which the guests send them to, translates the destination of new connections. An
// established one keeps what it began with, be that dead; a Service without an endpoint refuses;
// what belongs to no connection is dropped.
type services struct{ endpoints [2]string } // addresses; empty: there is none

func virtualPortals(o *harness.Options) {
	o.Net.Portals = [2]string{serviceIP[0] + portalPort, serviceIP[1] + portalPort}
}

// start makes the namespace a router.
func (s *services) start() error {
	var own *netns.Namespace
	set := []string{"-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0"}
	for _, b := range bridges {
		set = append(set, "net.ipv4.conf."+b+".send_redirects=0")
	}
	// The router must not filter packets that only pass a bridge; a kernel without this setting
	// does not filter them.
	_ = own.Command("sysctl", "-q", "-w", "net.bridge.bridge-nf-call-iptables=0")
	return errors.Join(own.Command("sysctl", set...), s.apply())
}

func (s *services) apply() error {
	var own *netns.Namespace
	rules := "table ip services\ndelete table ip services\ntable ip services {\nchain translate {\ntype nat hook prerouting priority dstnat; policy accept;\n"
	for i, to := range s.endpoints {
		if to != "" {
			rules += fmt.Sprintf("ip daddr %s tcp dport %s dnat to %s\n", serviceIP[i], portalPort[1:], to+portalPort)
		}
	}
	// Endpoint and guest are neighbours: without another source the answer would go past this
	// router.
	rules += "}\nchain source {\ntype nat hook postrouting priority srcnat; policy accept;\nct status dnat masquerade\n}\n"
	rules += fmt.Sprintf("chain none {\ntype filter hook prerouting priority -50; policy accept;\nip daddr { %s, %s } reject\n}\n", serviceIP[0], serviceIP[1])
	rules += "chain forward {\ntype filter hook forward priority filter; policy accept;\nct state invalid drop\n}\n}\n"
	return own.NFT(rules)
}

// move loses the machine of a node without a word, and starts the node on another one, under
// another address. The Service learns both when Kubernetes does: after they have happened.
func (s *services) move(ctx SpecContext, r *rig, i int) error {
	node, from := r.net.nodes[i], s.endpoints[i]
	if err := errors.Join(r.net.silence(i, "portal", "inter"), r.pair.Kill(i)); err != nil {
		return err
	}
	s.endpoints[i] = ""
	err := errors.Join(s.apply(), node.Command("ip", "addr", "del", from+"/24", "dev", "portal"), node.Address("portal", movedIP[i]), r.net.heal(i))
	r.pair.ISCSI[i] = movedIP[i] + portalPort
	if err = errors.Join(err, r.pair.StartNode(i)); err != nil {
		return err
	}
	if err := r.pair.WaitInSync(ctx); err != nil {
		return err
	}
	s.endpoints[i] = movedIP[i]
	return s.apply()
}

var _ = Describe("portals behind virtual addresses", Ordered, func() {
	o, s := &ordeal{}, &services{endpoints: portalIP}
	BeforeAll(func(ctx SpecContext) {
		o.r, o.w = newWorkerRig(ctx, "nat", virtualPortals)
		Expect(s.start()).To(Succeed())
		DeferCleanup(func() error { return (*netns.Namespace)(nil).NFT("table ip services\ndelete table ip services\n") })
		for i, ip := range serviceIP {
			o.w.sh(ctx, fmt.Sprintf("ip route add %s via %s", ip, testIP[i]))
		}
		o.begin(ctx)
		o.settled(ctx)
	})
	AfterEach(func() { tellFailure(o.w) })

	It("18: stay where they are while a node moves to another address", hazard(18), func(ctx SpecContext) {
		for range harness.Names {
			i := o.owner(ctx)
			o.event(ctx, "owner "+harness.Names[i]+" moves to another address", &results.Pause.NodeMoved, silentBound, func() error { return s.move(ctx, o.r, i) })
			o.settled(ctx)
		}
	})

	It("18: stay the same after a restart that keeps the address", hazard(18), func(ctx SpecContext) {
		i := o.owner(ctx)
		o.event(ctx, "owner "+harness.Names[i]+" restarted", &results.Pause.TargetRestart, killedBound, func() error {
			return errors.Join(o.r.pair.Term(i), o.r.pair.StartNode(i), o.r.pair.WaitInSync(ctx))
		})
		o.settled(ctx)
	})

	It("have lost no write", func(ctx SpecContext) { o.finish(ctx) })
})
