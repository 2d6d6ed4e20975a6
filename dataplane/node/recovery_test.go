package node

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

const mib = 1 << 20

func (p *testPair) write(d *initiator.Device, off int64, b byte) {
	p.t.Helper()
	if _, err := d.WriteAt(p.ctx, bytes.Repeat([]byte{b}, mib), off); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testPair) end(i int) {
	p.t.Helper()
	if err := p.stop(i); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testPair) alike(id string) {
	p.t.Helper()
	if !bytes.Equal(p.bytes(0, id), p.bytes(1, id)) {
		p.t.Fatal("the copies differ")
	}
}

// checkpoints is how many checkpoints node i has led.
func (p *testPair) checkpoints(i int) uint64 {
	n := p.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.Stats.Checkpoints
}

// clean waits until no bit is set on either node.
func (p *testPair) clean() {
	p.t.Helper()
	p.until("checkpoints have cleared every bit", func() bool { return p.nodes[0].hotRegions() == 0 && p.nodes[1].hotRegions() == 0 })
}

// counterpart restarts node b, which has been copied to: from there on it is the counterpart, and
// is not copied to as a whole again.
func (p *testPair) counterpart() {
	p.t.Helper()
	p.clean()
	p.end(1)
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; r.Full {
		p.t.Fatalf("%+v", r)
	}
}

// A node that was away is given the regions that were written meanwhile, not the whole LUN (R7).
func TestResyncOfWhatWasWritten(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(128*mib, "a")
	d := p.device(m)
	for off := int64(0); off < 96*mib; off += 8 * mib {
		p.write(d, off, 1)
	}
	p.clean()
	p.end(1)
	p.write(d, 33*mib, 2)
	if got := p.nodes[0].hotRegions(); got == 0 || got > 9 {
		t.Fatalf("%d regions are hot after one write alone", got)
	}
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; r.Full || r.Total == 0 || r.Total > 9*store.RegionSize {
		t.Fatalf("%+v", r)
	}
	s, err := p.client(0).GetStatus(p.ctx, &targetv1.GetStatusRequest{}) // now: on a busy machine the link may be lost again, and the next resync copies nothing
	if err != nil || s.Resync.GetFull() || s.Resync.GetFinished() == nil || s.Resync.GetBytesPerSecond() == 0 {
		t.Fatalf("%v %v", s, err)
	}
	p.clean()
	p.alike(id)
	if s, err = p.client(0).GetStatus(p.ctx, &targetv1.GetStatusRequest{}); err != nil || s.DirtyBytes != 0 {
		t.Fatalf("%v %v", s, err)
	}
}

// An older copy of a store, put back by whatever means, is known by its checkpoints and copied
// whole (R6).
func TestRolledBackStoreIsCopiedWhole(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(32*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	p.end(1)
	older := t.TempDir()
	if err := os.CopyFS(older, os.DirFS(p.cfg[1].StateDir)); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	before := p.checkpoints(0)
	p.write(d, 8*mib, 2)
	p.until("another checkpoint", func() bool { return p.checkpoints(0) > before })
	p.clean()
	p.end(1)
	p.cfg[1].StateDir = older
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; !r.Full || !strings.Contains(r.FullReason, "rolled back") || r.Total != 32*mib {
		t.Fatalf("%+v", r)
	}
	p.alike(id)
}

// A new disk is copied to whole.
func TestReplacedStoreIsCopiedWhole(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(32*mib, "a")
	p.write(p.device(m), 0, 1)
	p.end(1)
	p.cfg[1].StateDir = t.TempDir()
	p.start(1)
	p.inSync()
	if r := p.nodes[0].View().Resync; !r.Full || r.Total != 32*mib {
		t.Fatalf("%+v", r)
	}
	p.alike(id)
	p.counterpart()
}

// A LUN that was deleted and made again under the same uuid while a node was away is another LUN
// there (R14).
func TestLUNMadeAnewWhileAway(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(16*mib, "a")
	p.write(p.device(m), 0, 0xaa)
	p.clean()
	p.end(1)
	c := p.client(0)
	if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "again", SizeBytes: 16 * mib}); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	if !bytes.Equal(p.bytes(1, id), make([]byte, 16*mib)) {
		t.Fatal("the new LUN shows the old one's data")
	}
}

