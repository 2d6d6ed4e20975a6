package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// kindnet is what kind's network daemon is for this lab: the node's CNI configuration from its pod
// CIDR, and one route per other node. All nodes are on one bridge, so routes are enough.
type kindnet struct {
	self    string // this node's name
	mtu     int
	written string // the CNI configuration last written
}

const cniFile = "/etc/cni/net.d/10-kindnet.conflist"

const cniConfig = `{
  "cniVersion": "0.4.0",
  "name": "kindnet",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": %q}]]
      },
      "mtu": %d
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

func runKindnet() {
	if err := serveKindnet(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "kindnet:", err)
		os.Exit(1)
	}
}

func serveKindnet(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	// Until kube-proxy is up the service address does not answer.
	if host := os.Getenv("CONTROL_PLANE_ENDPOINT"); host != "" {
		config.Host = "https://" + host
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	k := kindnet{self: os.Getenv("NODE_NAME"), mtu: 1500}
	if link, err := netlink.LinkByName("eth0"); err == nil {
		k.mtu = link.Attrs().MTU
	}
	for {
		if err := k.follow(ctx, client); err != nil {
			fmt.Fprintln(os.Stderr, "kindnet:", err)
			time.Sleep(time.Second)
		}
	}
}

// follow lists all nodes and watches them for a minute, so a removed route comes back.
func (k *kindnet) follow(ctx context.Context, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		k.apply(&nodes.Items[i])
	}
	minute := int64(60)
	watch, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: nodes.ResourceVersion, TimeoutSeconds: &minute})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if node, ok := event.Object.(*corev1.Node); ok {
			k.apply(node)
		}
	}
	return nil
}

func (k *kindnet) apply(node *corev1.Node) {
	if err := k.sync(node); err != nil {
		fmt.Fprintf(os.Stderr, "kindnet: node %s: %v\n", node.Name, err)
	}
}

func (k *kindnet) sync(node *corev1.Node) error {
	if node.Spec.PodCIDR == "" {
		return nil
	}
	if node.Name == k.self {
		return k.writeConfig(node.Spec.PodCIDR)
	}
	_, pods, err := net.ParseCIDR(node.Spec.PodCIDR)
	if err != nil {
		return err
	}
	for _, a := range node.Status.Addresses {
		if via := net.ParseIP(a.Address); a.Type == corev1.NodeInternalIP && via.To4() != nil {
			return netlink.RouteReplace(&netlink.Route{Dst: pods, Gw: via})
		}
	}
	return nil
}

// writeConfig replaces the file in one step: containerd reads it whenever it changes.
func (k *kindnet) writeConfig(cidr string) error {
	config := fmt.Sprintf(cniConfig, cidr, k.mtu)
	if k.written == config {
		return nil
	}
	if err := os.WriteFile(cniFile+".tmp", []byte(config), 0o644); err != nil {
		return err
	}
	if err := os.Rename(cniFile+".tmp", cniFile); err != nil {
		return err
	}
	k.written = config
	return nil
}
