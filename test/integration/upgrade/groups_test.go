package upgrade

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/cut"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// 0.1.0 knows no group snapshots. A pair with such a node refuses them at either node before
// anything is made or held, while hosts write. When that node has been upgraded they are taken, and
// one that goes back finds snapshots like all others.
func TestGroupSnapshotsBesideTheReleaseBefore(t *testing.T) {
	for _, c := range mixed() {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, c.nodes)
			r.volumes(t)
			older := 0
			if c.nodes[1].version == before.version {
				older = 1
			}
			group := uuid.NewString()
			r.during(t, "group snapshots refused", func() {
				for i, b := range c.nodes {
					_, err := r.Client(i).BeginGroupSnapshot(r.ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: group, Attempt: 1})
					if status.Code(err) != codes.Unimplemented {
						t.Fatalf("the node of %s answers %v", b.version, err)
					}
					if i != older && !strings.Contains(err.Error(), "group snapshots") {
						t.Errorf("the refusal does not say what is refused: %v", err)
					}
				}
			})
			for i := range c.nodes {
				list, err := r.Client(i).ListSnapshots(r.ctx, &targetv1.ListSnapshotsRequest{})
				if err != nil || len(list.Snapshots) != 0 {
					t.Fatalf("node %d has %v, %v", i, list, err)
				}
			}
			r.during(t, "upgraded", func() { r.replace(t, older, now) })
			r.during(t, "a group snapshot", func() { r.cut(t, older, group, 2) })
			kept := len(r.luns) + r.changes(t, older)
			r.same(t)
			r.during(t, "gone back", func() { r.replace(t, older, before) })
			r.same(t)
			r.rest(t)
			r.end(t, len(r.luns)+kept)
		})
	}
}

// cut takes a group snapshot of all LUNs, and waits until it can be used.
func (r *rig) cut(t *testing.T, via int, group string, attempt uint64) {
	t.Helper()
	pair := cut.Pair{Name: "p", Client: r.Client(via)}
	for _, lun := range r.luns {
		id := uuid.NewString()
		pair.Members = append(pair.Members, &targetv1.CreateSnapshotRequest{Uuid: id, Name: id, SourceLunUuid: lun})
	}
	g := &cut.Group{UUID: group, Pairs: []cut.Pair{pair}}
	if _, err := g.Begin(r.ctx, attempt); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Cut(r.ctx, attempt); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.ctx, waitBound)
	defer cancel()
	if err := harness.Wait(ctx, "all members can be used", func() (bool, string) {
		s, err := g.Look(ctx)
		return err == nil && s.Ready, fmt.Sprint(s, err)
	}); err != nil {
		t.Fatal(err)
	}
}
