package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// gate is where copies wait, or fail, while it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: open
	err  error
	met  chan struct{}
	once sync.Once
}

// shut closes it; the function that it returns opens it.
func (g *gate) shut(err error) (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	g.open, g.err, g.met, g.once = c, err, make(chan struct{}), sync.Once{}
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		close(c)
		g.open = nil
	})
}

func (g *gate) pass() error {
	g.mu.Lock()
	c, met, err := g.open, g.met, g.err
	g.mu.Unlock()
	if c == nil {
		return nil
	}
	g.once.Do(func() { close(met) })
	if err != nil {
		return err
	}
	<-c
	return nil
}

// gated has whatever node i copies into snapshots and clones wait at a gate.
func (p *testPair) gated(i int) *gate {
	g := new(gate)
	p.cfg[i].Faults = func(op, path string, _, _ int64) error {
		if (op == store.FaultWrite || op == store.FaultClone) && strings.HasPrefix(path, "volumes/default/snapshots/") {
			return g.pass()
		}
		return nil
	}
	return g
}

// shutBoth starts both nodes with a LUN that has data, and shuts their gates.
func (p *testPair) shutBoth() (lun string, d *initiator.Device, open [2]func()) {
	p.t.Helper()
	g := [2]*gate{p.gated(0), p.gated(1)}
	p.startBoth()
	lun, m := p.lun(4*mib, "a")
	d = p.device(m)
	p.write(d, 0, 1)
	return lun, d, [2]func(){g[0].shut(nil), g[1].shut(nil)}
}

func (p *testPair) snapshot(ctx context.Context, snap, lun string) error {
	_, err := p.client(0).CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s-" + snap, SourceLunUuid: lun})
	return err
}

// begin asks for a snapshot and returns when it is marked; done is its end.
func (p *testPair) begin(snap, lun string) (done <-chan error) {
	p.t.Helper()
	c := make(chan error, 1)
	ask := func() { c <- p.snapshot(p.ctx, snap, lun) }
	go ask()
	p.until("the snapshot is marked", func() bool {
		select {
		case err := <-c: // asked while the other node left: callers ask again
			if status.Code(err) != codes.Unavailable {
				p.t.Fatal(err)
			}
			go ask()
		default:
		}
		return p.stage(snap) == meta.Copying
	})
	return c
}

// stage is what a node says of a copy that runs.
func (p *testPair) stage(id string) meta.Stage {
	for _, n := range p.nodes {
		if n != nil {
			if c, ok := n.copyByID(id); ok {
				return c.Stage
			}
		}
	}
	return ""
}

// snapshotsHold compares both nodes' files of a snapshot with what it has to be.
func (p *testPair) snapshotsHold(snap string, want []byte) {
	p.t.Helper()
	for i := range p.nodes {
		if got := p.read(p.object(i, "snapshots", snap)); !bytes.Equal(got, want) {
			p.t.Errorf("the snapshot of node %d is something else", i)
		}
	}
}

// A snapshot under load is what was there at one instant: every write that had ended when a later
// one began is in it if the later one is.
func TestSnapshotUnderLoadIsOfOneInstant(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(16*mib, "b")
	d := p.device(m)
	const block, blocks = 4096, 16 * mib / 4096
	var last [blocks][]uint64 // numbers of the writes of each block
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		rnd, buf := rand.New(rand.NewPCG(1, 2)), make([]byte, block)
		for n := uint64(1); !stop.Load(); n++ {
			b := rnd.IntN(blocks)
			binary.LittleEndian.PutUint64(buf, n)
			if _, err := d.WriteAt(p.ctx, buf, int64(b)*block); err != nil {
				t.Error(err)
				return
			}
			last[b] = append(last[b], n)
		}
	})
	var snaps []string
	for range 8 {
		snaps = append(snaps, uuid.NewString())
		if err := p.snapshot(p.ctx, snaps[len(snaps)-1], id); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	for _, snap := range snaps {
		is := p.read(p.object(0, "snapshots", snap))
		p.snapshotsHold(snap, is)
		at := uint64(0) // the newest write that is in it
		for b := range blocks {
			at = max(at, binary.LittleEndian.Uint64(is[b*block:]))
		}
		for b := range blocks {
			want := uint64(0)
			for _, n := range last[b] {
				if n <= at {
					want = n
				}
			}
			if got := binary.LittleEndian.Uint64(is[b*block:]); got != want {
				t.Fatalf("snapshot %s has write %d of block %d, not %d, and has write %d", snap, got, b, want, at)
			}
		}
		if at == 0 {
			t.Error("nothing had been written")
		}
	}
}

