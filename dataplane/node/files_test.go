package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
)

const bornAttr = "user.gemel.born"

// failing has an operation of node i's store fail as long as it is set.
func (p *testPair) failing(i int, op string, err error) *atomic.Bool {
	var on atomic.Bool
	p.cfg[i].Faults = func(o, path string, _, _ int64) error {
		if on.Load() && o == op && strings.HasPrefix(path, "volumes/default/") {
			return err
		}
		return nil
	}
	return &on
}

func (p *testPair) deleteLUN(id string) {
	p.t.Helper()
	c := p.client(0)
	if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testPair) makeLUN(id string, size uint64) error {
	_, err := p.client(0).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: size, PreferredNode: "a"})
	return err
}

// zeros: a LUN has nothing but zeroes on both nodes.
func (p *testPair) zeros(id string, size int) {
	p.t.Helper()
	for i := range p.nodes {
		if !bytes.Equal(p.bytes(i, id), make([]byte, size)) {
			p.t.Errorf("the LUN holds something else than zeroes on node %v", p.nodes[i].self)
		}
	}
}

func (p *testPair) bornAt(path string) string {
	p.t.Helper()
	var b [20]byte
	n, err := unix.Getxattr(path, bornAttr, b[:])
	if err != nil {
		return err.Error()
	}
	return string(b[:n])
}

