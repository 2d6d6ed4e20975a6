package chaos

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/gemel-storage/gemel/internal/testkit/lab"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// Supported says why a run is not possible on this machine; nil if it is.
func Supported() error {
	if err := lab.CanMount(); err != nil {
		return err
	}
	for cmd, pkg := range map[string]string{"ip": "iproute2", "tc": "iproute2", "nft": "nftables"} {
		if _, err := exec.LookPath(cmd); err != nil {
			return fmt.Errorf("%s is missing (Debian package %s)", cmd, pkg)
		}
	}
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	// A trial of everything that is needed of the kernel, where it can do no harm.
	return errors.Join(
		ns.Command("ip", "link", "add", "x", "type", "veth", "peer", "name", "y"),
		ns.NFT("table inet t { chain i { type filter hook input priority 0; iifname \"x\" numgen random mod 100 < 5 drop\n"+
			"iifname \"x\" meta l4proto tcp reject with tcp reset\n}\n}\n"),
		ns.Command("tc", "qdisc", "add", "dev", "x", "root", "tbf", "rate", "1mbit", "burst", "16kb", "latency", "1s"))
}