// While the owner of a LUN copies, it dies: the other node has a copy of its own. The dead node's
// counts for nothing when it comes back.
func TestCopyOutlivesANode(t *testing.T) {
	for dies := range 2 {
		t.Run(fmt.Sprint("node ", dies), func(t *testing.T) {
			p := newTestPair(t)
			id, d, open := p.shutBoth()
			defer open[0]()
			defer open[1]()
			snap := uuid.NewString()
			done := p.begin(snap, id)
			want := append(bytes.Repeat([]byte{1}, mib), make([]byte, 3*mib)...)
			open[dies]() // a process that ends waits for its disk
			p.end(dies)
			if st := p.stage(snap); st != meta.Copying {
				t.Fatalf("the snapshot is %q", st)
			}
			open[1-dies]()
			p.write(d, 0, 2)
			p.until("it is complete", func() bool { return p.stage(snap) == meta.Ready })
			<-done // an error if it was asked of the node that died
			p.start(dies)
			p.inSync()
			p.snapshotsHold(snap, want)
			p.alike(id)
		})
	}
}

// Nobody has what a snapshot was to be when both nodes have been restarted: it goes, and the
// request is repeated.
func TestCopyIsGivenUpAfterARestart(t *testing.T) {
	p := newTestPair(t)
	id, _, open := p.shutBoth()
	snap := uuid.NewString()
	done := p.begin(snap, id)
	// Ended so that nothing is sealed: the disk answers when the process is on its way out.
	ends := make(chan struct{}, 2)
	for i := range 2 {
		go func() { p.end(i); ends <- struct{}{} }()
	}
	p.untilGone(p.nodes[0], p.nodes[1])
	open[0]()
	open[1]()
	<-ends
	<-ends
	<-done
	if err := p.snapshotAfter(snap, id, func() { p.start(0); p.start(1); p.inSync() }); err != nil {
		t.Fatal(err)
	}
	p.snapshotsHold(snap, append(bytes.Repeat([]byte{1}, mib), make([]byte, 3*mib)...))
}

// untilGone waits until nodes are about to end.
func (p *testPair) untilGone(nodes ...*Node) {
	for _, n := range nodes {
		<-n.run.ctx.Done()
	}
}

// snapshotAfter starts nodes, waits until what is left of a copy has gone, and asks for it again.
func (p *testPair) snapshotAfter(snap, lun string, start func()) error {
	p.t.Helper()
	start()
	p.until("what was not complete is gone", func() bool { return p.stage(snap) == "" })
	return p.snapshot(p.ctx, snap, lun)
}

// lookAgain has those who wait for copies look at every moment, until the test ends.
func (p *testPair) lookAgain() {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(p.ctx)
	p.t.Cleanup(func() { cancel(); wg.Wait() })
	for _, n := range p.nodes {
		wg.Go(func() {
			for ctx.Err() == nil {
				n.copies.applied.changed()
				runtime.Gosched()
			}
		})
	}
}

// No space on one node is an error of the snapshot that says so, and of nothing else, at whatever
// moment the call looks.
func TestNoSpaceForACopy(t *testing.T) {
	for i := range 2 {
		p := newTestPair(t)
		g := p.gated(i)
		p.startBoth()
		p.lookAgain()
		id, m := p.lun(4*mib, "a")
		d := p.device(m)
		p.write(d, 0, 1)
		open := g.shut(syscall.ENOSPC)
		snap := uuid.NewString()
		p.refuses(p.snapshot(p.ctx, snap, id), codes.ResourceExhausted, fmt.Sprintf("node %v", p.nodes[i].self), "no space left")
		if st := p.stage(snap); st != "" {
			t.Errorf("it is still %q", st)
		}
		p.write(d, mib, 2)
		open()
		if err := p.snapshot(p.ctx, snap, id); err != nil {
			t.Error(err)
		}
		p.inSync()
		want := append(bytes.Repeat([]byte{1}, mib), bytes.Repeat([]byte{2}, mib)...)
		p.snapshotsHold(snap, append(want, make([]byte, 2*mib)...))
	}
}

