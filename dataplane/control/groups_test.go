package control

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// The steps of a group snapshot, and what each of them shows.
func TestGroupSnapshotSteps(t *testing.T) {
	f := newFake(t)
	c, ctx := f.client(), t.Context()
	group, lun, snap := uuid.NewString(), f.lun(), uuid.NewString()
	looks := func(g *targetv1.GroupSnapshot, err error, attempt uint64, stages ...targetv1.GroupSnapshotMember_Stage) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if g.GroupUuid != group || g.Attempt != attempt || len(g.Members) != len(stages) {
			t.Fatalf("%v", g)
		}
		for i, m := range g.Members {
			if m.Stage != stages[i] || m.Snapshot.GroupUuid != group || m.Snapshot.Uuid != snap || m.Snapshot.SourceLunUuid != lun {
				t.Errorf("%v", m)
			}
		}
	}
	if _, err := c.GetGroupSnapshot(ctx, &targetv1.GetGroupSnapshotRequest{GroupUuid: group}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	g, err := c.BeginGroupSnapshot(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: group, Attempt: 2})
	looks(g, err, 2)
	if _, err := c.BeginGroupSnapshot(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: group, Attempt: 1}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	member := &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: lun}
	g, err = c.PrepareGroupSnapshot(ctx, &targetv1.PrepareGroupSnapshotRequest{GroupUuid: group, Attempt: 2, Members: []*targetv1.CreateSnapshotRequest{member}})
	looks(g, err, 2, targetv1.GroupSnapshotMember_STAGE_EMPTY)
	hold, err := c.HoldGroupSnapshot(ctx, &targetv1.HoldGroupSnapshotRequest{GroupUuid: group, Attempt: 2, Ttl: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CutGroupSnapshot(ctx, &targetv1.CutGroupSnapshotRequest{GroupUuid: group, Attempt: 2, Hold: 3}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another hold: %v", err)
	}
	r, err := c.CutGroupSnapshot(ctx, &targetv1.CutGroupSnapshotRequest{GroupUuid: group, Attempt: 2, Hold: hold.Hold})
	if err != nil || r.Held.AsDuration() != 7*time.Millisecond {
		t.Errorf("%v, %v", r, err)
	}
	g, err = c.GetGroupSnapshot(ctx, &targetv1.GetGroupSnapshotRequest{GroupUuid: group})
	looks(g, err, 2, targetv1.GroupSnapshotMember_STAGE_COPYING)
	g, err = c.BeginGroupSnapshot(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: group, Attempt: 3, Final: true})
	if looks(g, err, 3); !g.Final {
		t.Error("not final")
	}
}

// A wrong request names its field, and changes nothing.
func TestGroupSnapshotRefusals(t *testing.T) {
	f := newFake(t)
	c, ctx := f.client(), t.Context()
	group, lun := uuid.NewString(), f.lun()
	if _, err := c.BeginGroupSnapshot(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: group, Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	index := f.state.Index
	member := func(id, name, source string) *targetv1.CreateSnapshotRequest {
		return &targetv1.CreateSnapshotRequest{Uuid: id, Name: name, SourceLunUuid: source}
	}
	good := member(uuid.NewString(), "s", lun)
	var many []*targetv1.CreateSnapshotRequest
	for range 65 {
		many = append(many, member(uuid.NewString(), uuid.NewString(), uuid.NewString()))
	}
	prepare := func(group string, attempt uint64, members ...*targetv1.CreateSnapshotRequest) func() error {
		return func() error {
			_, err := c.PrepareGroupSnapshot(ctx, &targetv1.PrepareGroupSnapshotRequest{GroupUuid: group, Attempt: attempt, Members: members})
			return err
		}
	}
	for want, call := range map[string]func() error{
		"group_uuid: \"x\" is not a uuid": func() error {
			_, err := c.BeginGroupSnapshot(ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: "x", Attempt: 1})
			return err
		},
		"attempt: attempts begin with 1": func() error {
			_, err := c.HoldGroupSnapshot(ctx, &targetv1.HoldGroupSnapshotRequest{GroupUuid: group})
			return err
		},
		"group_uuid: \"y\" is not a uuid": func() error {
			_, err := c.CutGroupSnapshot(ctx, &targetv1.CutGroupSnapshotRequest{GroupUuid: "y", Attempt: 1})
			return err
		},
		"group_uuid: \"\" is not a uuid": func() error {
			_, err := c.GetGroupSnapshot(ctx, &targetv1.GetGroupSnapshotRequest{})
			return err
		},
		"members: 0 members":                   prepare(group, 1),
		"members: 65 members":                  prepare(group, 1, many...),
		"members.source_lun_uuid: LUN " + lun:  prepare(group, 1, good, member(uuid.NewString(), "t", lun)),
		"members.uuid: \"z\" is not":           prepare(group, 1, member("z", "s", lun)),
		"members.source_lun_uuid: \"\" is not": prepare(group, 1, member(uuid.NewString(), "s", "")),
		"name: \"\" must have":                 prepare(group, 1, member(uuid.NewString(), "", lun)),
	} {
		if err := call(); status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if f.state.Index != index || len(f.state.Snapshots) > 0 {
		t.Errorf("%d entries, snapshots %v", f.state.Index-index, f.state.Snapshots)
	}
}
