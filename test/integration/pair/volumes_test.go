package pair

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// A node is killed while LUNs in both of its volumes are written to, and is resynced. Without its
// second volume it is refused by name, and the pair continues.
func TestTwoVolumes(t *testing.T) {
	p, ctx := start(t)
	fast := [2]string{p.State[0] + "-fast", p.State[1] + "-fast"}
	for i := range fast { // added to a pair that runs
		p.PerNode[i] = []string{"--backing-volume=fast=" + fast[i], "--shared-filesystem"}
		if err := p.Term(i); err != nil {
			t.Fatal(err)
		}
		if err := p.StartNode(i); err != nil {
			t.Fatal(err)
		}
		if err := p.WaitInSync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	c := p.Client(0)
	first, m := createLUN(t, ctx, p, 16<<20, "a")
	id := uuid.NewString()
	if _, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "fast", SizeBytes: 16 << 20, PreferredNode: "b", Volume: "fast"}); err != nil {
		t.Fatal(err)
	}
	m2, err := c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	if err != nil {
		t.Fatal(err)
	}
	loads := []*load{startLoad(ctx, open(t, ctx, m), 4, 1024), startLoad(ctx, open(t, ctx, m2), 4, 1024)}
	more := func() {
		t.Helper()
		for _, l := range loads {
			l.more(t, ctx, 300)
		}
	}
	more()
	for _, i := range []int{1, 0} {
		if err := p.Kill(i); err != nil {
			t.Fatal(err)
		}
		more()
		if err := p.StartNode(i); err != nil {
			t.Fatal(err)
		}
		if err := p.WaitInSync(ctx); err != nil {
			t.Fatal(err)
		}
		more()
	}
	snap := uuid.NewString()
	if _, err := c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}

	with := p.PerNode[1]
	if err := p.Kill(1); err != nil {
		t.Fatal(err)
	}
	p.PerNode[1] = nil
	if err := p.StartNode(1); err != nil {
		t.Fatal(err)
	}
	if err := harness.Wait(ctx, "the process says which volume it lacks", func() (bool, string) {
		b, _ := os.ReadFile(p.LogFile(1))
		return strings.Contains(string(b), `backing volume "fast", which holds 2 LUNs and snapshots of this node, is missing from the flags: add --backing-volume fast=DIR`), string(b)
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Term(1); err == nil {
		t.Error("the process ends as if all were well")
	}
	more()
	p.PerNode[1] = with
	if err := p.StartNode(1); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	for i, l := range loads {
		finishLoad(t, ctx, l, []*targetv1.Mapping{m, m2}[i])
	}
	for i := range harness.Names {
		if err := p.Term(i); err != nil {
			t.Fatal(err)
		}
	}
	alike(t, p, first.Uuid)
	for _, path := range []string{"luns/" + id + ".img", "snapshots/" + snap + ".img"} {
		a, err := os.ReadFile(filepath.Join(fast[0], path))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(fast[1], path))
		if err != nil || !bytes.Equal(a, b) {
			t.Fatalf("the copies of %s differ: %v", path, err)
		}
	}
}
