package upgrade

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// One node of each release: writes are mirrored and forwarded, ownership moves, the metadata
// changes, either node dies and is copied to.
func TestOneNodeOfEachRelease(t *testing.T) {
	for _, c := range mixed() {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, c.nodes)
			r.volumes(t)
			for via := range harness.Names {
				for _, to := range []int{1, 0} {
					r.during(t, fmt.Sprintf("moved to %s by %s", c.nodes[to].version, c.nodes[via].version), func() { r.move(t, via, to) })
				}
			}
			kept := 0
			for via := range harness.Names {
				r.during(t, "metadata changed by "+c.nodes[via].version, func() { kept += r.changes(t, via) })
				r.same(t)
			}
			for _, i := range []int{0, 1} {
				r.during(t, "killed with all LUNs: "+c.nodes[i].version, func() {
					r.move(t, 1-i, i)
					if err := r.Kill(i); err != nil {
						t.Fatal(err)
					}
				})
				// The survivor is the chair of the log now, whichever release it is.
				r.during(t, "metadata changed by "+c.nodes[1-i].version+" alone", func() { kept += r.changes(t, 1-i) })
				r.during(t, "copied to: "+c.nodes[i].version, func() {
					if err := r.StartNode(i); err != nil {
						t.Fatal(err)
					}
					r.inSync(t)
				})
				r.same(t)
				r.during(t, "metadata changed by "+c.nodes[i].version+" as the second member", func() { kept += r.changes(t, i) })
				r.same(t)
			}
			r.rest(t)
			r.scrub(t)
			r.end(t, len(r.luns)+kept)
		})
	}
}

// changes has a node carry out every kind of change of the metadata, and gives how many images are
// left of it.
func (r *rig) changes(t *testing.T, via int) (kept int) {
	t.Helper()
	c := r.Client(via)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("asked of node %s: %v", harness.Names[via], err)
		}
	}
	id := func() string { return uuid.NewString() }
	snapshot, clone, twin := id(), id(), id()
	_, err := c.CreateSnapshot(r.ctx, &targetv1.CreateSnapshotRequest{Uuid: snapshot, Name: snapshot, SourceLunUuid: r.luns[via], Labels: map[string]string{"k": "v"}})
	must(err)
	_, err = c.CreateLUN(r.ctx, &targetv1.CreateLUNRequest{Uuid: clone, Name: clone, SizeBytes: lunSize, SourceSnapshotUuid: snapshot, Labels: map[string]string{"k": "v"}})
	must(err)
	_, err = c.CreateLUN(r.ctx, &targetv1.CreateLUNRequest{Uuid: twin, Name: twin, SizeBytes: 32 << 20, SourceLunUuid: r.luns[1-via], WriteCache: targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH})
	must(err)
	grown, err := c.ExpandLUN(r.ctx, &targetv1.ExpandLUNRequest{Uuid: clone, SizeBytes: 24 << 20})
	must(err)
	if grown.SizeBytes != 24<<20 {
		t.Fatalf("grown to %d", grown.SizeBytes)
	}
	changed, err := c.ModifyLUN(r.ctx, &targetv1.ModifyLUNRequest{Uuid: clone, PreferredNode: harness.Names[via], WriteCache: targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH})
	must(err)
	if changed.WriteCache != targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH || changed.PreferredNode != harness.Names[via] {
		t.Fatalf("changed to %v", changed)
	}
	second := host + "-second"
	_, err = c.MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: clone, HostIqn: second, ReadOnly: true, Exclusive: true,
		Near: &targetv1.Near{Node: "a", By: "zone"}, // a preference, which 0.1.0 does not know
		Chap: &targetv1.CHAP{User: "user", Secret: "a secret of 12 or more", MutualUser: "target", MutualSecret: "another secret of 12"}})
	must(err)
	_, err = c.UnmapHost(r.ctx, &targetv1.UnmapHostRequest{LunUuid: clone, HostIqn: second})
	must(err)
	_, err = c.DeleteLUN(r.ctx, &targetv1.DeleteLUNRequest{Uuid: twin})
	must(err)
	other := id()
	_, err = c.CreateSnapshot(r.ctx, &targetv1.CreateSnapshotRequest{Uuid: other, Name: other, SourceLunUuid: clone})
	must(err)
	_, err = c.DeleteSnapshot(r.ctx, &targetv1.DeleteSnapshotRequest{Uuid: other})
	must(err)
	return 2 // the first snapshot and its clone
}

