package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/work"
	"github.com/gemel-storage/gemel/internal/clock"
	"github.com/gemel-storage/gemel/internal/cpulimit"
)

// Outside is what a node reaches of the world beside its disks. The zero value is the real world. A
// simulation (package nodesim) gives another one, to run whole nodes under a clock, a network and
// an arbiter of its own.
type Outside struct {
	Clock func() int64               // ns, as CLOCK_BOOTTIME
	Wall  func() (ns int64, ok bool) // how far CLOCK_REALTIME is ahead of Clock; not ok: not known at this moment
	CPU   func() time.Duration       // that this process has used

	// Disk returns how to read what was counted of the disk under a directory, or why that cannot
	// be known. A later error means: not at this moment.
	Disk func(dir string) (read func() (work.Disk, error), err error)

	Boot    string          // id of the operating system's boot
	Arbiter arbiter.Arbiter // in place of the one that Config.Arbiter names
	Listen  func(ctx context.Context, network, addr string) (net.Listener, error)
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error) // to the peer
}

func (o *Outside) defaults() error {
	if o.Clock == nil {
		o.Clock = clock.Boottime
	}
	if o.Wall == nil {
		o.Wall = clock.WallOffset
	}
	if o.CPU == nil {
		o.CPU = cpulimit.Used
	}
	if o.Disk == nil {
		o.Disk = realDisk
	}
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Boot != "" {
		return nil
	}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("cannot read the boot id, which shows whether the page cache survived a restart: %w", err)
	}
	o.Boot = strings.TrimSpace(string(b))
	return nil
}

// boottime is this node's clock.
func (n *Node) boottime() int64 { return n.cfg.Outside.Clock() }