// A snapshot that is prepared and whose commit is still to come is copied to a joiner like any
// other: the commit makes it visible on both nodes, whenever it comes (R14).
func TestSnapshotPreparedBeforeAResync(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	p.end(1)
	p.write(d, 0, 2)
	n := p.nodes[0]
	snap := uuid.NewString()
	if _, err := n.propose(p.ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: meta.Snapshot{UUID: snap, Name: "s", Source: id, Created: meta.Now()}}}); err != nil {
		t.Fatal(err)
	}
	p.write(d, 0, 3)
	p.start(1)
	p.inSync()
	if _, err := n.propose(p.ctx, &meta.Entry{Commit: &meta.Object{UUID: snap}}); err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Repeat([]byte{2}, mib), make([]byte, 7*mib)...)
	for i := range p.nodes {
		if !bytes.Equal(p.read(p.object(i, "snapshots", snap)), want) {
			t.Errorf("node %v holds something else", p.nodes[i].self)
		}
	}
}

// What the last entry of a joiner made counts as another object: the source may have done that
// entry later (R14).
func TestObjectOfTheLastEntryIsCopied(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(mib, "a")
	snap := uuid.NewString()
	named := func() map[string]bool {
		n := p.nodes[1]
		n.md.mu.Lock()
		defer n.md.mu.Unlock()
		if err := n.makeFiles(n.md.state); err != nil {
			t.Fatal(err)
		}
		names, err := n.loadCopying()
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	propose := func(e *meta.Entry) {
		if _, err := p.nodes[0].propose(p.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	prepare := &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: meta.Snapshot{UUID: snap, Name: "s", Source: id, Created: meta.Now()}}}
	propose(prepare)
	propose(&meta.Entry{Commit: &meta.Object{UUID: snap}})
	if got := named(); len(got) != 0 {
		t.Fatalf("after its commit: %v", got)
	}
	snap = uuid.NewString()
	prepare.CreateSnapshot.Snapshot.UUID, prepare.CreateSnapshot.Snapshot.Name = snap, "s2"
	propose(prepare)
	if got := named(); !maps.Equal(got, map[string]bool{snap: true}) {
		t.Fatalf("%v, not %s", got, snap)
	}
}

// What a joiner makes from an object of its own is on record as incomplete before its file is there
// (R14).
func TestJoinerNamesItsCopies(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(mib, "a")
	n := p.nodes[1]
	member, joiner, clone := uuid.NewString(), uuid.NewString(), uuid.NewString()
	n.md.mu.Lock()
	err := errors.Join(
		n.applyFiles(n.md.state, &meta.Effect{CreatedSnapshot: &meta.Snapshot{UUID: member, Source: id}}, false),
		n.applyFiles(n.md.state, &meta.Effect{CreatedSnapshot: &meta.Snapshot{UUID: joiner, Source: id}}, true),
		n.applyFiles(n.md.state, &meta.Effect{CreatedLUN: &meta.LUN{UUID: clone, SourceLUN: id, Size: mib}}, true),
		n.applyFiles(n.md.state, &meta.Effect{CreatedLUN: &meta.LUN{UUID: uuid.NewString(), Size: mib}}, true))
	n.md.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := n.loadCopying(); err != nil || !maps.Equal(got, map[string]bool{joiner: true, clone: true}) {
		t.Fatalf("%v %v", got, err)
	}
}

// The lone member is lost for good: an administrator names the other node, and hosts learn that
// writes may be gone (R2, R8).
func TestForcedNodeServesAndTellsHostsOfLostWrites(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(16*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.end(1)
	p.write(d, 0, 2) // only a has it
	p.end(0)
	p.start(1)
	c := p.client(1)
	force := func(epoch uint64, accept bool) error {
		_, err := c.Force(p.ctx, &targetv1.ForceRequest{Epoch: epoch, AcceptDataLoss: accept})
		return err
	}
	p.until("b waits", func() bool { return p.nodes[1].View().ForceEpoch != 0 })
	s, err := c.GetStatus(p.ctx, &targetv1.GetStatusRequest{})
	if err != nil || s.Phase != targetv1.Phase_PHASE_JOINING {
		t.Fatalf("%v %v", s, err)
	}
	if err := force(s.ForceEpoch, false); status.Code(err) != codes.InvalidArgument {
		t.Fatal(err)
	}
	if err := force(s.ForceEpoch+1, true); status.Code(err) != codes.FailedPrecondition {
		t.Fatal(err)
	}
	if err := force(s.ForceEpoch, true); err != nil {
		t.Fatal(err)
	}
	p.until("b serves", func() bool { return p.nodes[1].View().Phase == pair.Alone && p.nodes[1].View().Serving })
	buf := make([]byte, 512)
	if _, err := d.ReadAt(p.ctx, buf, 0); !errors.Is(err, initiator.ErrMedium) {
		t.Fatalf("a read after the loss: %v", err)
	}
	if s, err = c.GetStatus(p.ctx, &targetv1.GetStatusRequest{}); err != nil || len(s.LostLuns) != 1 || s.LostLuns[0] != id {
		t.Fatalf("%v %v", s, err)
	}
	if err := force(s.Epoch, true); status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("forced while it serves: %v", err)
	}
	if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
		t.Fatal(err)
	}
	m, err = c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.device(m).ReadAt(p.ctx, buf, 0); err != nil || buf[0] != 1 {
		t.Fatalf("published again: %v, %d", err, buf[0])
	}
	// The lost member comes back: it has nothing to say any more.
	p.start(0)
	p.inSync()
	if r := p.nodes[1].View().Resync; !r.Full {
		t.Fatalf("%+v", r)
	}
	p.alike(id)
	if p.bytes(0, id)[0] != 1 {
		t.Fatal("the lost generation came back")
	}
}

