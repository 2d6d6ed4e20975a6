package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/capability"
)

func (n *unlocked) publish(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := absolute("target_path", req.TargetPath); err != nil {
		return nil, err
	}
	if req.VolumeCapability == nil {
		return nil, invalid("volume_capability is missing")
	}
	access, err := capability.Parse(req.VolumeCapability)
	if err != nil {
		return nil, invalid("volume_capability: %v", err)
	}
	if req.StagingTargetPath == "" {
		return nil, failedPrecondition("staging_target_path is missing")
	}
	r, err := n.load(req.VolumeId)
	switch {
	case err != nil:
		return nil, err
	case r == nil || r.Staging != filepath.Clean(req.StagingTargetPath):
		return nil, failedPrecondition("volume %s is not staged at %s", req.VolumeId, req.StagingTargetPath)
	case r.Block != access.Block || r.FSType != access.FSType:
		return nil, invalid("volume_capability: the volume is staged with another access type")
	}
	st, err := n.cfg.Attacher.Status(ctx, req.VolumeId)
	if err != nil {
		return nil, err
	}
	want := target{Path: filepath.Clean(req.TargetPath), ReadOnly: req.Readonly || access.ReadOnly() || r.Attachment.ReadOnly}
	for _, t := range r.Targets {
		if t.Path == want.Path {
			continue
		}
		// "FAILED_PRECONDITION: Indicates that a volume corresponding to the specified volume_id
		// has already been published at another target_path [...] with SINGLE_NODE_SINGLE_WRITER
		// access mode."
		if m, err := mountAt(t.Path); access.SingleWriter() && (m != nil || err != nil) {
			return nil, failedPrecondition("volume %s is published at %s, and its access mode does not allow a second path", req.VolumeId, t.Path)
		}
	}
	m, err := mountAt(want.Path)
	if err != nil {
		return nil, err
	}
	if m != nil {
		old, known := r.target(want.Path)
		right := r.Block && isDevice(want.Path, st.Rdev) || !r.Block && shows(m, st.Rdev)
		switch {
		// "This operation MUST be idempotent. If the volume corresponding to the volume_id has
		// already been published at the specified target_path, and is compatible with the specified
		// volume_capability and readonly flag, the Plugin MUST reply 0 OK."
		case right && known && old.ReadOnly == want.ReadOnly && (r.Block || readOnly(m) == want.ReadOnly):
			return &csi.NodePublishVolumeResponse{}, nil
		case right && known:
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is published at %s with another readonly flag", req.VolumeId, want.Path)
		case !known:
			return nil, failedPrecondition("%s is a mount point of %s already", want.Path, m.Source)
		}
		// Our mount, but of a device that is gone.
		if err := unmountAll(ctx, want.Path, true); err != nil {
			return nil, err
		}
	}
	r.without(want.Path)
	r.Targets = append(r.Targets, want)
	if err := n.save(r); err != nil {
		return nil, err
	}
	if err := n.bind(r, st, want); err != nil {
		return nil, err
	}
	n.log.Info("published", "volume", req.VolumeId, "path", want.Path, "readOnly", want.ReadOnly)
	return &csi.NodePublishVolumeResponse{}, nil
}

// bind mounts the filesystem or the device node at the target. For a device the read-only flag of
// the mount has no effect; only the LUN makes it read-only.
func (n *unlocked) bind(r *record, st attach.Status, t target) error {
	source := r.Staging
	if r.Block {
		source = st.Device
		if err := os.MkdirAll(filepath.Dir(t.Path), 0o750); err != nil {
			return fmt.Errorf("target path: %w", err)
		}
		f, err := os.OpenFile(t.Path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("target path: %w", err)
		}
		if err == nil {
			_ = f.Close()
		}
	} else {
		m, err := mountAt(r.Staging)
		if err != nil {
			return err
		}
		if !shows(m, st.Rdev) {
			return failedPrecondition("volume %s is not mounted at %s: stage it again", r.VolumeID, r.Staging)
		}
		if err := os.MkdirAll(t.Path, 0o750); err != nil {
			return fmt.Errorf("target path: %w", err)
		}
	}
	options := []string{"bind"}
	if t.ReadOnly {
		options = append(options, "ro")
	}
	if err := n.mounter.Mount(source, t.Path, "", options); err != nil {
		return errors.Join(fmt.Errorf("bind mount at %s: %w", t.Path, err), unmountAll(context.Background(), t.Path, true))
	}
	return nil
}

func (n *unlocked) unpublish(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := absolute("target_path", req.TargetPath); err != nil {
		return nil, err
	}
	r, err := n.load(req.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := unmountAll(ctx, req.TargetPath, false); err != nil {
		return nil, err
	}
	// "The SP MUST delete the file or directory it created at this path."
	if err := removePath(req.TargetPath); err != nil {
		return nil, err
	}
	if r != nil {
		if _, ok := r.target(req.TargetPath); ok {
			r.without(req.TargetPath)
			if err := n.save(r); err != nil {
				return nil, err
			}
			n.log.Info("unpublished", "volume", req.VolumeId, "path", req.TargetPath)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n *unlocked) expand(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	r, err := n.find(req.VolumeId, req.VolumePath, "volume_path")
	if err != nil {
		return nil, err
	}
	size, err := n.cfg.Attacher.Resize(ctx, req.VolumeId)
	if err != nil {
		return nil, err
	}
	if size < req.CapacityRange.GetRequiredBytes() {
		return nil, status.Errorf(codes.Unavailable, "the LUN has %d bytes, and not yet the requested %d", size, req.CapacityRange.GetRequiredBytes())
	}
	if !r.Block && !r.Attachment.ReadOnly {
		st, err := n.cfg.Attacher.Status(ctx, req.VolumeId)
		if err != nil {
			return nil, err
		}
		if err := n.grow(ctx, r, st); err != nil {
			return nil, err
		}
	}
	n.log.Info("expanded", "volume", req.VolumeId, "size", size)
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// find returns the record of a volume at a path. "NOT_FOUND: Indicates that a volume corresponding
// to the specified volume_id does not exist on specified volume_path."
func (n *unlocked) find(id, path, field string) (*record, error) {
	if id == "" {
		return nil, invalid("volume_id is missing")
	}
	if path == "" {
		return nil, invalid("%s is missing", field)
	}
	r, err := n.load(id)
	if err != nil {
		return nil, err
	}
	if r == nil || !r.has(path) {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist at %s", id, path)
	}
	return r, nil
}
