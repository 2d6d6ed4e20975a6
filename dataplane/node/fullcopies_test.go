package node

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Where the filesystem of either node cannot share extents, a snapshot, a clone and a member of a
// group snapshot are refused at whichever node is asked, and nothing is made; with --full-copies
// they are made, and what is there stays usable when the flag is taken away.
func TestFullCopies(t *testing.T) {
	p := newTestPair(t).startBoth()
	if v, err := p.nodes[0].store.Volume(""); err != nil {
		t.Fatal(err)
	} else if v.Reflink() {
		t.Skip("needs a temporary folder on a filesystem that cannot share extents: set TMPDIR to one")
	}
	id, _ := p.lunIn(0, "default")
	kept := uuid.NewString()
	if _, err := p.client(0).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: kept, Name: "kept", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	for _, without := range []int{0, 1} {
		for i := range p.cfg {
			p.cfg[i].FullCopies = i != without
			if err := p.stop(i); err != nil {
				t.Fatal(err)
			}
			p.start(i)
			p.inSync()
		}
		for asked := range p.nodes {
			refused := func(what string, err error) {
				t.Helper()
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "node "+p.cfg[without].Node) || !strings.Contains(err.Error(), "--full-copies") {
					t.Errorf("node %s does not accept full copies, %s asked of node %s: %v", p.cfg[without].Node, what, p.cfg[asked].Node, err)
				}
			}
			n := uuid.NewString()
			_, err := p.client(asked).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: n, Name: n, SourceLunUuid: id})
			refused("a snapshot", err)
			_, err = p.client(asked).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: n, Name: n, SizeBytes: 16 * mib, SourceLunUuid: id})
			refused("a clone", err)
			_, err = p.client(asked).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: n, Name: n, SizeBytes: 16 * mib, SourceSnapshotUuid: kept})
			refused("a restored LUN", err)
			if _, err := p.client(asked).BeginGroupSnapshot(p.ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: n, Attempt: 1}); err != nil {
				t.Fatal(err)
			}
			_, err = p.client(asked).PrepareGroupSnapshot(p.ctx, &targetv1.PrepareGroupSnapshotRequest{GroupUuid: n, Attempt: 1,
				Members: []*targetv1.CreateSnapshotRequest{{Uuid: uuid.NewString(), Name: n, SourceLunUuid: id}}})
			refused("a group snapshot", err)
		}
		// A request that is repeated, for what is there.
		if _, err := p.client(0).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: kept, Name: "kept", SourceLunUuid: id}); err != nil {
			t.Error(err)
		}
		luns, err := p.client(0).ListLUNs(p.ctx, &targetv1.ListLUNsRequest{})
		if err != nil || len(luns.Luns) != 1 {
			t.Errorf("%d LUNs, %v", len(luns.GetLuns()), err)
		}
		snaps, err := p.client(0).ListSnapshots(p.ctx, &targetv1.ListSnapshotsRequest{})
		if err != nil || len(snaps.Snapshots) != 1 {
			t.Errorf("%d snapshots, %v", len(snaps.GetSnapshots()), err)
		}
	}
}
