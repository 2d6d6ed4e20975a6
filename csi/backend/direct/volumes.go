package direct

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
)

type client = targetv1.TargetServiceClient

func notFound(kind, id string) error {
	return fmt.Errorf("%w: %s %q does not exist", backend.ErrNotFound, kind, id)
}

func volume(l *targetv1.LUN) backend.Volume {
	v := backend.Volume{ID: l.Uuid, Name: l.Name, Size: int64(l.SizeBytes), SourceVolume: l.SourceLunUuid,
		SourceSnapshot: l.SourceSnapshotUuid, Labels: l.Labels, Pool: l.Volume}
	v.Mutable = backend.Mutable{PreferredNode: l.PreferredNode, PinnedNode: l.PinnedNode, WriteCache: l.WriteCache.Word(), Tier: cmp.Or(v1alpha1.TierOf(l.PinnedTier), v1alpha1.NoPin)}
	if l.PinnedNode == "" { // the target knows no pins
		v.PinnedNode = v1alpha1.NoPin
	}
	for _, m := range l.Mappings {
		v.Hosts = append(v.Hosts, m.HostIqn)
		if !m.GetReadOnly() {
			v.Writers = append(v.Writers, m.HostIqn)
		}
	}
	slices.Sort(v.Hosts)
	slices.Sort(v.Writers)
	return v
}

// CreateVolume implements backend.Backend.
func (b *Backend) CreateVolume(ctx context.Context, req backend.CreateVolume) (backend.Volume, error) {
	switch {
	case req.SourceVolume != "" && !ours(req.SourceVolume):
		return backend.Volume{}, notFound("volume", req.SourceVolume)
	case req.SourceSnapshot != "" && !ours(req.SourceSnapshot):
		return backend.Volume{}, notFound("snapshot", req.SourceSnapshot)
	}
	l, err := call(ctx, b, "create volume", client.CreateLUN, &targetv1.CreateLUNRequest{Uuid: req.ID, Name: req.Name,
		SizeBytes: uint64(req.Size), SourceLunUuid: req.SourceVolume, SourceSnapshotUuid: req.SourceSnapshot,
		PreferredNode: req.PreferredNode, PinnedNode: req.PinnedNode, WriteCache: targetv1.ParseWriteCache(req.WriteCache), Labels: req.Labels, Volume: req.Pool, PinnedTier: strings.ToLower(req.Tier)})
	if err != nil {
		return backend.Volume{}, err
	}
	v := volume(l)
	if req.PinnedNode != "" && v.PinnedNode != req.PinnedNode && l.PinnedNode == "" { // the field was passed over; the volume exists
		return backend.Volume{}, fmt.Errorf("create volume %s: %w: the target is of a release that knows no pins: upgrade it", req.ID, backend.ErrUnavailable)
	}
	if req.Tier != "" && v.Tier != req.Tier && l.PinnedTier == "" {
		return backend.Volume{}, fmt.Errorf("create volume %s: %w: the target is of a release that knows no tiers: upgrade it", req.ID, backend.ErrUnavailable)
	}
	return v, nil
}

// DeleteVolume implements backend.Backend.
func (b *Backend) DeleteVolume(ctx context.Context, id string) error {
	if !ours(id) {
		return nil
	}
	_, err := call(ctx, b, "delete volume", client.DeleteLUN, &targetv1.DeleteLUNRequest{Uuid: id})
	return err
}

// GetVolume implements backend.Backend.
func (b *Backend) GetVolume(ctx context.Context, id string) (backend.Volume, error) {
	if !ours(id) {
		return backend.Volume{}, notFound("volume", id)
	}
	l, err := call(ctx, b, "get volume", client.GetLUN, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		return backend.Volume{}, err
	}
	return volume(l), nil
}

// limit of a request; 0 is the maximum of the pair.
func limit(p backend.Page) uint32 { return uint32(min(max(p.Limit, 0), 1000)) }

func checkToken(p backend.Page) error {
	if p.After != "" && !ours(p.After) {
		return fmt.Errorf("%w %q", backend.ErrBadToken, p.After)
	}
	return nil
}