// What is asked for while a snapshot is copied: writes go on, the source stays, the next snapshot
// waits without holding anything, and the snapshot can be deleted.
func TestWhileACopyIsMade(t *testing.T) {
	p := newTestPair(t)
	g := p.gated(1)
	p.startBoth()
	id, m := p.lun(4*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	open := g.shut(nil)
	defer open()
	first, second := uuid.NewString(), uuid.NewString()
	done := p.begin(first, id)
	p.write(d, 2*mib, 9) // nothing was there: no data to copy first
	c := p.client(0)
	if _, err := c.ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 8 * mib}); err != nil {
		t.Error(err)
	}
	p.write(d, 3*mib, 5)
	_, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "early", SizeBytes: 8 * mib, SourceSnapshotUuid: first})
	p.refuses(err, codes.NotFound)
	next := make(chan error, 1)
	go func() { next <- p.snapshot(p.ctx, second, id) }()
	if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
		t.Fatal(err)
	}
	_, err = c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id})
	p.refuses(err, codes.Unavailable, "still being copied")
	if _, err := c.DeleteSnapshot(p.ctx, &targetv1.DeleteSnapshotRequest{Uuid: first}); err != nil {
		t.Fatal(err)
	}
	p.refuses(<-done, codes.Unavailable, "deleted before it was complete")
	open()
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Repeat([]byte{1}, mib), make([]byte, mib)...)
	want = append(want, bytes.Repeat([]byte{9}, mib)...)
	want = append(want, bytes.Repeat([]byte{5}, mib)...)
	p.snapshotsHold(second, append(want, make([]byte, 4*mib)...))
	if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
		t.Error(err)
	}
}

// A joiner is given a snapshot that the source is still copying, and one that is marked while it
// joins is what the source has of it.
func TestJoinerIsGivenAnIncompleteCopy(t *testing.T) {
	p := newTestPair(t)
	g := p.gated(0)
	p.startBoth()
	id, m := p.lun(4*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	p.end(1)
	open := g.shut(nil)
	defer open()
	snap := uuid.NewString()
	done := p.begin(snap, id)
	p.start(1)
	p.until("the resync reads the snapshot", func() bool { return p.nodes[0].View().Resync.Active })
	open()
	p.inSync()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.write(d, 0, 2)
	p.snapshotsHold(snap, append(bytes.Repeat([]byte{1}, mib), make([]byte, 3*mib)...))
}

// With a node of the release before, copies are made as that one makes them.
func TestCopiesWithANodeOfTheReleaseBefore(t *testing.T) {
	p := newTestPair(t)
	p.cfg[1].earlier = true
	p.startBoth()
	id, m := p.lun(4*mib, "a")
	p.write(p.device(m), 0, 1)
	snap, clone, restored := uuid.NewString(), uuid.NewString(), uuid.NewString()
	if err := p.snapshot(p.ctx, snap, id); err != nil {
		t.Fatal(err)
	}
	for req, from := range map[*targetv1.CreateLUNRequest]string{{Uuid: clone, Name: "c", SizeBytes: 4 * mib, SourceLunUuid: id}: id, {Uuid: restored, Name: "r", SizeBytes: 4 * mib, SourceSnapshotUuid: snap}: snap} {
		if _, err := p.client(0).CreateLUN(p.ctx, req); err != nil {
			t.Errorf("copy of %s: %v", from, err)
		}
	}
	want := append(bytes.Repeat([]byte{1}, mib), make([]byte, 3*mib)...)
	p.snapshotsHold(snap, want)
	for i := range p.nodes {
		for _, x := range []string{clone, restored} {
			if !bytes.Equal(p.bytes(i, x), want) {
				t.Errorf("a copy differs on node %d", i)
			}
		}
	}
}

// What is marked while a node joins is on record as incomplete there, and is not copied from a LUN
// that is itself copied to. What is not marked yet has no content that a resync could bring.
func TestMarkWhileJoining(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(mib, "a")
	n := p.nodes[1]
	snap := uuid.NewString()
	if _, err := p.nodes[0].propose(p.ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: meta.Snapshot{UUID: snap, Name: "s", Source: id}, Later: true}}); err != nil {
		t.Fatal(err)
	}
	c, _ := n.copyByID(snap)
	n.md.mu.Lock()
	objs := n.objectsLocked(true)
	err := n.applyFiles(n.md.state, &meta.Effect{Marked: []*meta.Marked{{Copy: c, Size: mib}}}, true)
	n.md.mu.Unlock()
	if err != nil || len(objs) != 1 {
		t.Fatalf("%v, and a resync would bring %v", err, objs)
	}
	if got, err := n.loadCopying(); err != nil || !got[snap] {
		t.Errorf("copying: %v %v", got, err)
	}
	n.copies.mu.Lock()
	if len(n.copies.all) != 0 {
		t.Error("the joiner copies")
	}
	n.copies.mu.Unlock()
	// The source looks at what there is before it applies the mark itself.
	n.md.mu.Lock()
	x := *n.md.state.Snapshots[snap]
	x.Stage = meta.Copying
	n.md.state.Snapshots[snap] = &x
	n.md.mu.Unlock()
	for compared, want := range map[bool]copyStanding{false: {Failed: errLostCopy}, true: {Whole: true}} {
		n.copies.list(snap, c.Born)
		if key, _ := parseID(snap); compared {
			n.copies.compared(key)
		}
		missed := n.wholeCopies()
		if got := n.copyStandings([]meta.Copy{c})[snap]; got != want || (len(missed) > 0) == compared {
			t.Errorf("compared %v: %+v, missed %v", compared, got, missed)
		}
		if err := n.clearCopying(missed); err != nil {
			t.Fatal(err)
		}
		if names, err := n.loadCopying(); err != nil || names[snap] == compared {
			t.Errorf("compared %v: %v %v", compared, names, err)
		}
	}
}

