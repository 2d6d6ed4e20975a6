package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Publications returns how this node reaches a volume.
type Publications interface {
	// Reach returns how the node reaches the volume of a, which is an earlier result or the
	// original publish. replayed is the generation of the publish under which the node has replayed
	// the log of the volume's filesystem, 0 if it has not: the storage then withdraws the publish,
	// as an unpublish does, and replaces it by a read-only one. Until that is done the error is
	// attach.ErrFailed; also while another host, which was mapped in between, replays the log
	// again.
	Reach(ctx context.Context, a attach.Attachment, replayed uint64) (attach.Attachment, error)
}

// ensureReplayed replays the log of a volume that was published for it, and returns the read-only
// publish (docs/decisions/0049). It may be interrupted at any point and repeated: a replayed log is
// empty, and nothing is mounted for use before the storage has made the publish read-only.
func (n *unlocked) ensureReplayed(ctx context.Context, r *record) (attach.Attachment, error) {
	p := n.cfg.Publications
	if p == nil {
		return attach.Attachment{}, failedPrecondition("the log of the filesystem must be replayed before the volume is mounted read-only, and the node plugin cannot report " +
			"the replay: start it with --enroll-endpoint, or with --pair-endpoint")
	}
	// An earlier call may have replayed the log already, perhaps before a restart of this process.
	was := *r.Published
	if r.Replayed != 0 {
		was = r.Attachment
	}
	a, err := p.Reach(ctx, was, r.Replayed)
	if err != nil || a.ReadOnly {
		return a, err
	}
	r.Attachment = a
	if err := n.save(r); err != nil {
		return a, err
	}
	if err := n.replay(ctx, r); err != nil {
		return a, err
	}
	r.Replayed = a.Generation
	if err := n.save(r); err != nil {
		return a, err
	}
	n.log.Info("replayed the log", "volume", r.VolumeID, "fs", r.FSType, "generation", a.Generation)
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	for {
		now, err := p.Reach(ctx, a, a.Generation)
		if err == nil && now.ReadOnly || err != nil && !errors.Is(err, attach.ErrFailed) {
			return now, err
		}
		select {
		case <-time.After(reachPause):
		case <-ctx.Done():
			return a, status.Errorf(codes.Unavailable, "the log was replayed, but the volume is not published read-only yet: %v (%v)", err, context.Cause(ctx))
		}
	}
}

const (
	reachPause = 500 * time.Millisecond // poll interval for the read-only publish
	reachLimit = time.Minute            // limit of one call; the next call continues
)

// replay mounts the filesystem for writing at a private path, and unmounts it. An unmount does not
// report failed writes, so the filesystem is then mounted read-only: the kernel rejects that while
// the log is dirty. The volume is attached again each time, so that no cached data of the kernel is
// used.
func (n *unlocked) replay(ctx context.Context, r *record) error {
	for _, ro := range []bool{false, true} {
		a := r.Attachment
		a.ReadOnly = ro
		device, err := n.attach(ctx, a)
		if err == nil {
			err = n.mountOnce(ctx, r, device, ro)
		}
		if err == nil {
			err = n.cfg.Attacher.Detach(ctx, r.VolumeID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// replayPath is where a filesystem is mounted while its log is replayed.
func (n *unlocked) replayPath(id string) string {
	return filepath.Join(n.cfg.StateDir, "replay", id)
}

// mountOnce mounts and unmounts the filesystem.
func (n *unlocked) mountOnce(ctx context.Context, r *record, device string, ro bool) (err error) {
	path := n.replayPath(r.VolumeID)
	if err := n.unmountReplay(ctx, r.VolumeID); err != nil {
		return err
	}
	cmd, cancel := commands(ctx)
	defer cancel()
	fm := mount.NewSafeFormatAndMount(n.mounter, cmd)
	format, err := fm.GetDiskFormat(device)
	switch {
	case err != nil:
		return fmt.Errorf("probe %s: %w", device, err)
	case format == "":
		return failedPrecondition("the volume has no filesystem and is published read-only, so it is not formatted: publish it for writing first")
	case format != r.FSType:
		return failedPrecondition("the volume contains %s, not %s: use a StorageClass with the filesystem of the volume", format, r.FSType)
	}
	if err := setReadOnly(device, ro); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	// The options protect against the content of the volume. The mount options of the class are not
	// used here: one of them could prevent the replay. There is no fsck before: it would replace a
	// damaged log of ext4 by an empty one without an error.
	options := append(mountOptions(r.FSType, ro), "nosuid", "nodev", "noexec")
	if err := n.mounter.Mount(device, path, r.FSType, options); err != nil {
		if cmd.ctx.Err() != nil {
			return fmt.Errorf("replay: mount %s: %w", device, errors.Join(err, cmd.ctx.Err()))
		}
		return failedPrecondition("the log of the filesystem cannot be replayed, so the volume is not mounted: synced files would be missing (%v). See dmesg on this worker "+
			"for the reason. If the filesystem is damaged, restore its source for writing (ReadWriteOnce), repair it there, and take another snapshot; or set the mount option %s, with which it is "+
			"mounted without the content of its log", err, withoutLog[r.FSType])
	}
	return n.unmountReplay(ctx, r.VolumeID)
}

// withoutLog is the mount option that skips the replay of the log.
var withoutLog = map[string]string{"xfs": "norecovery", "ext4": "noload"}

// unmountReplay removes the mount of replay, if it exists.
func (n *unlocked) unmountReplay(ctx context.Context, id string) error {
	path := n.replayPath(id)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unmountAll(ctx, path, false); err != nil {
		return err
	}
	return removePath(path)
}

// setReadOnly sets the read-only flag of a device. A dm-multipath map appears writable although its
// LUN is not; but the kernel rejects a filesystem with a dirty log only on a read-only device.
func setReadOnly(device string, ro bool) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	is, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	if err != nil || (is != 0) == ro {
		return err
	}
	want := 0
	if ro {
		want = 1
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, want); err != nil {
		return fmt.Errorf("device %s: read-only %v: %w", device, ro, err)
	}
	return nil
}
