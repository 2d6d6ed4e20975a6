package kernel

import (
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// The wiring: two storage networks, each a bridge in the test's namespace that every guest is
// plugged into; node a of the pair has its portal on the first, node b on the second; where both
// networks reach both nodes (twoNetworks) each has one more on the other. The nodes are in
// namespaces of their own, with a wire between them for the link and one to the test for the
// control API.
const (
	portalPort  = ":3260"
	controlPort = ":3261"
	linkPort    = ":3262"
	metricsPort = ":9100"
	watchPort   = ":3263" // of supervisors
)

var (
	bridges  = [2]string{"net-a", "net-b"}
	testIP   = [2]string{"10.98.1.254", "10.98.2.254"} // on the bridges
	portalIP = [2]string{"10.98.1.1", "10.98.2.1"}
	crossIP  = [2]string{"10.98.2.2", "10.98.1.2"} // of node a on the second network, of node b on the first
	linkIP   = [2]string{"10.98.3.1", "10.98.3.2"}
	mgmtIP   = [2]string{"10.98.4.2", "10.98.5.2"}
	mgmtTest = [2]string{"10.98.4.1", "10.98.5.1"}
)

// guestIP is a guest's address on one of the storage networks, with its mask.
func guestIP(number, network int) string { return fmt.Sprintf("10.98.%d.%d/24", network+1, 10+number) }

type network struct{ nodes [2]*netns.Namespace }

func newNetwork() (n *network, err error) {
	n = &network{}
	var own *netns.Namespace // the process's
	err = own.Command("ip", "link", "set", "lo", "up")
	for i := range bridges {
		err = errors.Join(err, own.Command("ip", "link", "add", bridges[i], "type", "bridge"), own.Address(bridges[i], testIP[i]))
	}
	for i, name := range harness.Names {
		if err != nil {
			return n, err
		}
		if n.nodes[i], err = netns.New(); err != nil {
			return n, err
		}
		node, portal, cross, mgmt := n.nodes[i], "portal-"+name, "cross-"+name, "mgmt-"+name
		err = errors.Join(
			own.Command("ip", "link", "add", portal, "type", "veth", "peer", "name", "portal", "netns", node.Path()),
			own.Command("ip", "link", "set", portal, "master", bridges[i], "up"), node.Address("portal", portalIP[i]),
			own.Command("ip", "link", "add", cross, "type", "veth", "peer", "name", "cross", "netns", node.Path()),
			own.Command("ip", "link", "set", cross, "master", bridges[1-i], "up"), node.Address("cross", crossIP[i]),
			own.Command("ip", "link", "add", mgmt, "type", "veth", "peer", "name", "mgmt", "netns", node.Path()),
			own.Address(mgmt, mgmtTest[i]), node.Address("mgmt", mgmtIP[i]))
	}
	a, b := n.nodes[0], n.nodes[1]
	return n, errors.Join(err, a.Command("ip", "link", "add", "inter", "type", "veth", "peer", "name", "inter", "netns", b.Path()),
		a.Address("inter", linkIP[0]), b.Address("inter", linkIP[1]))
}

// close leaves the process's namespace as it was, for the next network.
func (n *network) close() {
	var own *netns.Namespace
	for i, name := range harness.Names {
		for _, link := range []string{"portal-" + name, "cross-" + name, "mgmt-" + name, bridges[i]} {
			_ = own.Command("ip", "link", "del", link) // may never have been there
		}
	}
	for _, s := range n.nodes {
		if s != nil {
			s.Close()
		}
	}
}

// silence drops what arrives at and what leaves one node by an interface ("portal", "cross",
// "inter"), as a cut wire does; nothing is reset.
func (n *network) silence(i int, interfaces ...string) error {
	rules := "table inet cut\ndelete table inet cut\ntable inet cut {\n"
	for _, hook := range []string{"input", "output"} {
		rules += fmt.Sprintf("chain %s {\ntype filter hook %s priority 0; policy accept;\n", hook, hook)
		for _, dev := range interfaces {
			rules += fmt.Sprintf("%s %q drop\n", map[string]string{"input": "iifname", "output": "oifname"}[hook], dev)
		}
		rules += "}\n"
	}
	return n.nodes[i].NFT(rules + "}\n")
}

// heal ends a silence.
func (n *network) heal(i int) error { return n.silence(i) }

// cut ends all traffic on one of the storage networks, as a switch does that has lost its power;
// nothing is reset, no card notices.
func (n *network) cut(i int) error {
	var own *netns.Namespace
	return own.Command("ip", "link", "set", bridges[i], "down")
}

// restore ends a cut.
func (n *network) restore(i int) error {
	var own *netns.Namespace
	return own.Command("ip", "link", "set", bridges[i], "up")
}

// supervised nodes are started by supervisors, as in the containers of a cluster.
func supervised(o *harness.Options) {
	o.Supervisors = true
	for i := range harness.Names {
		o.Net.Supervisor[i] = linkIP[i] + watchPort
	}
}

// twoNetworks gives each node a portal on both storage networks: four paths.
func twoNetworks(o *harness.Options) {
	for i := range harness.Names {
		for k, name := range harness.Names {
			o.PerNode[i] = append(o.PerNode[i], "--portal", name+"="+crossIP[k]+portalPort)
		}
		o.PerNode[i] = append(o.PerNode[i], "--iscsi-listen", crossIP[i]+portalPort)
	}
}