// ListVolumes implements backend.Backend. The token is the last ID of the previous page; IDs are
// sorted, so it stays valid when that volume is deleted.
func (b *Backend) ListVolumes(ctx context.Context, p backend.Page) ([]backend.Volume, string, error) {
	if err := checkToken(p); err != nil {
		return nil, "", err
	}
	var out []backend.Volume
	req := &targetv1.ListLUNsRequest{AfterUuid: p.After, Limit: limit(p)}
	for {
		r, err := call(ctx, b, "list volumes", client.ListLUNs, req)
		if err != nil {
			return nil, "", err
		}
		for _, l := range r.Luns {
			out = append(out, volume(l))
		}
		// Without a limit, read all pages: the pair returns at most 1000 at a time.
		if p.Limit > 0 || r.NextAfterUuid == "" {
			return out, r.NextAfterUuid, nil
		}
		req.AfterUuid = r.NextAfterUuid
	}
}

// ExpandVolume implements backend.Backend.
func (b *Backend) ExpandVolume(ctx context.Context, id string, size int64) (backend.Volume, error) {
	if !ours(id) {
		return backend.Volume{}, notFound("volume", id)
	}
	l, err := call(ctx, b, "expand volume", client.ExpandLUN, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: uint64(size)})
	if err != nil {
		return backend.Volume{}, err
	}
	return volume(l), nil
}

// ModifyVolume implements backend.Backend. The pair itself moves the LUN to its preferred node.
func (b *Backend) ModifyVolume(ctx context.Context, id string, m backend.Mutable) (backend.Volume, error) {
	if !ours(id) {
		return backend.Volume{}, notFound("volume", id)
	}
	l, err := call(ctx, b, "modify volume", client.ModifyLUN, &targetv1.ModifyLUNRequest{Uuid: id, PreferredNode: m.PreferredNode, PinnedNode: m.PinnedNode,
		WriteCache: targetv1.ParseWriteCache(m.WriteCache), PinnedTier: strings.ToLower(m.Tier)})
	if err != nil {
		return backend.Volume{}, err
	}
	v := volume(l)
	if m.PinnedNode != "" && v.PinnedNode != m.PinnedNode { // the field was passed over
		return backend.Volume{}, fmt.Errorf("modify volume %s: %w: the target is of a release that knows no pins: upgrade it", id, backend.ErrUnsupported)
	}
	if m.Tier != "" && v.Tier != m.Tier {
		return backend.Volume{}, fmt.Errorf("modify volume %s: %w: the target is of a release that knows no tiers: upgrade it", id, backend.ErrUnsupported)
	}
	return v, nil
}

// Publish implements backend.Backend.
func (b *Backend) Publish(ctx context.Context, p backend.Publish) (attach.Attachment, error) {
	if !ours(p.VolumeID) {
		return attach.Attachment{}, notFound("volume", p.VolumeID)
	}
	req := &targetv1.MapHostRequest{LunUuid: p.VolumeID, HostIqn: p.HostIQN, ReadOnly: p.ReadOnly, Exclusive: p.Exclusive, Chap: credentials(p.Auth, p.MutualAuth)}
	// With one host at a time, a mapping for a replay cannot be distinguished from one for writing:
	// the worker rejects a dirty log.
	if p.Replay && !p.Exclusive {
		return b.publishReader(ctx, req)
	}
	m, err := call(ctx, b, "publish volume", client.MapHost, req)
	if err != nil {
		return attach.Attachment{}, err
	}
	return attachment(p.VolumeID, m, p.ReadOnly), nil
}

func attachment(id string, m *targetv1.Mapping, readOnly bool) attach.Attachment {
	a := attach.Attachment{VolumeID: id, Generation: m.Generation, HostIQN: m.HostIqn, TargetIQN: m.TargetIqn,
		LUN: uint16(m.Lun), WWID: m.Wwid, ReadOnly: readOnly}
	for _, portal := range m.Portals {
		a.Portals = append(a.Portals, portal.Address)
	}
	return a
}

// Unpublish implements backend.Backend.
func (b *Backend) Unpublish(ctx context.Context, id, hostIQN string) error {
	if !ours(id) {
		return nil
	}
	_, err := call(ctx, b, "unpublish volume", client.UnmapHost, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: hostIQN})
	return err
}
