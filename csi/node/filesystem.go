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

// boundExec runs every command with the context's deadline, and kills it when that comes.
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

// formatOptions of mkfs. Discarding a thin LUN that was never written is work for nothing. Sectors of 4 KiB spare the target
// reading before writing, and such a filesystem mounts from any block size up to that.
var formatOptions = map[string][]string{
	"xfs":  {"-K", "-s", "size=4096"},
	"ext4": {"-b", "4096", "-E", "nodiscard"},
}

// mountOptions are needed for reasons of ours. A clone or a restored snapshot has the UUID of its source, and XFS refuses
// a second one of the same UUID on a node, so all are mounted with nouuid. On a LUN that refuses writes, the log cannot be replayed: it was
// before (replay), and if not, the mount is to fail. norecovery and noload would leave out files that were synced, and not say so.
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

// mountDevice formats a device that is empty, grows a filesystem that is smaller than its device, and mounts it. What is
// mounted already is verified instead: mounts are never stacked.
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
			n.log.Warn("an mkfs.xfs was cut short on this volume: it is made again", "volume", r.VolumeID, "device", device)
		}
	}
	format, err := fm.GetDiskFormat(device)
	switch {
	case err != nil:
		return fmt.Errorf("probe %s: %w", device, err)
	case format != "" && format != r.FSType:
		return failedPrecondition("the volume holds %s, not %s: it is not formatted again", format, r.FSType)
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
			return failedPrecondition("the filesystem cannot be mounted read-only: %v. If dmesg on this worker says that recovery is required, its log was never replayed, and files that were "+
				"synced would be missing: end the pods that use the volume, on every worker; the first one that it is published to after that replays the log", err)
		}
		return fmt.Errorf("mount %s: %w", device, errors.Join(err, cmd.ctx.Err()))
	}
	if m, err = mountAt(r.Staging); err != nil || !shows(m, st.Rdev) {
		return fmt.Errorf("%w: after mounting %s, %s shows another device (%v)", attach.ErrFailed, device, r.Staging, err)
	}
	if format == "xfs" && !ro {
		// A clone or restored snapshot may be larger than its source.
		if _, err := cmd.run("xfs_growfs", "-d", r.Staging); err != nil {
			return err
		}
	}
	return nil
}

// growExt4 grows an unmounted filesystem to its device.
func growExt4(cmd boundExec, device string, size int64) error {
	have, err := ext4Size(cmd, device)
	if err != nil || size-have < 4096 {
		return err
	}
	// resize2fs wants a check right before. e2fsck: 1 is "errors corrected".
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
		return 0, errors.New("dumpe2fs: no block count and size in its output")
	}
	return blocks * size, nil
}

// grow makes a mounted filesystem as large as its device.
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
		// Some kernels do not let ext4 grow while it is mounted.
		return failedPrecondition("the device has grown to %d bytes, but ext4 could not follow while it is mounted (%v): it will when the volume is staged the next time",
			st.Size, err)
	}
	return nil
}
