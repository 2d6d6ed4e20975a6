package node

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Every call is idempotent, and the same through either node.
func TestControlIsIdempotentThroughBothNodes(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, snap := uuid.NewString(), uuid.NewString()
	for round := range 2 {
		for i := range p.nodes {
			c := p.client(i)
			check := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("round %d, node %d: %s: %v", round, i, what, err)
				}
			}
			l, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 1 << 20})
			check("create", err)
			m, err := c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: strings.ToUpper(testHost)})
			check("map", err)
			if m.Lun != 0 || m.HostIqn != testHost || m.Wwid != l.Wwid || len(m.Portals) != 2 {
				t.Errorf("%v", m)
			}
			_, err = c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: id})
			check("snapshot", err)
			r, err := c.TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"})
			check("transfer", err)
			if first := round == 0 && i == 0; (r.Moved == 1) != first {
				t.Errorf("round %d, node %d: moved %d", round, i, r.Moved)
			}
		}
	}
	for _, i := range []int{1, 0, 1} {
		c := p.client(i)
		if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: testHost}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteSnapshot(p.ctx, &targetv1.DeleteSnapshotRequest{Uuid: snap}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
			t.Fatal(err)
		}
	}
}

// What the pair does not have is refused, and nothing moves or is left behind.
func TestUnknownObjectsAreRefused(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(1<<20, "a")
	other := uuid.NewString()
	_, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id, other}, ToNode: "b"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), other) {
		t.Error(err)
	}
	l, err := p.client(0).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil || l.Owner != "a" {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: other, Name: "other", SizeBytes: 1 << 20, SourceSnapshotUuid: uuid.NewString()}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if l, err := p.client(0).ListLUNs(p.ctx, &targetv1.ListLUNsRequest{}); err != nil || len(l.Luns) != 1 {
		t.Errorf("%v, %v", l, err)
	}
}
