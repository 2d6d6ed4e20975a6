package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
)

// table is that of a striped map as the kernel has it; empty: it has none, or is gone.
func (l *linux) table(ctx context.Context, m dmMap) (string, error) {
	out, err := l.run(ctx, toolLimit, "dmsetup", "table", "--uuid", m.uuid)
	if errors.Is(err, errExit) {
		return "", nil
	}
	return strings.TrimSpace(out), err
}

// makeStripes makes a striped map. dmsetup takes three calls to the kernel for that; one that is
// killed between them leaves a device without a table, which the next plan removes.
func (l *linux) makeStripes(ctx context.Context, volume, table string) error {
	_, err := l.run(ctx, toolLimit, "dmsetup", "create", stripedName(volume), "--uuid", stripedUUID(volume), "--table", table)
	return err
}

// growStripes loads a larger table, and swaps it in. The kernel suspends the device for that by
// itself, which can be interrupted: a suspend of its own would freeze the filesystem, which waits
// for a LUN that does not answer, and could not be killed.
func (l *linux) growStripes(ctx context.Context, m dmMap, table string) error {
	if _, err := l.run(ctx, toolLimit, "dmsetup", "load", "--uuid", m.uuid, "--table", table); err != nil {
		return err
	}
	_, err := l.run(ctx, toolLimit, "dmsetup", "resume", "--noflush", "--nolockfs", "--uuid", m.uuid)
	return err
}

// dropStripes removes a striped map that is not in use. What was written to it went to its LUNs
// when its last user closed it. The process that has it open is mostly udev, for a moment.
func (l *linux) dropStripes(ctx context.Context, m dmMap) error {
	if u := m.users(); len(u) > 0 {
		return fmt.Errorf("%w: /dev/%s is used by %s", attach.ErrBusy, m.kernel, strings.Join(u, ", "))
	}
	_, err := l.run(ctx, toolLimit, "dmsetup", "remove", "--retry", "--uuid", m.uuid)
	if errors.Is(err, errExit) {
		err = nil // whether it is gone is observed
	}
	return err
}
