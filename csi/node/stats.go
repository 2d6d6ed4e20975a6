package node

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
)

// statLimit bounds the wait for a filesystem's statistics.
const statLimit = 5 * time.Second

func (n *unlocked) stats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	r, err := n.find(req.VolumeId, req.VolumePath, "volume_path")
	if err != nil {
		return nil, err
	}
	st, err := n.cfg.Attacher.Status(ctx, req.VolumeId)
	if err != nil {
		return nil, err
	}
	if r.Block {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: st.Size}}}, nil
	}
	// Without this, a path that is not mounted would report the filesystem of the machine.
	if m, err := mountAt(req.VolumePath); err != nil || !shows(m, st.Rdev) {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %s (%v)", req.VolumeId, req.VolumePath, err)
	}
	fs, err := n.statfs(ctx, req.VolumePath)
	if err != nil {
		return nil, err
	}
	bs := fs.Bsize
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(fs.Blocks) * bs, Available: int64(fs.Bavail) * bs, Used: int64(fs.Blocks-fs.Bfree) * bs},
		{Unit: csi.VolumeUsage_INODES, Total: int64(fs.Files), Available: int64(fs.Ffree), Used: int64(fs.Files - fs.Ffree)},
	}}, nil
}

// statfs does not wait for a filesystem that hangs, and starts no second call while one hangs: each
// would block a thread.
func (n *unlocked) statfs(ctx context.Context, path string) (unix.Statfs_t, error) {
	n.statMu.Lock()
	if _, ok := n.stuck[path]; ok {
		n.statMu.Unlock()
		return unix.Statfs_t{}, status.Errorf(codes.Unavailable, "an earlier request to the filesystem at %s still hangs", path)
	}
	n.stuck[path] = struct{}{}
	n.statMu.Unlock()

	type answer struct {
		fs  unix.Statfs_t
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.err = unix.Statfs(path, &a.fs)
		n.statMu.Lock()
		delete(n.stuck, path)
		n.statMu.Unlock()
		done <- a
	}()
	ctx, cancel := context.WithTimeout(ctx, statLimit)
	defer cancel()
	select {
	case a := <-done:
		if a.err != nil {
			return a.fs, fmt.Errorf("%w: statfs %s: %w", attach.ErrFailed, path, a.err)
		}
		return a.fs, nil
	case <-ctx.Done():
		return unix.Statfs_t{}, status.Errorf(codes.DeadlineExceeded, "the filesystem at %s does not respond: %v", path, ctx.Err())
	}
}
