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

func (n *unlocked) stage(ctx context.Context, q *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	want, err := n.parseStage(q)
	if err != nil {
		return nil, err
	}
	have, err := n.load(q.VolumeId)
	if err != nil {
		return nil, err
	}
	if have != nil {
		same := have.published().Same(want.published())
		// "ALREADY_EXISTS: Indicates that a volume corresponding to the specified volume_id has already been published at the specified
		// staging_target_path but is incompatible with the specified volume_capability."
		if same && (have.Staging != want.Staging || have.Block != want.Block || have.FSType != want.FSType || !slices.Equal(have.Flags, want.Flags)) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is staged at %s with another capability", q.VolumeId, have.Staging)
		}
		// "This operation MUST be idempotent. If the volume corresponding to the volume_id is already staged to the
		// staging_target_path, and is identical to the specified volume_capability the Plugin MUST reply 0 OK."
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
		if want.Attachment, err = n.replayed(ctx, want); err != nil {
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
	n.log.Info("staged", "volume", q.VolumeId, "device", device, "path", want.Staging, "fs", want.FSType)
	return &csi.NodeStageVolumeResponse{}, nil
}

// parseStage checks the request.
func (n *unlocked) parseStage(q *csi.NodeStageVolumeRequest) (*record, error) {
	if err := absolute("staging_target_path", q.StagingTargetPath); err != nil {
		return nil, err
	}
	if q.VolumeCapability == nil {
		return nil, invalid("volume_capability is missing")
	}
	access, err := capability.Parse(q.VolumeCapability)
	if err != nil {
		return nil, invalid("volume_capability: %v", err)
	}
	if !attach.ValidID(q.VolumeId) {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", q.VolumeId)
	}
	a, err := attach.FromPublishContext(q.VolumeId, q.PublishContext)
	if err != nil {
		return nil, err
	}
	if a.HostIQN != n.cfg.IQN {
		return nil, failedPrecondition("the volume is published to %s, but this node is %s", a.HostIQN, n.cfg.IQN)
	}
	if a.Auth, a.MutualAuth, err = attach.ParseSecrets(q.Secrets); err != nil {
		return nil, err
	}
	r := &record{VolumeID: q.VolumeId, Attachment: a, Staging: filepath.Clean(q.StagingTargetPath),
		Block: access.Block, FSType: access.FSType, Flags: access.Flags}
	switch {
	case a.Replay && access.Block:
		return nil, invalid("volume_capability: the volume was published for a filesystem")
	case a.Replay:
		r.Published = &a
	}
	return r, nil
}

// staged verifies that what the record says is there and serves.
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

// clearOld takes away what an earlier publish left here: the node was cut off, and the LUN has moved on meanwhile.
// Nothing of it may be written any more; the attacher, which is asked next for the new publish, kills what serves the old
// device first and unmounts its filesystem everywhere. Publications of raw devices it does not see, so those go here.
func (n *unlocked) clearOld(ctx context.Context, r *record) error {
	n.log.Warn("an earlier publish of the volume is still staged: tearing it down", "volume", r.VolumeID, "generation", r.Attachment.Generation)
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

// unstage works from the record alone: nothing it undoes needs to be there.
func (n *unlocked) unstage(ctx context.Context, q *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := absolute("staging_target_path", q.StagingTargetPath); err != nil {
		return nil, err
	}
	r, err := n.load(q.VolumeId)
	if err != nil {
		return nil, err
	}
	// "If the volume corresponding to the volume_id is not staged to the staging_target_path, the Plugin MUST reply 0 OK."
	if r == nil {
		if attach.ValidID(q.VolumeId) {
			return &csi.NodeUnstageVolumeResponse{}, n.cfg.Attacher.Detach(ctx, q.VolumeId)
		}
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if r.Staging != filepath.Clean(q.StagingTargetPath) {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	for _, t := range r.Targets {
		if m, err := mountAt(t.Path); err != nil || m != nil {
			return nil, failedPrecondition("volume %s is still published at %s (%v)", q.VolumeId, t.Path, err)
		}
	}
	if !r.Block {
		if err := errors.Join(unmountAll(ctx, r.Staging, false), n.leave(ctx, q.VolumeId)); err != nil {
			return nil, err
		}
	}
	if err := n.cfg.Attacher.Detach(ctx, q.VolumeId); err != nil {
		return nil, err
	}
	n.log.Info("unstaged", "volume", q.VolumeId)
	return &csi.NodeUnstageVolumeResponse{}, n.forget(q.VolumeId)
}
