package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

// Options of a guest.
type Options struct {
	Name   string // its host name; also its folder's
	Number int    // 1 to 99, different for every guest: addresses of its network cards
	Dir    string // below which it keeps disk, console and log
	// Bridges that its two storage cards, eth1 and eth2, are plugged into, and the address of each
	// as address/bits.
	Bridges, Addresses [2]string
}

// Guest is a running worker.
type Guest struct {
	*guest.Client
	o Options
	m *machine
}

// Clone starts a guest from the saved machine and gives it an identity of its own. iscsid and
// multipathd do not run yet: they read their identity when they start.
func (l Lab) Clone(ctx context.Context, o Options) (*Guest, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	dir := filepath.Join(o.Dir, o.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	disk := filepath.Join(dir, "disk.qcow2")
	if err := overlay(ctx, disk, l.savedDisk(), "qcow2"); err != nil {
		return nil, err
	}
	var wires [2]string
	for i, bridge := range o.Bridges {
		tap := o.tap(i)
		if err := addTap(ctx, tap, bridge); err != nil {
			return nil, err
		}
		wires[i] = fmt.Sprintf("tap,id=s%d,ifname=%s,script=no,downscript=no", i, tap)
	}
	m, err := l.start(ctx, dir, disk, wires, "-incoming", fmt.Sprintf("exec:cat '%s'", l.savedState()))
	if err != nil {
		return nil, fmt.Errorf("guest %s: %w", o.Name, err)
	}
	g := &Guest{m.agent, o, m}
	if err := g.resume(ctx); err != nil {
		g.Close()
		return nil, fmt.Errorf("guest %s: %w", o.Name, err)
	}
	return g, nil
}

func (g *Guest) resume(ctx context.Context) error {
	if err := g.m.monitor.migrated(ctx); err != nil {
		return err
	}
	if _, err := g.m.monitor.command(ctx, "cont", nil); err != nil {
		return err
	}
	if err := g.m.waitReady(ctx, time.Minute); err != nil {
		return err
	}
	return g.identify(ctx)
}

// identify gives the guest what tells it from its brothers: clones share one memory image, its
// clock included.
func (g *Guest) identify(ctx context.Context) error {
	line := fmt.Sprintf("date -s @%d.%09d >/dev/null; hostname %s; echo %032x >/etc/machine-id; echo InitiatorName=iqn.2024-01.lab:%s >/etc/iscsi/initiatorname.iscsi",
		time.Now().Unix(), time.Now().Nanosecond(), g.o.Name, 0x6e6d0000+g.o.Number, g.o.Name)
	for i, a := range g.o.Addresses {
		line += fmt.Sprintf("; ip link set eth%d address 52:54:00:0%x:00:%02x; ip link set eth%d up; ip addr replace %s dev eth%d", i+1, 0xa+i, g.o.Number, i+1, a, i+1)
	}
	_, err := g.Shell(ctx, "set -e; "+line)
	return err
}

// Reset restarts the guest as a power failure does: what was not on its disk is gone, connections
// are not closed. It comes back with its identity and without daemons.
func (g *Guest) Reset(ctx context.Context) error {
	if _, err := g.Shell(ctx, "rm -f /run/lab-ready"); err != nil { // the answer of the old one must not pass for the new one's
		return err
	}
	if _, err := g.m.monitor.command(ctx, "system_reset", nil); err != nil {
		return err
	}
	if err := g.m.waitReady(ctx, 3*time.Minute); err != nil {
		return err
	}
	return g.identify(ctx)
}

// Freeze stops the guest between two instructions; Thaw lets it continue, its clocks having
// stopped.
func (g *Guest) Freeze(ctx context.Context) error {
	_, err := g.m.monitor.command(ctx, "stop", nil)
	return err
}

// Thaw: see Freeze.
func (g *Guest) Thaw(ctx context.Context) error {
	_, err := g.m.monitor.command(ctx, "cont", nil)
	return err
}

// Console is the file with what the kernel printed.
func (g *Guest) Console() string { return filepath.Join(g.m.dir, "console") }

// Close ends the guest and unplugs it.
func (g *Guest) Close() {
	g.m.close()
	for i := range g.o.Bridges {
		_ = exec.Command("ip", "link", "del", g.o.tap(i)).Run() // goes with the namespace anyhow
	}
}

func (o Options) tap(i int) string { return fmt.Sprintf("tap%d%c", o.Number, 'a'+rune(i)) }

// addTap plugs a card into a bridge that exists.
func addTap(ctx context.Context, tap, bridge string) error {
	for _, args := range [][]string{{"tuntap", "add", tap, "mode", "tap"}, {"link", "set", tap, "master", bridge, "up"}} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}
