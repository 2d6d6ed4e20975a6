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

// Publications is the storage's word on how this node reaches a volume.
type Publications interface {
	// Reach says how the node reaches the volume of a, an earlier answer or what the publish said. replayed is the generation of the publish
	// under which the node has replayed the log of the volume's filesystem, 0 if it has not: told that, the storage withdraws the publish,
	// as an unpublish does, and makes a read-only one in its place. Until that is done the error is attach.ErrFailed; also while another host, which
	// came between the two, replays the log once more.
	Reach(ctx context.Context, a attach.Attachment, replayed uint64) (attach.Attachment, error)
}

// replayed gives the read-only publish of a volume that was published for its log to be replayed (docs/decisions/0049). What it does can be cut short
// anywhere and done again: a log that was replayed is empty, and nothing is mounted for use before the storage has taken the right to write away.
func (n *unlocked) replayed(ctx context.Context, r *record) (attach.Attachment, error) {
	p := n.cfg.Publications
	if p == nil {
		return attach.Attachment{}, failedPrecondition("the log of the filesystem has to be replayed before the volume is mounted read-only, and this node plugin does not know " +
			"whom to tell when that is done: start it with --enroll-endpoint, or with --pair-endpoint")
	}
	// Another call may have come so far already, or another life of this process.
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
	n.log.Info("the log is replayed", "volume", r.VolumeID, "fs", r.FSType, "generation", a.Generation)
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
			return a, status.Errorf(codes.Unavailable, "the log is replayed, and the volume is not published read-only yet: %v (%v)", err, context.Cause(ctx))
		}
	}
}

const (
	reachPause = 500 * time.Millisecond // between two questions whether the volume is published read-only
	reachLimit = time.Minute            // for all of them; the next call asks again
)

// replay mounts the filesystem for writing where nobody looks, and takes it away again. An unmount does not tell whether what it wrote has arrived,
// so the filesystem is mounted once more, without the right to write: the kernel refuses that while the log is dirty. Either time the volume
// is attached again: nothing that the kernel remembers of it is believed.
func (n *unlocked) replay(ctx context.Context, r *record) error {
	for _, ro := range []bool{false, true} {
		a := r.Attachment
		a.ReadOnly = ro
		device, err := n.attach(ctx, a)
		if err == nil {
			err = n.visit(ctx, r, device, ro)
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

// visit mounts and unmounts.
func (n *unlocked) visit(ctx context.Context, r *record, device string, ro bool) (err error) {
	path := n.replayPath(r.VolumeID)
	if err := n.leave(ctx, r.VolumeID); err != nil {
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
		return failedPrecondition("the volume holds no filesystem, and is published read-only: it is not formatted")
	case format != r.FSType:
		return failedPrecondition("the volume holds %s, not %s", format, r.FSType)
	}
	if err := setReadOnly(device, ro); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	// Nobody is to come by what the volume holds this way. Mount options of the volume's class are for its use: one of them could keep the log
	// from being replayed. No fsck before: where it finds the log of ext4 damaged, it makes an empty one and is content.
	options := append(mountOptions(r.FSType, ro), "nosuid", "nodev", "noexec")
	if err := n.mounter.Mount(device, path, r.FSType, options); err != nil {
		if cmd.ctx.Err() != nil {
			return fmt.Errorf("replay: mount %s: %w", device, errors.Join(err, cmd.ctx.Err()))
		}
		return failedPrecondition("the log of the filesystem cannot be replayed, and nothing is mounted: files that were synced would be missing (%v). dmesg on this worker "+
			"says why. If the filesystem is damaged: restore its source for writing (ReadWriteOnce), repair it there, and take another snapshot; or set the mount option %s, with which it is "+
			"mounted as it is, without what its log holds", err, withoutLog[r.FSType])
	}
	return n.leave(ctx, r.VolumeID)
}

// withoutLog is the mount option that leaves a log alone.
var withoutLog = map[string]string{"xfs": "norecovery", "ext4": "noload"}

// leave takes the mount away that replay made, if it is there.
func (n *unlocked) leave(ctx context.Context, id string) error {
	path := n.replayPath(id)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unmountAll(ctx, path, false); err != nil {
		return err
	}
	return removePath(path)
}

// setReadOnly has the kernel take a device for what it is. A map of dm-multipath shows itself as writable although its LUN is not; a filesystem
// with a dirty log is refused only on a device that does not.
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