// What follows from what both nodes say; a node that is alone says both.
func TestStandingsOfACopy(t *testing.T) {
	sealed, whole, part, failed := copyStanding{Sealed: true}, copyStanding{Whole: true}, copyStanding{Done: 1, Total: 2}, copyStanding{Failed: "no space"}
	for _, x := range []struct {
		self, other copyStanding
		want        copyEnd
	}{
		{sealed, sealed, copyComplete}, {sealed, whole, copyComplete}, {whole, sealed, copyComplete},
		{sealed, part, copyOpen}, {part, sealed, copyOpen}, {whole, part, copyOpen}, {part, part, copyOpen},
		{whole, whole, copyLost}, {failed, sealed, copyLost}, {sealed, failed, copyLost}, {failed, failed, copyLost}, {whole, failed, copyLost},
	} {
		if got, why := x.self.with(x.other); got != x.want || (why.Failed != "") != (got == copyLost) {
			t.Errorf("%+v and %+v: %v %+v, not %v", x.self, x.other, got, why, x.want)
		}
	}
}

// A source that is alone decides nothing about a copy that its last list for the joiner lacks.
func TestCopyBeyondTheLastList(t *testing.T) {
	var c copies
	key, _ := parseID(uuid.NewString())
	on, off := meta.Copy{UUID: key.String()}, meta.Copy{UUID: uuid.NewString()}
	if c.beyond(true, on) {
		t.Error("before the first list")
	}
	c.lists([]pair.CopyObject{{ID: key}})
	if c.beyond(true, on) || !c.beyond(true, off) {
		t.Error("after a list")
	}
	if c.lists([]pair.CopyObject{}); !c.beyond(true, on) {
		t.Error("after an empty list")
	}
	if c.lists(nil); c.beyond(true, off) {
		t.Error("another resync has begun")
	}
	c.lists([]pair.CopyObject{{ID: key}})
	if c.beyond(false, off) || c.beyond(true, off) {
		t.Error("the resync is over")
	}
}

// A node that is given the metadata of the other one has all incomplete copies copied to it, and
// does not go on with its own.
func TestInstallEndsCopies(t *testing.T) {
	p := newTestPair(t)
	g := p.gated(1)
	p.startBoth()
	id, m := p.lun(4*mib, "a")
	p.write(p.device(m), 0, 1)
	open := g.shut(nil)
	snap := uuid.NewString()
	done := p.begin(snap, id)
	<-g.met
	n := p.nodes[1]
	n.md.mu.Lock()
	raw, err := json.Marshal(n.md.state)
	index := n.md.state.Index
	n.md.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, open) // an install waits for the piece that is under way
	_, full, err := n.installState(&pair.Msg{Meta: raw, Aux: int64(index)})
	if want, _ := parseID(snap); err != nil || !slices.Contains(full, want) {
		t.Fatalf("%v: to be copied whole: %v", err, full)
	}
	// The chair, to which this node stays a member, may ask it now, and give the copy up.
	st, ok := n.copyStandings(n.copying())[snap]
	if ok && st.Failed == "" {
		t.Errorf("it goes on: %+v", st)
	}
	n.wholeCopies() // as if the resync had ended
	if st, ok = n.copyStandings(n.copying())[snap]; ok && (!st.Whole || st.Sealed) {
		t.Errorf("after the resync: %+v", st)
	}
	if err := <-done; err != nil && !strings.Contains(err.Error(), errLostCopy) {
		t.Error(err)
	}
}
