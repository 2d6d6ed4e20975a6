package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// CreateLUN implements targetv1.TargetServiceServer.
func (c *server) CreateLUN(ctx context.Context, req *targetv1.CreateLUNRequest) (*targetv1.LUN, error) {
	if err := errors.Join(checkUUID("uuid", req.Uuid), checkSize(req.SizeBytes), checkLabels(req.Labels), checkName(req.Name)); err != nil {
		return nil, firstStatus(err)
	}
	if req.SourceLunUuid != "" && req.SourceSnapshotUuid != "" {
		return nil, invalid("source_lun_uuid", "only one of source_lun_uuid and source_snapshot_uuid may be set")
	}
	for _, f := range [][2]string{{"source_lun_uuid", req.SourceLunUuid}, {"source_snapshot_uuid", req.SourceSnapshotUuid}} {
		if f[1] != "" {
			if err := checkUUID(f[0], f[1]); err != nil {
				return nil, err
			}
		}
	}
	if err := errors.Join(checkPlace(req), checkTier(req.PinnedTier)); err != nil {
		return nil, firstStatus(err)
	}
	through, err := writeThrough(req.WriteCache)
	if err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	l := meta.LUN{UUID: req.Uuid, Name: req.Name, Size: int64(req.SizeBytes), Preferred: req.PreferredNode, Pin: meta.PinOf(req.PinnedNode), Tier: meta.PinOf(req.PinnedTier), Labels: req.Labels,
		SourceLUN: req.SourceLunUuid, SourceSnapshot: req.SourceSnapshotUuid, Volume: meta.VolumeOf(req.Volume), Created: meta.Now()}
	if err := c.sourceVolume(req); err != nil {
		return nil, err
	}
	l.SetWriteThrough(through)
	if err := c.n.CreateLUN(ctx, l); err != nil {
		return nil, grpcError(err)
	}
	return c.lun(req.Uuid)
}

// sourceVolume refuses a copy in the default volume of what lies in another one: in an entry, no
// name means that of the source.
func (c *server) sourceVolume(req *targetv1.CreateLUNRequest) error {
	if req.Volume != meta.DefaultVolume {
		return nil
	}
	at := ""
	c.n.ReadMetadata(func(s *meta.State) {
		if l := s.LUNs[req.SourceLunUuid]; l != nil {
			at = l.Volume
		} else if x := s.Snapshots[req.SourceSnapshotUuid]; x != nil {
			at = x.Volume
		}
	})
	if at != "" {
		return invalid("volume", "a copy shares extents with its source and must be in the same backing volume, %q, not %q: leave the field empty", at, req.Volume)
	}
	return nil
}

