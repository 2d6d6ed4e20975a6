package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// pooled gives both nodes a pool of members, which a spread LUN has.
func (p *testPair) pooled(members ...string) *testPair {
	for i := range p.cfg {
		p.cfg[i].BackingVolumes, p.cfg[i].SharedFilesystem = nil, true
		for _, m := range members {
			p.cfg[i].BackingVolumes = append(p.cfg[i].BackingVolumes, "pool/"+m+"="+p.memberDir(i, m))
		}
		p.cfg[i].Lease = Duration(2 * time.Second) // nothing here is about fail-over
	}
	return p
}

func (p *testPair) memberDir(i int, m string) string { return p.cfg[i].StateDir + "-" + m }

// content of a LUN at a node, which is up.
func (p *testPair) content(i int, id string) []byte {
	p.t.Helper()
	v, err := p.nodes[i].store.Volume("pool")
	if err != nil {
		p.t.Fatal(err)
	}
	f, err := v.OpenLUN(id)
	if errors.Is(err, store.ErrNotFound) {
		f, err = v.OpenSnapshot(id)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		p.t.Fatal(err)
	}
	b := make([]byte, size)
	if err := f.ReadAt(b, 0); err != nil {
		p.t.Fatal(err)
	}
	return b
}

func (p *testPair) alikeInPool(id string) {
	p.t.Helper()
	p.until("the copies are alike", func() bool { return string(p.content(0, id)) == string(p.content(1, id)) })
}

// lostMember has the message about a member that is another one, and the id that it names.
func (p *testPair) lostMember(i int) string {
	p.t.Helper()
	err := open(p.cfg[i])
	if err == nil || !errors.Is(err, ErrConfig) && !strings.Contains(err.Error(), "--lost-volume") {
		p.t.Fatalf("a member that is lost: %v", err)
	}
	_, after, _ := strings.Cut(err.Error(), "--lost-volume ")
	id, _, _ := strings.Cut(after, " ")
	return id
}

// The life of a LUN over the members of a pool: one node has other members than the other, and one
// of its disks is lost. What was there comes back from the other node, of LUNs that had something
// there only.
func TestLUNOverMembers(t *testing.T) {
	p := newTestPair(t).pooled("x", "y", "z")
	p.cfg[1].BackingVolumes = p.cfg[1].BackingVolumes[:2]
	p.startBoth()
	id, m := p.lunIn(0, "pool")
	d := p.device(m)
	for at := int64(0); at < 16*mib; at += 2 * mib {
		p.write(d, at, byte(1+at/mib))
	}
	p.alikeInPool(id)
	for _, x := range p.cfg[0].BackingVolumes {
		_, dir, _ := strings.Cut(x, "=")
		st, err := os.Stat(filepath.Join(dir, "luns", id+".img"))
		if err != nil || st.Size() != 16*mib {
			t.Errorf("%s: %v %v", dir, st, err)
		}
	}
	// Snapshot, clone, growth.
	c := p.client(0)
	snap, clone := uuid.NewString(), uuid.NewString()
	if _, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	p.write(d, 0, 99)
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: clone, Name: "clone", SizeBytes: 20 * mib, SourceSnapshotUuid: snap}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 24 * mib}); err != nil {
		t.Fatal(err)
	}
	p.alikeInPool(id)
	p.alikeInPool(clone)

	// The disk of a member of node b.
	p.end(1)
	p.until("a is alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && !v.Linked })
	p.write(d, 6*mib, 77)
	if err := os.RemoveAll(p.memberDir(1, "y")); err != nil {
		t.Fatal(err)
	}
	lost := p.lostMember(1)
	if _, err := uuid.Parse(lost); err != nil {
		t.Fatalf("the message names %q", lost)
	}
	p.cfg[1].LostVolumes = []string{lost}
	p.start(1)
	p.inSync()
	p.alikeInPool(id)
	p.alikeInPool(clone)
	p.alikeInPool(snap)
	p.end(1)
	p.cfg[1].LostVolumes = nil
	p.start(1)
	p.inSync()
	p.write(d, 18*mib, 5)
	p.alikeInPool(id)

	// What is left of them after their deletion.
	for _, x := range []string{id, clone} {
		if x == id {
			if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: x}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.client(0).DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: x}); err != nil {
			t.Fatal(err)
		}
		for i := range p.cfg {
			for _, v := range p.cfg[i].BackingVolumes {
				_, dir, _ := strings.Cut(v, "=")
				p.gone(filepath.Join(dir, "luns", x+".img"))
			}
			p.gone(filepath.Join(p.cfg[i].StateDir, "volumes", "pool", "luns", x+".map"))
		}
	}
}

