package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// Targets of LIO.
const (
	lioIQN  = "iqn.2026-11.storage.gemel:lio"
	drbdIQN = "iqn.2026-11.storage.gemel:lio-drbd"
)

// export makes a target of LIO with one LUN, on one portal, for every host. backstore is the line
// that its control file takes.
func (l *lab) export(ctx context.Context, driver, name, backstore, iqn, portal string) error {
	core := "/sys/kernel/config/target/core/" + driver + "_0/" + name
	tpg := "/sys/kernel/config/target/iscsi/" + iqn + "/tpgt_1"
	_, err := l.guests[0].Shell(ctx, strings.Join([]string{"set -e",
		"mkdir -p " + core, "echo -n '" + backstore + "' >" + core + "/control", "echo 1 >" + core + "/enable",
		"mkdir -p " + tpg + "/np/" + portal + " " + tpg + "/lun/lun_0", "ln -s " + core + " " + tpg + "/lun/lun_0/" + name,
		"cd " + tpg + "/attrib", "echo 0 >authentication", "echo 1 >generate_node_acls", "echo 1 >cache_dynamic_acls", "echo 0 >demo_mode_write_protect",
		"echo 1 >" + tpg + "/enable"}, "\n"))
	if err != nil {
		return fmt.Errorf("LIO: %w", err)
	}
	return nil
}

// lio serves a file of s1 with its page cache as write cache, as Gemel does. It is opened twice:
// the second is the control.
func (l *lab) lio(ctx context.Context, log *slog.Logger) (out []*system, err error) {
	g := l.guests[0]
	if err := modules(ctx, g, "target_core_mod", "target_core_file", "iscsi_target_mod"); err != nil {
		return nil, err
	}
	if _, err := g.Shell(ctx, fmt.Sprintf("truncate -s %d /srv/bench/lio", size)); err != nil {
		return nil, err
	}
	portal := hostIP[0] + ":3270"
	if err := l.export(ctx, "fileio", "file", fmt.Sprintf("fd_dev_name=/srv/bench/lio,fd_dev_size=%d,fd_buffered_io=1", size), lioIQN, portal); err != nil {
		return nil, err
	}
	for _, name := range []string{lioName, lioAgainName} {
		s, err := open(ctx, name, "LIO, a file of s1 with write cache, unmirrored", initiator.Config{Target: lioIQN, Portals: []string{portal}, Log: log})
		if err != nil {
			return out, err
		}
		out = append(out, s)
	}
	return out, nil
}

// resource of DRBD: protocol C, an answer when both nodes have the write; everything else is its
// default.
func resource() string {
	var b strings.Builder
	b.WriteString("resource r0 {\n  net { protocol C; }\n")
	for i, name := range guestName {
		fmt.Fprintf(&b, "  on %s {\n    device /dev/drbd0;\n    disk /dev/loop0;\n    address %s:7789;\n    meta-disk internal;\n  }\n", name, mirrorIP[i])
	}
	return b.String() + "}\n"
}

// metaRoom is what DRBD's own data takes of the disk, and more.
const metaRoom = 4 << 20

// drbd mirrors s1's disk, a loop device on a file, to s2's, and LIO serves it from s1.
func (l *lab) drbd(ctx context.Context, log *slog.Logger) ([]*system, error) {
	for _, g := range l.guests {
		if err := modules(ctx, g, "drbd", "loop", "target_core_mod", "target_core_iblock", "iscsi_target_mod"); err != nil {
			return nil, err
		}
		if err := g.Put(ctx, "/etc/drbd.d/r0.res", 0o644, []byte(resource())); err != nil {
			return nil, err
		}
		if _, err := g.Shell(ctx, fmt.Sprintf(`set -e
echo 'global { usage-count no; } include "drbd.d/*.res";' >/etc/drbd.conf
truncate -s %d /srv/bench/drbd
losetup /dev/loop0 /srv/bench/drbd
drbdadm create-md --force r0 </dev/null
drbdadm up r0`, size+metaRoom)); err != nil {
			return nil, fmt.Errorf("DRBD: %w", err)
		}
	}
	// Both disks are empty and alike: there is nothing to copy.
	s1 := l.guests[0]
	if err := l.drbdState(ctx, "cs:Connected"); err != nil {
		return nil, err
	}
	if _, err := s1.Shell(ctx, "drbdadm -- --clear-bitmap new-current-uuid r0 && drbdadm primary r0"); err != nil {
		return nil, fmt.Errorf("DRBD: %w", err)
	}
	if err := l.drbdState(ctx, "ds:UpToDate/UpToDate"); err != nil {
		return nil, err
	}
	portal := hostIP[0] + ":3271"
	if err := l.export(ctx, "iblock", "drbd", "udev_path=/dev/drbd0", drbdIQN, portal); err != nil {
		return nil, err
	}
	s, err := open(ctx, lioDRBDName, "LIO on DRBD, protocol C, files of s1 and s2 below loop devices", initiator.Config{Target: drbdIQN, Portals: []string{portal}, Log: log})
	if err != nil {
		return nil, err
	}
	return []*system{s}, nil
}

// drbdState waits until /proc/drbd of s1 says so.
func (l *lab) drbdState(ctx context.Context, want string) error {
	for {
		out, err := l.guests[0].Shell(ctx, "cat /proc/drbd")
		if err == nil && strings.Contains(out, want) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("DRBD is not %s: %w (%v): %s", want, ctx.Err(), err, out)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