func (p *testPair) asides(i int) (names []string) {
	entries, err := os.ReadDir(filepath.Join(p.cfg[i].StateDir, "volumes", "default", "aside"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A file whose removal failed is not the LUN that is made under the same uuid later; or the nodes
// would be in sync with different copies.
func TestLeftoverOfADeletionIsNotServed(t *testing.T) {
	for _, restart := range []bool{false, true} {
		p := newTestPair(t)
		fails := p.failing(1, store.FaultDelete, syscall.EIO)
		log := p.keepLog(1)
		p.startBoth()
		id, m := p.lun(4*mib, "a")
		p.write(p.device(m), 0, 0xaa)
		p.clean()
		fails.Store(true)
		p.deleteLUN(id)
		if p.bytes(1, id)[0] != 0xaa || !strings.Contains(log.String(), "this node removes the file when it starts again") {
			t.Fatalf("it is not left: %s", log)
		}
		if restart { // while it still fails
			p.end(1)
			p.start(1)
			p.inSync()
			if !strings.Contains(log.String(), "trying again when this node starts again") || p.bytes(1, id)[0] != 0xaa {
				t.Fatal(log)
			}
		}
		if err := p.makeLUN(id, 4*mib); err == nil || !strings.Contains(err.Error(), "taken") {
			t.Errorf("while it cannot be removed: %v", err)
		}
		p.inSync()
		fails.Store(false)
		if err := p.makeLUN(id, 4*mib); err != nil {
			t.Fatal(err)
		}
		p.zeros(id, 4*mib)
		p.inSync()
		if got := p.asides(1); got != nil {
			t.Errorf("set aside: %v", got)
		}
	}
}

// At its next start a node removes what a deletion could not, and nothing else that its metadata
// does not name.
func TestOrphansAtTheStart(t *testing.T) {
	p := newTestPair(t)
	fails := p.failing(1, store.FaultDelete, syscall.EIO)
	log := p.keepLog(1)
	p.startBoth()
	id, _ := p.lun(4*mib, "a")
	other, _ := p.lun(4*mib, "a")
	snap := uuid.NewString()
	if _, err := p.client(0).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: other}); err != nil {
		t.Fatal(err)
	}
	fails.Store(true)
	p.deleteLUN(id)
	if _, err := p.client(0).DeleteSnapshot(p.ctx, &targetv1.DeleteSnapshotRequest{Uuid: snap}); err != nil {
		t.Fatal(err)
	}
	p.clean()
	p.end(1)
	fails.Store(false)
	stranger, scratch, later := uuid.NewString(), uuid.NewString(), uuid.NewString()
	for id, born := range map[string]string{stranger: "", scratch: "0", later: "99999"} {
		if err := os.WriteFile(p.image(1, id), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if born != "" {
			if err := unix.Setxattr(p.image(1, id), bornAttr, []byte(born), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A store against which something is known removes nothing.
	good := p.bytes(1, other)
	if err := os.Truncate(p.image(1, other), 5); err != nil {
		t.Fatal(err)
	}
	n, err := New(p.cfg[1])
	if err != nil {
		t.Fatal(err)
	}
	_ = n.store.Close()
	if err := os.WriteFile(p.image(1, other), good, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{p.image(1, id), p.object(1, "snapshots", snap)} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	p.start(1)
	p.inSync()
	for _, path := range []string{p.image(1, id), p.object(1, "snapshots", snap), filepath.Join(p.cfg[1].StateDir, "sums", "default", "luns", id+".sums"),
		filepath.Join(p.cfg[1].StateDir, "volumes", "default", "intents", id+".bits")} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, id := range []string{stranger, scratch, later} {
		if got := p.bytes(1, id); string(got) != "mine" {
			t.Errorf("%q", got)
		}
		if !strings.Contains(log.String(), "keeping the file, because the metadata may be an older copy\" node=b uuid="+id) && !strings.Contains(log.String(), "keeping the file, because the metadata may be an older copy\" uuid="+id) {
			t.Errorf("nothing is said of %s", id)
		}
	}
	p.alike(other)
}

// A file that a person has put there is not the LUN, and is kept.
func TestStrangerIsSetAside(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, clone := uuid.NewString(), uuid.NewString()
	snap := uuid.NewString()
	mine := bytes.Repeat([]byte("mine"), mib)
	for _, path := range []string{p.image(1, id), p.image(0, clone), p.object(1, "snapshots", snap)} {
		if err := os.WriteFile(path, mine, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.makeLUN(id, 4*mib); err != nil {
		t.Fatal(err)
	}
	p.zeros(id, 4*mib)
	c := p.client(0)
	if _, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: clone, Name: "clone", SizeBytes: 4 * mib, SourceSnapshotUuid: snap}); err != nil {
		t.Fatal(err)
	}
	p.zeros(clone, 4*mib)
	for i := range p.nodes {
		if !bytes.Equal(p.read(p.object(i, "snapshots", snap)), make([]byte, 4*mib)) {
			t.Errorf("the snapshot of node %d holds something else", i)
		}
	}
	for i, want := range [][]string{{clone + ".img-1"}, {id + ".img-1", snap + ".img-1"}} {
		names := p.asides(i)
		if len(names) != len(want) {
			t.Fatalf("node %d: %v", i, names)
		}
		for _, name := range want {
			if !bytes.Equal(p.read(filepath.Join(p.cfg[i].StateDir, "volumes", "default", "aside", name)), mine) {
				t.Errorf("%s is not what it was", name)
			}
		}
	}
}

// A stranger that cannot be set aside is in the way, and does not go with the object that could not
// be made.
func TestStrangerThatStays(t *testing.T) {
	p := newTestPair(t)
	fails := p.failing(1, store.FaultAside, syscall.ENOSPC)
	p.startBoth()
	id := uuid.NewString()
	mine := bytes.Repeat([]byte("mine"), mib)
	if err := os.WriteFile(p.image(1, id), mine, 0o600); err != nil {
		t.Fatal(err)
	}
	fails.Store(true)
	if err := p.makeLUN(id, 4*mib); err == nil {
		t.Fatal("made")
	}
	p.inSync()
	if !bytes.Equal(p.bytes(1, id), mine) {
		t.Fatal("it is not what it was")
	}
	fails.Store(false)
	if err := p.makeLUN(id, 4*mib); err != nil {
		t.Fatal(err)
	}
	p.zeros(id, 4*mib)
}

// A joiner's file that is not its metadata's is not the LUN that the source has.
func TestStrangerAtAJoiner(t *testing.T) {
	p := newTestPair(t).startBoth()
	p.end(1)
	id := uuid.NewString()
	if err := p.makeLUN(id, 4*mib); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.image(1, id), bytes.Repeat([]byte("mine"), mib), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	p.zeros(id, 4*mib)
	if got := p.asides(1); len(got) != 1 || got[0] != id+".img-1" {
		t.Errorf("set aside: %v", got)
	}
	if a, b := p.bornAt(p.image(0, id)), p.bornAt(p.image(1, id)); a != b || a == "0" {
		t.Errorf("born at %q and %q", a, b)
	}
}

// Images of an earlier release get their birth at the first start.
func TestImagesOfBeforeAreMarked(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(4*mib, "a")
	snap := uuid.NewString()
	if _, err := p.client(0).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	p.clean()
	p.end(1)
	want := map[string]string{}
	for _, path := range []string{p.image(1, id), p.object(1, "snapshots", snap)} {
		want[path] = p.bornAt(path)
		if err := unix.Removexattr(path, bornAttr); err != nil {
			t.Fatal(err)
		}
	}
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; r.Full {
		t.Fatalf("%+v", r)
	}
	for path, born := range want {
		if got := p.bornAt(path); got != born || born == "0" {
			t.Errorf("%s was born at %q, not %q", path, got, born)
		}
	}
}

// A LUN whose proposer did not live to commit it is prepared again. A node where its file is gone
// meanwhile has an empty one in its place, which is not the copy that it has to be.
func TestPreparedAgain(t *testing.T) {
	for name, again := range map[string]func(p *testPair, req *targetv1.CreateLUNRequest, l meta.LUN) error{
		"asked again": func(p *testPair, req *targetv1.CreateLUNRequest, _ meta.LUN) error {
			_, err := p.client(0).CreateLUN(p.ctx, req)
			return err
		},
		"proposed by an earlier release": func(p *testPair, _ *targetv1.CreateLUNRequest, l meta.LUN) error {
			_, err := p.nodes[0].propose(p.ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l}})
			if err == nil {
				_, err = p.nodes[0].propose(p.ctx, &meta.Entry{Commit: &meta.Object{UUID: l.UUID}})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { newTestPair(t).startBoth().preparedAgain(again) })
	}
}

func (p *testPair) preparedAgain(again func(p *testPair, req *targetv1.CreateLUNRequest, l meta.LUN) error) {
	t := p.t
	id, m := p.lun(4*mib, "a")
	p.write(p.device(m), 0, 7)
	snap, clone := uuid.NewString(), uuid.NewString()
	c := p.client(0)
	if _, err := c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	req := &targetv1.CreateLUNRequest{Uuid: clone, Name: "clone", SizeBytes: 4 * mib, SourceSnapshotUuid: snap, PreferredNode: "a"}
	l := meta.LUN{UUID: clone, Name: "clone", Size: 4 * mib, SourceSnapshot: snap, Preferred: "a", Created: meta.Now()}
	if _, err := p.nodes[0].propose(p.ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l}}); err != nil {
		t.Fatal(err)
	}
	p.clean()
	p.end(1)
	p.end(0)
	if err := os.Remove(p.image(0, clone)); err != nil { // at the one that will be the source
		t.Fatal(err)
	}
	p.start(0)
	p.until("a serves", func() bool { return p.nodes[0].View().Serving })
	if err := again(p, req, l); err != nil {
		t.Fatal(err)
	}
	if got := p.bytes(0, clone); got[0] != 7 {
		t.Fatal("the clone is empty")
	}
	mapped, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: clone, HostIqn: testHost})
	if err != nil {
		t.Fatal(err)
	}
	p.write(p.device(mapped), 2*mib, 9) // into the file that has the name
	p.start(1)
	p.inSync()
	p.clean()
	p.alike(clone)
	if got := p.bytes(0, clone); got[2*mib] != 9 {
		t.Fatal("the write is not there")
	}
}