// same checks that both nodes say the same of every LUN and snapshot.
func (r *rig) same(t *testing.T) {
	t.Helper()
	var said [2]*targetv1.ListLUNsResponse
	var snapshots [2]*targetv1.ListSnapshotsResponse
	ctx, cancel := context.WithTimeout(r.ctx, waitBound)
	defer cancel()
	err := harness.Wait(ctx, "both nodes say the same", func() (bool, string) { // one applies a moment after the other
		for i := range harness.Names {
			var err error
			if said[i], err = r.Client(i).ListLUNs(r.ctx, &targetv1.ListLUNsRequest{}); err != nil {
				return false, err.Error()
			}
			if snapshots[i], err = r.Client(i).ListSnapshots(r.ctx, &targetv1.ListSnapshotsRequest{}); err != nil {
				return false, err.Error()
			}
			for _, l := range said[i].Luns {
				l.AllocatedBytes = 0 // of that node's filesystem
			}
		}
		before := func(l *targetv1.LUN) bool { return l.PinnedNode == "" } // as 0.1.0 says it, which knows neither pins nor holds nor groups nor tiers
		if slices.ContainsFunc(said[0].Luns, before) || slices.ContainsFunc(said[1].Luns, before) {
			for _, l := range slices.Concat(said[0].Luns, said[1].Luns) {
				if l.PinnedNode == "none" {
					l.PinnedNode = ""
				}
				if l.PinnedTier == "none" {
					l.PinnedTier = ""
				}
				if l.SpreadGroup == "none" {
					l.SpreadGroup = ""
				}
				l.HeldUntil = nil
			}
			for _, x := range slices.Concat(snapshots[0].Snapshots, snapshots[1].Snapshots) {
				x.GroupUuid, x.Attempt = "", 0
			}
		}
		return proto.Equal(said[0], said[1]) && proto.Equal(snapshots[0], snapshots[1]), fmt.Sprintf("%v %v and %v %v", said[0], snapshots[0], said[1], snapshots[1])
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(said[0].Luns) <= len(r.luns) || len(snapshots[0].Snapshots) == 0 {
		t.Fatalf("nothing to compare: %v %v", said[0], snapshots[0])
	}
}

// scrub has each node compare both copies of what it owns, by the link.
func (r *rig) scrub(t *testing.T) {
	t.Helper()
	var all uint64
	for i := range harness.Names {
		if _, err := r.Client(i).Scrub(r.ctx, &targetv1.ScrubRequest{BytesPerSecond: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(r.ctx, waitBound)
		err := harness.Wait(ctx, "the scrub of node "+harness.Names[i]+" has ended", func() (bool, string) {
			s, err := r.Status(ctx, i)
			if err != nil {
				return false, err.Error()
			}
			x := s.Scrub
			if x.GetFinished() == nil {
				return false, fmt.Sprint(x)
			}
			if x.MismatchedRanges > 0 || x.SkippedRanges > 0 || x.Reason != "" || x.DoneBytes != x.TotalBytes {
				t.Fatalf("scrub of node %s: %v", harness.Names[i], x)
			}
			all += x.DoneBytes
			return true, ""
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := uint64(len(r.luns)) * lunSize; all < want {
		t.Fatalf("%d bytes scrubbed, there are at least %d", all, want)
	}
}
