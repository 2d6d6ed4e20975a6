package node

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/capability"
)

func (n *unlocked) stage(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	want, err := n.parseStage(req)
	if err != nil {
		return nil, err
	}
	have, err := n.load(req.VolumeId)
	if err != nil {
		return nil, err
	}
	if have != nil {
		same := have.published().Same(want.published())
		// "ALREADY_EXISTS: Indicates that a volume corresponding to the specified volume_id has
		// already been published at the specified staging_target_path but is incompatible with the
		// specified volume_capability."
		if same && (have.Staging != want.Staging || have.Block != want.Block || have.FSType != want.FSType || !slices.Equal(have.Flags, want.Flags)) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is staged at %s with another capability", req.VolumeId, have.Staging)
		}
		// "This operation MUST be idempotent. If the volume corresponding to the volume_id is
		// already staged to the staging_target_path, and is identical to the specified
		// volume_capability the Plugin MUST reply 0 OK."
		if same && n.staged(ctx, have) {
			return &csi.NodeStageVolumeResponse{}, nil
		}
		if same {
			want.Targets = have.Targets
			if want.Published != nil {
				want.Attachment, want.Replayed = have.Attachment, have.Replayed
			}
		} else if err := n.clearOld(ctx, have); err != nil {
			return nil, err
		}
	}
	if err := n.save(want); err != nil { // before anything is done that would have to be undone
		return nil, err
	}
	if want.Published != nil {
		if want.Attachment, err = n.ensureReplayed(ctx, want); err != nil {
			return nil, err
		}
		if err := n.save(want); err != nil {
			return nil, err
		}
	}
	device, err := n.attach(ctx, want.Attachment)
	if err != nil {
		return nil, err
	}
	if !want.Block {
		if err := n.mountDevice(ctx, want, device); err != nil {
			return nil, err
		}
	}
	n.log.Info("staged", "volume", req.VolumeId, "device", device, "path", want.Staging, "fs", want.FSType)
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *unlocked) parseStage(req *csi.NodeStageVolumeRequest) (*record, error) {
	if err := absolute("staging_target_path", req.StagingTargetPath); err != nil {
		return nil, err
	}
	if req.VolumeCapability == nil {
		return nil, invalid("volume_capability is missing")
	}
	access, err := capability.Parse(req.VolumeCapability)
	if err != nil {
		return nil, invalid("volume_capability: %v", err)
	}
	if !attach.ValidID(req.VolumeId) {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist", req.VolumeId)
	}
	a, err := attach.FromPublishContext(req.VolumeId, req.PublishContext)
	if err != nil {
		return nil, err
	}
	if a.HostIQN != n.cfg.IQN {
		return nil, failedPrecondition("the volume is published to %s, but the iSCSI name of this node is %s: delete the pods that use the volume on this node, so that it is published again", a.HostIQN, n.cfg.IQN)
	}
	if a.Auth, a.MutualAuth, err = attach.ParseSecrets(req.Secrets); err != nil {
		return nil, err
	}
	r := &record{VolumeID: req.VolumeId, Attachment: a, Staging: filepath.Clean(req.StagingTargetPath),
		Block: access.Block, FSType: access.FSType, Flags: access.Flags}
	switch {
	case a.Replay && access.Block:
		return nil, invalid("volume_capability: the volume was published for a filesystem")
	case a.Replay:
		r.Published = &a
	}
	return r, nil
}

// staged reports whether the state of the record exists and serves.
func (n *unlocked) staged(ctx context.Context, r *record) bool {
	st, err := n.cfg.Attacher.Status(ctx, r.VolumeID)
	if err != nil || !st.Attachment.Same(r.Attachment) || r.Attachment.Replay {
		return false
	}
	if r.Block {
		return true
	}
	m, err := mountAt(r.Staging)
	return err == nil && shows(m, st.Rdev)
}

// clearOld removes what an earlier publish left here: the node was fenced, and the LUN may have
// been changed by another host. Nothing of it may be written; the attacher, which is called next
// with the new publish, ends what serves the old device first and unmounts its filesystem
// everywhere. It does not see publications of raw devices, so they are removed here.
func (n *unlocked) clearOld(ctx context.Context, r *record) error {
	n.log.Warn("removing an earlier publish of the volume that is still staged", "volume", r.VolumeID, "generation", r.Attachment.Generation)
	if !r.Block {
		return nil
	}
	for _, t := range r.Targets {
		if err := unmountAll(ctx, t.Path, true); err != nil {
			return err
		}
	}
	return nil
}

// unstage works from the record alone, whatever is already gone.
func (n *unlocked) unstage(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := absolute("staging_target_path", req.StagingTargetPath); err != nil {
		return nil, err
	}
	r, err := n.load(req.VolumeId)
	if err != nil {
		return nil, err
	}
	// "If the volume corresponding to the volume_id is not staged to the staging_target_path, the
	// Plugin MUST reply 0 OK."
	if r == nil {
		if attach.ValidID(req.VolumeId) {
			return &csi.NodeUnstageVolumeResponse{}, n.cfg.Attacher.Detach(ctx, req.VolumeId)
		}
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if r.Staging != filepath.Clean(req.StagingTargetPath) {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	for _, t := range r.Targets {
		if m, err := mountAt(t.Path); err != nil || m != nil {
			return nil, failedPrecondition("volume %s is still published at %s (%v)", req.VolumeId, t.Path, err)
		}
	}
	if !r.Block {
		if err := errors.Join(unmountAll(ctx, r.Staging, false), n.unmountReplay(ctx, req.VolumeId)); err != nil {
			return nil, err
		}
	}
	if err := n.cfg.Attacher.Detach(ctx, req.VolumeId); err != nil {
		return nil, err
	}
	n.log.Info("unstaged", "volume", req.VolumeId)
	return &csi.NodeUnstageVolumeResponse{}, n.forget(req.VolumeId)
}
