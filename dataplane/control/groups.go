package control

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// checkAttempt checks what all steps of a group snapshot name.
func checkAttempt(group string, attempt uint64) error {
	if err := checkUUID("group_uuid", group); err != nil {
		return err
	}
	if attempt == 0 {
		return invalid("attempt", "attempts begin with 1")
	}
	return nil
}

// step checks that a node can take a step of a group snapshot.
func (c *server) step(group string, attempt uint64) error {
	if err := checkAttempt(group, attempt); err != nil {
		return err
	}
	return c.member()
}

// BeginGroupSnapshot implements targetv1.TargetServiceServer.
func (c *server) BeginGroupSnapshot(ctx context.Context, req *targetv1.BeginGroupSnapshotRequest) (*targetv1.GroupSnapshot, error) {
	if err := c.step(req.GroupUuid, req.Attempt); err != nil {
		return nil, err
	}
	e := meta.BeginGroup{UUID: req.GroupUuid, Attempt: req.Attempt, Final: req.Final}
	if err := c.n.BeginGroup(ctx, e, req.Discard); err != nil {
		return nil, grpcError(err)
	}
	return c.group(req.GroupUuid), nil
}

// PrepareGroupSnapshot implements targetv1.TargetServiceServer.
func (c *server) PrepareGroupSnapshot(ctx context.Context, req *targetv1.PrepareGroupSnapshotRequest) (*targetv1.GroupSnapshot, error) {
	if err := checkAttempt(req.GroupUuid, req.Attempt); err != nil {
		return nil, err
	}
	if n := len(req.Members); n == 0 || n > meta.MaxGroupMembers {
		return nil, invalid("members", "%d members are not 1 to %d", n, meta.MaxGroupMembers)
	}
	var members []meta.Snapshot
	sources := map[string]bool{}
	for _, m := range req.Members {
		if err := errors.Join(checkUUID("members.uuid", m.Uuid), checkUUID("members.source_lun_uuid", m.SourceLunUuid), checkLabels(m.Labels), checkName(m.Name)); err != nil {
			return nil, firstStatus(err)
		}
		if sources[m.SourceLunUuid] {
			return nil, invalid("members.source_lun_uuid", "LUN %s is named twice", m.SourceLunUuid)
		}
		sources[m.SourceLunUuid] = true
		members = append(members, meta.Snapshot{UUID: m.Uuid, Name: m.Name, Source: m.SourceLunUuid, Labels: m.Labels, Created: meta.Now(),
			Group: req.GroupUuid, Attempt: req.Attempt})
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if err := c.n.PrepareGroup(ctx, members); err != nil {
		return nil, grpcError(err)
	}
	return c.group(req.GroupUuid), nil
}

// HoldGroupSnapshot implements targetv1.TargetServiceServer.
func (c *server) HoldGroupSnapshot(ctx context.Context, req *targetv1.HoldGroupSnapshotRequest) (*targetv1.HoldGroupSnapshotResponse, error) {
	if err := c.step(req.GroupUuid, req.Attempt); err != nil {
		return nil, err
	}
	hold, err := c.n.HoldGroup(ctx, req.GroupUuid, req.Attempt, req.Ttl.AsDuration())
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.HoldGroupSnapshotResponse{Hold: hold}, nil
}

// CutGroupSnapshot implements targetv1.TargetServiceServer.
func (c *server) CutGroupSnapshot(ctx context.Context, req *targetv1.CutGroupSnapshotRequest) (*targetv1.CutGroupSnapshotResponse, error) {
	if err := c.step(req.GroupUuid, req.Attempt); err != nil {
		return nil, err
	}
	held, err := c.n.CutGroup(ctx, req.GroupUuid, req.Attempt, req.Hold)
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.CutGroupSnapshotResponse{Held: durationpb.New(held)}, nil
}

// GetGroupSnapshot implements targetv1.TargetServiceServer.
func (c *server) GetGroupSnapshot(_ context.Context, req *targetv1.GetGroupSnapshotRequest) (*targetv1.GroupSnapshot, error) {
	if err := checkUUID("group_uuid", req.GroupUuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	g := c.group(req.GroupUuid)
	if g.Attempt == 0 {
		return nil, status.Errorf(codes.NotFound, "this pair knows nothing of group snapshot %s", req.GroupUuid)
	}
	return g, nil
}

// group is what this node has of a group.
func (c *server) group(id string) *targetv1.GroupSnapshot {
	r := &targetv1.GroupSnapshot{GroupUuid: id}
	c.n.ReadMetadata(func(s *meta.State) {
		if g := s.Groups[id]; g != nil {
			r.Attempt, r.Final = g.Attempt, g.Final
		}
		for _, n := range s.Members(id) {
			r.Members = append(r.Members, &targetv1.GroupSnapshotMember{Snapshot: snapshotProto(n), Stage: stages[n.Stage]})
		}
	})
	return r
}

var stages = map[meta.Stage]targetv1.GroupSnapshotMember_Stage{
	meta.Empty:   targetv1.GroupSnapshotMember_STAGE_EMPTY,
	meta.Copying: targetv1.GroupSnapshotMember_STAGE_COPYING,
	meta.Ready:   targetv1.GroupSnapshotMember_STAGE_READY,
}
