package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// groups is a backend that takes group snapshots, or refuses them with err.
type groups struct {
	backend.Backend
	have map[string]backend.GroupSnapshot
	made int
	off  bool
	err  error
}

func (b *groups) GroupSnapshots() bool               { return !b.off }
func (b *groups) GroupSnapshotID(name string) string { return "group-" + name }

func (b *groups) GetGroupSnapshot(_ context.Context, id string) (backend.GroupSnapshot, error) {
	g, ok := b.have[id]
	if !ok {
		return g, fmt.Errorf("%w: group snapshot %q does not exist", backend.ErrNotFound, id)
	}
	return g, nil
}

func (b *groups) CreateGroupSnapshot(_ context.Context, id, name string, sources []string) (backend.GroupSnapshot, error) {
	if b.err != nil {
		return backend.GroupSnapshot{}, b.err
	}
	g := backend.GroupSnapshot{ID: id, Name: name, Created: time.Unix(1, 0)}
	for i, v := range sources {
		g.Snapshots = append(g.Snapshots, backend.Snapshot{ID: fmt.Sprintf("%s-%d", id, i), SourceVolume: v, Size: 1 << 20, Created: g.Created, Group: id})
	}
	b.made++
	b.have[id] = g
	return g, nil
}

func (b *groups) DeleteGroupSnapshot(_ context.Context, id string, snapshots []string) error {
	if b.err != nil {
		return b.err
	}
	delete(b.have, id)
	return nil
}

func (b *groups) GetSnapshot(_ context.Context, id string) (backend.Snapshot, error) {
	for _, g := range b.have {
		for _, s := range g.Snapshots {
			if s.ID == id {
				return s, nil
			}
		}
	}
	return backend.Snapshot{}, backend.ErrNotFound
}

func (b *groups) ListSnapshots(context.Context, string, backend.Page) (list []backend.Snapshot, next string, err error) {
	for _, g := range b.have {
		list = append(list, g.Snapshots...)
	}
	return list, "", nil
}

func (b *groups) DeleteSnapshot(context.Context, string) error { return b.err }

func groupServer() (*Server, *groups) {
	b := &groups{have: map[string]backend.GroupSnapshot{}}
	return New(b, slog.New(slog.DiscardHandler)), b
}

func TestGroupCapabilityFollowsTheBackend(t *testing.T) {
	s, b := groupServer()
	for _, off := range []bool{false, true} {
		b.off = off
		r, err := s.GroupControllerGetCapabilities(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(r.Capabilities, func(c *csi.GroupControllerServiceCapability) bool {
			return c.GetRpc().GetType() == csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
		})
		if has == off {
			t.Errorf("off: %v, advertised: %v", off, has)
		}
	}
}

// A repeated call returns the first group snapshot, in whatever order it lists the volumes; other
// volumes are an error.
func TestGroupSnapshotIsTakenOnce(t *testing.T) {
	s, b := groupServer()
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1", "v2"}, Parameters: map[string]string{"csi.storage.k8s.io/volumegroupsnapshot/name": "n", "deletionPolicy": "Retain"}}
	for range 2 {
		r, err := s.CreateVolumeGroupSnapshot(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		g := r.GroupSnapshot
		if g.GroupSnapshotId != "group-g" || !g.ReadyToUse || g.CreationTime.AsTime() != time.Unix(1, 0).UTC() || len(g.Snapshots) != 2 {
			t.Errorf("%+v", g)
		}
		for _, p := range g.Snapshots {
			// "If this message is inside a VolumeGroupSnapshot message, the value MUST be the same
			// as the group_snapshot_id in that message."
			if p.GroupSnapshotId != g.GroupSnapshotId || !p.ReadyToUse {
				t.Errorf("%+v", p)
			}
		}
		slices.Reverse(req.SourceVolumeIds)
	}
	if b.made != 1 {
		t.Errorf("it was taken %d times", b.made)
	}
	for _, other := range [][]string{{"v1"}, {"v1", "v2", "v3"}, {"v1", "v3"}} {
		if _, err := s.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: other}); status.Code(err) != codes.AlreadyExists {
			t.Errorf("%v: %v", other, err)
		}
	}
}

