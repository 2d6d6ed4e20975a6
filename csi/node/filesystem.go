package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/gemel-storage/gemel/csi/attach"
)

// boundExec runs every command with the context's deadline, and kills it at the deadline.
type boundExec struct {
	utilexec.Interface
	ctx context.Context
}

func (e boundExec) Command(cmd string, args ...string) utilexec.Cmd {
	return e.CommandContext(e.ctx, cmd, args...)
}

// run executes a command; its output is in the error.
func (e boundExec) run(cmd string, args ...string) (string, error) {
	out, err := e.Command(cmd, args...).CombinedOutput()
	if e.ctx.Err() != nil {
		err = context.Cause(e.ctx)
	}
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", cmd, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func commands(ctx context.Context) (boundExec, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	return boundExec{utilexec.New(), ctx}, cancel
}

// formatOptions of mkfs. Discarding a thin LUN that was never written is useless. Sectors of 4 KiB
// save the target from reading before writing, and such a filesystem mounts with any block size up
// to 4 KiB.
var formatOptions = map[string][]string{
	"xfs":  {"-K", "-s", "size=4096"},
	"ext4": {"-b", "4096", "-E", "nodiscard"},
}

// mountOptions that the driver adds. A clone or a restored snapshot has the UUID of its source, and
// XFS rejects a second filesystem with the same UUID on a node, so all are mounted with nouuid. On
// a read-only LUN the log cannot be replayed: it was replayed before (replay), and otherwise the
// mount must fail. With norecovery or noload, synced files would be silently missing.
func mountOptions(fstype string, ro bool) []string {
	switch {
	case fstype == "xfs" && ro:
		return []string{"nouuid", "ro"}
	case fstype == "xfs":
		return []string{"nouuid"}
	case ro:
		return []string{"ro"}
	}
	return nil
}

// mountDevice formats an empty device, grows a filesystem that is smaller than its device, and
// mounts it. An existing mount is verified instead: mounts are never stacked.
func (n *unlocked) mountDevice(ctx context.Context, r *record, device string) error {
	st, err := n.cfg.Attacher.Status(ctx, r.VolumeID)
	if err != nil {
		return err
	}
	m, err := mountAt(r.Staging)
	switch {
	case err != nil:
		return err
	case shows(m, st.Rdev):
		return nil
	case m != nil:
		return failedPrecondition("%s is a mount point of %s already", r.Staging, m.Source)
	}
	if err := os.MkdirAll(r.Staging, 0o750); err != nil {
		return fmt.Errorf("staging path: %w", err)
	}
	cmd, cancel := commands(ctx)
	defer cancel()
	fm := mount.NewSafeFormatAndMount(n.mounter, cmd)
	ro := r.Attachment.ReadOnly
	if !ro {
		wiped, err := wipeUnfinished(device)
		if err != nil {
			return err
		}
		if wiped {
			n.log.Warn("found an incomplete mkfs.xfs on this volume: formatting it again", "volume", r.VolumeID, "device", device)
		}
	}
	format, err := fm.GetDiskFormat(device)
	switch {
	case err != nil:
		return fmt.Errorf("probe %s: %w", device, err)
	case format != "" && format != r.FSType:
		return failedPrecondition("the volume contains %s, not %s, and is not formatted: use a StorageClass with the filesystem of the volume, or delete the data", format, r.FSType)
	case format == "ext4" && !ro:
		if err := growExt4(cmd, device, st.Size); err != nil {
			return err
		}
	}
	if ro {
		if err := setReadOnly(device, true); err != nil {
			return err
		}
	}
	options := append(mountOptions(r.FSType, ro), r.Flags...)
	if err := fm.FormatAndMountSensitiveWithFormatOptions(device, r.Staging, r.FSType, options, nil, formatOptions[r.FSType]); err != nil {
		if ro && format != "" && cmd.ctx.Err() == nil {
			return failedPrecondition("the filesystem cannot be mounted read-only: %v. If dmesg on this worker says that recovery is required, the log was never replayed, and files that were "+
				"synced would be missing: delete the pods that use the volume, on every worker; the first worker that it is published to afterwards replays the log", err)
		}
		return fmt.Errorf("mount %s: %w", device, errors.Join(err, cmd.ctx.Err()))
	}
	if m, err = mountAt(r.Staging); err != nil || !shows(m, st.Rdev) {
		return fmt.Errorf("%w: after mounting %s, %s has another device (%v)", attach.ErrFailed, device, r.Staging, err)
	}
	if format == "xfs" && !ro {
		// A clone or restored snapshot may be larger than its source.
		if _, err := cmd.run("xfs_growfs", "-d", r.Staging); err != nil {
			return err
		}
	}
	return nil
}

// growExt4 grows an unmounted filesystem to the size of its device.
func growExt4(cmd boundExec, device string, size int64) error {
	have, err := ext4Size(cmd, device)
	if err != nil || size-have < 4096 {
		return err
	}
	// resize2fs requires a check right before. e2fsck: exit code 1 is "errors corrected".
	if out, err := cmd.Command("e2fsck", "-f", "-p", device).CombinedOutput(); err != nil {
		var exit utilexec.ExitError
		if !errors.As(err, &exit) || exit.ExitStatus() > 1 {
			return fmt.Errorf("e2fsck %s: %w: %s", device, err, strings.TrimSpace(string(out)))
		}
	}
	_, err = cmd.run("resize2fs", device)
	return err
}

// ext4Size reads the size in bytes from the superblock.
func ext4Size(cmd boundExec, device string) (int64, error) {
	out, err := cmd.run("dumpe2fs", "-h", device)
	if err != nil {
		return 0, err
	}
	return parseExt4Size(out)
}

func parseExt4Size(out string) (int64, error) {
	var blocks, size int64
	for line := range strings.SplitSeq(out, "\n") {
		k, v, _ := strings.Cut(line, ":")
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		switch {
		case k == "Block count" && err == nil:
			blocks = n
		case k == "Block size" && err == nil:
			size = n
		}
	}
	if blocks <= 0 || size <= 0 {
		return 0, errors.New("dumpe2fs: the output has no block count and block size")
	}
	return blocks * size, nil
}

// grow grows a mounted filesystem to the size of its device.
func (n *unlocked) grow(ctx context.Context, r *record, st attach.Status) error {
	cmd, cancel := commands(ctx)
	defer cancel()
	if r.FSType == "xfs" {
		_, err := cmd.run("xfs_growfs", "-d", r.Staging)
		return err
	}
	if have, err := ext4Size(cmd, st.Device); err != nil || st.Size-have < 4096 {
		return err
	}
	if _, err := cmd.run("resize2fs", st.Device); err != nil {
		// Some kernels cannot grow a mounted ext4.
		return failedPrecondition("the device has grown to %d bytes, but ext4 cannot grow while it is mounted (%v): it will grow when the volume is staged the next time; delete the pods that use the volume on this node",
			st.Size, err)
	}
	return nil
}