// extentsIn counts those that a node has in a member.
func (p *testPair) extentsIn(i int, id string, number uint8) (n int64) {
	if f := p.nodes[i].entryOf(id); f != nil {
		return f.file.CountExtents()[number]
	}
	return -1
}

// A member is drained while a host writes, and taken away; then another one is added.
func TestDrainOfAMember(t *testing.T) {
	p := newTestPair(t).pooled("x", "y", "z").startBoth()
	id, m := p.lunIn(0, "pool")
	d := p.device(m)
	for at := int64(0); at < 12*mib; at += mib {
		p.write(d, at, byte(1+at/mib))
	}
	c := p.client(0)
	snap := uuid.NewString()
	if _, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	drain := func(member string, end bool) error {
		_, err := c.DrainMember(p.ctx, &targetv1.DrainMemberRequest{Volume: "pool", Member: member, End: end})
		return err
	}
	p.refuses(drain("w", false), codes.NotFound, `no member "w"`)
	p.refuses(drain("", false), codes.InvalidArgument, "member")
	_, err := c.DrainMember(p.ctx, &targetv1.DrainMemberRequest{Volume: "pond", Member: "x"})
	p.refuses(err, codes.NotFound, "pond")
	if err := drain("y", false); err != nil {
		t.Fatal(err)
	}
	p.refuses(drain("x", false), codes.FailedPrecondition, `member "y" of backing volume "pool" is drained`)
	p.until("nothing is left in y", func() bool {
		p.write(d, 2*mib, 50)
		places := p.nodes[0].Status(p.ctx).Places
		return len(places) == 3 && places[1].Member == "y" && places[1].Draining && places[1].ExtentsLeft == 0 && p.extentsIn(0, id, 3) == 0
	})
	if _, text := p.get(0, "/metrics"); !strings.Contains(text, `gemel_member_draining_extents{member="y",volume="pool"} 0`) || !strings.Contains(text, `gemel_member_free_bytes{member="x",volume="pool"} `) {
		t.Error("the members have no metrics")
	}
	if n := p.extentsIn(1, id, 3); n == 0 {
		t.Error("the other node's member of that name is empty too")
	}
	if _, err := c.ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 32 * mib}); err != nil {
		t.Fatal(err)
	}
	later, _ := p.lunIn(0, "pool")
	for _, x := range []string{id, later} {
		if n := p.extentsIn(0, x, 3); n != 0 {
			t.Errorf("%d extents are in y, which is drained", n)
		}
	}
	p.alikeInPool(id)
	p.alikeInPool(snap)

	with := p.cfg[0].BackingVolumes
	p.end(0)
	p.cfg[0].BackingVolumes = []string{with[0], with[2]}
	p.start(0)
	p.inSync()
	p.write(d, 10*mib, 3)
	p.alikeInPool(id)
	if places := p.nodes[0].Status(p.ctx).Places; len(places) != 2 {
		t.Errorf("%v", places)
	}
	p.end(0)
	p.cfg[0].BackingVolumes = append(p.cfg[0].BackingVolumes, "pool/y="+p.memberDir(0, "y2"))
	p.start(0)
	p.inSync()
	if e := p.nodes[0].entryOf(id); e == nil || e.misfit {
		t.Error("the LUN is not whole")
	}
	if err := p.nodes[0].MoveExtent(p.ctx, id, 0, 5); err != nil { // the number of the removed one stays its own
		t.Error(err)
	}
	p.write(d, 0, 9)
	p.alikeInPool(id)

	// One that is not empty yet cannot be taken away.
	if err := drain("x", false); err != nil {
		t.Fatal(err)
	}
	if err := drain("x", true); err != nil {
		t.Fatal(err)
	}
	p.end(0)
	p.cfg[0].BackingVolumes = p.cfg[0].BackingVolumes[1:]
	if err := open(p.cfg[0]); err == nil || !strings.Contains(err.Error(), "missing from the configuration") {
		t.Errorf("a node without a member that has data: %v", err)
	}
}