// A wrong request is refused with the field's name, and nothing is made.
func TestWrongGroupRequestsAreRefused(t *testing.T) {
	many := make([]string, v1alpha1.MaxGroupMembers+1)
	for i := range many {
		many[i] = fmt.Sprint("v", i)
	}
	two := []string{"v1", "v2"}
	for name, c := range map[string]struct {
		req  *csi.CreateVolumeGroupSnapshotRequest
		says string
	}{
		"no name":           {&csi.CreateVolumeGroupSnapshotRequest{SourceVolumeIds: two}, "name is missing"},
		"control character": {&csi.CreateVolumeGroupSnapshotRequest{Name: "a\x00", SourceVolumeIds: two}, "name contains"},
		"no volumes":        {&csi.CreateVolumeGroupSnapshotRequest{Name: "g"}, "source_volume_ids are missing"},
		"empty volume":      {&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1", ""}}, "source_volume_ids[1] is empty"},
		"volume twice":      {&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1", "v2", "v1"}}, "source_volume_ids[0] and source_volume_ids[2]"},
		"too many":          {&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: many}, "source_volume_ids: 65 volumes"},
		"unknown parameter": {&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: two, Parameters: map[string]string{"quick": "yes"}}, `parameters: quick is "yes"`},
		"unknown policy":    {&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: two, Parameters: map[string]string{"deletionPolicy": "Keep"}}, `deletionPolicy is "Keep"`},
	} {
		s, b := groupServer()
		_, err := s.CreateVolumeGroupSnapshot(t.Context(), c.req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.says) || b.made != 0 {
			t.Errorf("%s: %v, made %d", name, err, b.made)
		}
	}
	s, b := groupServer()
	if _, err := s.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: many[1:]}); err != nil || b.made != 1 {
		t.Errorf("as many as are allowed: %v", err)
	}
}

// The codes are those of the specification's tables.
func TestGroupErrorsHaveTheirCodes(t *testing.T) {
	for err, want := range map[error]codes.Code{backend.ErrNotTogether: codes.FailedPrecondition, backend.ErrNotFound: codes.NotFound, backend.ErrExists: codes.AlreadyExists,
		backend.ErrExhausted: codes.ResourceExhausted, backend.ErrTimeout: codes.DeadlineExceeded, backend.ErrUnavailable: codes.Unavailable, backend.ErrUnsupported: codes.Unimplemented} {
		s, b := groupServer()
		b.err = fmt.Errorf("source_volume_ids: %w: why", err)
		if _, got := s.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1"}}); status.Code(got) != want || !strings.Contains(got.Error(), "source_volume_ids: ") {
			t.Errorf("%v: %v", err, got)
		}
	}
	s, b := groupServer()
	b.err = fmt.Errorf("%w: the snapshots are others", backend.ErrInvalid)
	if _, err := s.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g"}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "snapshot_ids") {
		t.Error(err)
	}
	b.err = fmt.Errorf("%w: delete it", backend.ErrInGroup)
	if _, err := s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "group-g-0"}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// A call for the same group is refused while the first one runs.
func TestOneCallAtATimeForAGroup(t *testing.T) {
	s, _ := groupServer()
	done, err := s.inflight.Start("group-g")
	if err != nil {
		t.Fatal(err)
	}
	_, created := s.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1"}})
	_, deleted := s.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-g"})
	if status.Code(created) != codes.Aborted || status.Code(deleted) != codes.Aborted {
		t.Error(created, deleted)
	}
	done()
	if _, err := s.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1"}}); err != nil {
		t.Error(err)
	}
}

func TestGroupSnapshotIsReadAndDeleted(t *testing.T) {
	s, b := groupServer()
	if _, err := s.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v1", "v2"}}); err != nil {
		t.Fatal(err)
	}
	const id = "group-g"
	get := func(id string, snapshots ...string) (*csi.GetVolumeGroupSnapshotResponse, error) {
		return s.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: snapshots})
	}
	if r, err := get(id, id+"-1", id+"-0"); err != nil || len(r.GroupSnapshot.Snapshots) != 2 {
		t.Error(r, err)
	}
	for _, wrong := range [][]string{nil, {id + "-0"}, {id + "-0", id + "-0"}, {id + "-0", id + "-2"}, {id + "-0", id + "-1", "x"}} {
		if _, err := get(id, wrong...); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "snapshot_ids") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if _, err := get("unknown"); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	_, noGet := get("")
	_, noDelete := s.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{})
	for _, err := range []error{noGet, noDelete} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "group_snapshot_id is missing") {
			t.Error(err)
		}
	}
	// The snapshots by themselves name their group too.
	one, err := s.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id + "-0"})
	if err != nil || one.Snapshot.GroupSnapshotId != id {
		t.Error(one, err)
	}
	for _, only := range []string{"", id + "-1"} {
		list, err := s.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: only})
		if err != nil || len(list.Entries) == 0 {
			t.Fatal(list, err)
		}
		for _, e := range list.Entries {
			if e.Snapshot.GroupSnapshotId != id {
				t.Errorf("%+v", e)
			}
		}
	}
	if _, err := s.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: []string{id + "-0", id + "-1"}}); err != nil || len(b.have) != 0 {
		t.Error(err, b.have)
	}
}