// A byte that changed behind a node's back, where no checksum tells who is wrong, is found, named
// and, if asked for, repaired.
func TestScrubFindsAFlippedByte(t *testing.T) {
	p := newTestPair(t)
	p.cfg[0].NoChecksums, p.cfg[1].NoChecksums = true, true
	log := p.keepLog(0)
	p.startBoth()
	id, m := p.lun(16*mib, "a")
	p.write(p.device(m), 4*mib, 7)
	p.clean()
	f, err := os.OpenFile(p.image(1, id), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt([]byte{8}, 4*mib+99); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, 9*mib); err != nil { // a hole at the owner
		t.Fatal(err)
	}
	c := p.client(1)
	scrub := func(repair bool) pair.ScrubView {
		t.Helper()
		if _, err := c.Scrub(p.ctx, &targetv1.ScrubRequest{Repair: repair, BytesPerSecond: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		p.until("the scrub ends", func() bool { return !p.nodes[0].View().Scrub.Active && !p.nodes[1].View().Scrub.Active })
		return p.nodes[0].View().Scrub
	}
	if v := scrub(false); v.Mismatched != 2 || v.Done != 16*mib || v.Skipped != 0 {
		t.Fatalf("%+v", v)
	}
	if s := log.String(); !strings.Contains(s, "the copies of LUN "+id+" differ at 4194304+1048576") {
		t.Fatal(s)
	}
	if bytes.Equal(p.bytes(0, id), p.bytes(1, id)) {
		t.Fatal("repaired without being asked")
	}
	if v := scrub(true); v.Repaired != 2 {
		t.Fatalf("%+v", v)
	}
	p.alike(id)
	if v := scrub(false); v.Mismatched != 0 {
		t.Fatalf("%+v", v)
	}
	if _, err := c.Scrub(p.ctx, &targetv1.ScrubRequest{Uuids: []string{"6ba7b810-9dad-11d1-80b4-00c04fd430c8"}}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	p.end(1)
	if _, err := p.client(0).Scrub(p.ctx, &targetv1.ScrubRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Fatal(err)
	}
}