// DeleteLUN implements targetv1.TargetServiceServer.
func (c *server) DeleteLUN(ctx context.Context, req *targetv1.DeleteLUNRequest) (*targetv1.DeleteLUNResponse, error) {
	if err := checkUUID("uuid", req.Uuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	_, err := c.n.Change(ctx, &meta.Entry{DeleteLUN: &meta.Object{UUID: req.Uuid}})
	return &targetv1.DeleteLUNResponse{}, grpcError(err)
}

// ExpandLUN implements targetv1.TargetServiceServer.
func (c *server) ExpandLUN(ctx context.Context, req *targetv1.ExpandLUNRequest) (*targetv1.LUN, error) {
	if err := errors.Join(checkUUID("uuid", req.Uuid), checkSize(req.SizeBytes)); err != nil {
		return nil, firstStatus(err)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	x := &meta.Expand{UUID: req.Uuid, Size: int64(req.SizeBytes)}
	for _, e := range []*meta.Entry{{Grow: x}, {Expand: x}} { // room on both nodes first (R14)
		if _, err := c.n.Change(ctx, e); err != nil {
			return nil, grpcError(err)
		}
	}
	return c.lun(req.Uuid)
}

// ModifyLUN implements targetv1.TargetServiceServer.
func (c *server) ModifyLUN(ctx context.Context, req *targetv1.ModifyLUNRequest) (*targetv1.LUN, error) {
	if err := checkUUID("uuid", req.Uuid); err != nil {
		return nil, err
	}
	if err := errors.Join(checkPlace(req), checkTier(req.PinnedTier), checkGroup(req.SpreadGroup)); err != nil {
		return nil, firstStatus(err)
	}
	e := meta.Modify{UUID: req.Uuid, Preferred: req.PreferredNode}
	e.Pin, e.Tier, e.Group = c.changed(req)
	if req.WriteCache != targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED {
		through, err := writeThrough(req.WriteCache)
		if err != nil {
			return nil, err
		}
		e.WriteThrough = &through
	}
	if req.EndQuarantine {
		e.Quarantine = meta.NoQuarantine
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if err := c.n.ModifyLUN(ctx, e); err != nil {
		return nil, grpcError(err)
	}
	return c.lun(req.Uuid)
}

// changed are the pins and the group that a request asks for, empty where the LUN has them: nodes
// that know neither need not be asked for what already is.
func (c *server) changed(req *targetv1.ModifyLUNRequest) (pin, tier, group string) {
	pin, tier, group = req.PinnedNode, req.PinnedTier, req.SpreadGroup
	c.n.ReadMetadata(func(s *meta.State) {
		l := s.LUNs[req.Uuid]
		if l == nil {
			return
		}
		if meta.PinName(l.Pin) == pin {
			pin = ""
		}
		if meta.PinName(l.Tier) == tier {
			tier = ""
		}
		if meta.GroupName(l.Group) == group {
			group = ""
		}
	})
	return pin, tier, group
}

// GetLUN implements targetv1.TargetServiceServer.
func (c *server) GetLUN(_ context.Context, req *targetv1.GetLUNRequest) (*targetv1.LUN, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	if req.Uuid != "" {
		return c.lun(req.Uuid)
	}
	var l *meta.LUN
	c.n.ReadMetadata(func(s *meta.State) { l = s.LUNByName(req.Name) })
	if l == nil {
		return nil, status.Errorf(codes.NotFound, "no LUN is named %q", req.Name)
	}
	return c.lun(l.UUID)
}

// ListLUNs implements targetv1.TargetServiceServer.
func (c *server) ListLUNs(_ context.Context, req *targetv1.ListLUNsRequest) (*targetv1.ListLUNsResponse, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	var sorted []*meta.LUN
	c.n.ReadMetadata(func(s *meta.State) { sorted = s.SortedLUNs() })
	list, next := page(sorted, func(l *meta.LUN) string { return l.UUID }, req.AfterUuid, req.Limit)
	r := &targetv1.ListLUNsResponse{NextAfterUuid: next}
	for _, l := range list {
		if l.Stage == meta.Ready {
			r.Luns = append(r.Luns, c.toProto(l))
		}
	}
	return r, nil
}

func (c *server) lun(id string) (*targetv1.LUN, error) {
	var l *meta.LUN
	c.n.ReadMetadata(func(s *meta.State) { l = s.LUNs[id] })
	if l == nil || l.Stage != meta.Ready {
		return nil, status.Errorf(codes.NotFound, "LUN %s does not exist", id)
	}
	return c.toProto(l), nil
}

func (c *server) toProto(l *meta.LUN) *targetv1.LUN {
	p := &targetv1.LUN{Uuid: l.UUID, Name: l.Name, SizeBytes: uint64(l.Size), Owner: l.Owner, PreferredNode: l.Preferred,
		Wwid: scsi.WWIDString(l.UUID), Serial: scsi.Serial(l.UUID), Labels: l.Labels, SourceLunUuid: l.SourceLUN, SourceSnapshotUuid: l.SourceSnapshot,
		WriteCache: writeCacheProto(l), Volume: meta.VolumeName(l.Volume), PinnedNode: meta.PinName(l.Pin), PinnedTier: meta.PinName(l.Tier), SpreadGroup: meta.GroupName(l.Group), Quarantine: l.Quarantine}
	owner, allocated := c.n.Usage(l.UUID)
	if owner != "" {
		p.Owner = owner
	}
	p.AllocatedBytes = allocated
	if h := l.Held(time.Now()); h != nil {
		p.HeldUntil = timestamppb.New(h.Until)
	}
	for host, m := range l.Maps {
		p.Mappings = append(p.Mappings, c.mapping(l.UUID, host, m))
	}
	slices.SortFunc(p.Mappings, func(a, b *targetv1.Mapping) int { return strings.Compare(a.HostIqn, b.HostIqn) })
	return p
}

// writeThrough reads a write cache mode; unspecified is write-back.
func writeThrough(w targetv1.WriteCache) (bool, error) {
	switch w {
	case targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED, targetv1.WriteCache_WRITE_CACHE_WRITE_BACK:
		return false, nil
	case targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH:
		return true, nil
	}
	return false, invalid("write_cache", "%d is not a write mode: use write-back or write-through", w)
}

func writeCacheProto(l *meta.LUN) targetv1.WriteCache {
	if l.WriteThrough() {
		return targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH
	}
	return targetv1.WriteCache_WRITE_CACHE_WRITE_BACK
}
