package chaos

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// Places of the network: each node has a namespace, clients are in the process's own.
const (
	nodeA = iota
	nodeB
	clients
	places
)

// Interfaces. The link joins the nodes, a wire of its own joins each node to the clients, and the
// control API is reached over a third one that faults leave alone, as in a machine with a
// management network.
const (
	ifLink = "inter" // in a node's namespace
	ifHost = "hosts" // in a node's namespace: the clients' wire
	ifMgmt = "mgmt"
)

func wire(i int) string { return "host-" + harness.Names[i] } // in the clients' namespace

// Addresses: none of them leaves the namespaces.
var (
	linkIP = [2]string{"10.77.0.1", "10.77.0.2"}
	hostIP = [2]string{"10.77.1.2", "10.77.2.2"}
	mgmtIP = [2]string{"10.77.3.2", "10.77.4.2"}
)

// network is the wiring between two nodes and the clients, with filters where packets come in: to
// filter at the receiver loses them on the wire, as a real fault does, where to filter at the
// sender would tell its TCP. Packets are dropped, lost at random and answered with resets by
// nftables; what is slow is so by a token bucket (tc tbf), which makes queues as a real bottleneck
// does and is in kernels that lack netem.
type network struct {
	spaces [places]*netns.Namespace

	mu    sync.Mutex
	rules [places]map[string]string // interface to what is done with what arrives there
	slow  bool
}

func newNetwork() (n *network, err error) {
	n = &network{}
	for i := range n.rules {
		n.rules[i] = map[string]string{}
	}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	for i := range harness.Names {
		if n.spaces[i], err = netns.New(); err != nil {
			return n, err
		}
	}
	var own *netns.Namespace // the process's
	if err = own.Command("ip", "link", "set", "lo", "up"); err != nil {
		return n, err
	}
	a, b := n.spaces[nodeA], n.spaces[nodeB]
	err = errors.Join(
		a.Command("ip", "link", "add", ifLink, "type", "veth", "peer", "name", ifLink, "netns", b.Path()),
		a.Address(ifLink, linkIP[0]), b.Address(ifLink, linkIP[1]))
	for i := range harness.Names {
		s := n.spaces[i]
		err = errors.Join(err,
			own.Command("ip", "link", "add", wire(i), "type", "veth", "peer", "name", ifHost, "netns", s.Path()),
			own.Command("ip", "link", "add", "mgmt-"+harness.Names[i], "type", "veth", "peer", "name", ifMgmt, "netns", s.Path()),
			own.Address(wire(i), gateway(hostIP[i])), own.Address("mgmt-"+harness.Names[i], gateway(mgmtIP[i])),
			s.Address(ifHost, hostIP[i]), s.Address(ifMgmt, mgmtIP[i]))
	}
	return n, err
}

// gateway is the client's address on a wire.
func gateway(ip string) string { return ip[:strings.LastIndexByte(ip, '.')] + ".1" }

// close removes the wires at the clients' end, which outlives the other; with the namespaces goes
// the rest.
func (n *network) close() {
	var own *netns.Namespace
	for _, name := range harness.Names {
		for _, dev := range []string{"host-" + name, "mgmt-" + name} {
			_ = own.Command("ip", "link", "del", dev) // it may never have been made
		}
	}
	for _, s := range n.spaces {
		if s != nil {
			s.Close()
		}
	}
}

// What can be done with packets that arrive.
const (
	ruleDrop  = "drop"
	ruleReset = "meta l4proto tcp reject with tcp reset"
)

// ruleLoss loses some packets, 0 to 99 of a hundred.
func ruleLoss(percent int) string { return fmt.Sprintf("numgen random mod 100 < %d drop", percent) }

// filter sets what is done at an interface; empty: nothing.
func (n *network) filter(place int, dev, rule string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if rule == "" {
		delete(n.rules[place], dev)
	} else {
		n.rules[place][dev] = rule
	}
	return n.applyLocked(place)
}

func (n *network) applyLocked(place int) error {
	var s strings.Builder
	s.WriteString("table inet chaos\ndelete table inet chaos\n")
	s.WriteString("table inet chaos {\nchain arriving {\ntype filter hook input priority 0; policy accept;\n")
	for dev, rule := range n.rules[place] {
		fmt.Fprintf(&s, "iifname %q %s\n", dev, rule)
	}
	s.WriteString("}\n}\n")
	return n.spaces[place].NFT(s.String())
}

// throttle limits the link in both directions to so many kilobits per second; 0: no limit. Packets
// queue for up to half a second before they are lost.
func (n *network) throttle(kbit int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	for _, s := range n.spaces[:clients] {
		if n.slow {
			err = errors.Join(err, s.Command("tc", "qdisc", "del", "dev", ifLink, "root"))
		}
		if kbit > 0 {
			err = errors.Join(err, s.Command("tc", "qdisc", "add", "dev", ifLink, "root", "tbf",
				"rate", fmt.Sprintf("%dkbit", kbit), "burst", "32kb", "latency", "500ms"))
		}
	}
	n.slow = kbit > 0
	return err
}

// heal removes every filter and limit.
func (n *network) heal() error {
	var err error
	n.mu.Lock()
	for i := range n.rules {
		if len(n.rules[i]) > 0 {
			clear(n.rules[i])
			err = errors.Join(err, n.applyLocked(i))
		}
	}
	slow := n.slow
	n.mu.Unlock()
	if slow {
		err = errors.Join(err, n.throttle(0))
	}
	return err
}
