package node

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
)

const block = 4096

// groupRig is a pair with a LUN of each node, and the calls of a coordinator.
type groupRig struct {
	*testPair
	group string
	luns  []string
	devs  []*initiator.Device
	snaps []string
	held  uint64                       // the last hold that was answered
	c     targetv1.TargetServiceClient // of the node that is asked
}

func newGroup(p *testPair) *groupRig {
	r := &groupRig{testPair: p, group: uuid.NewString(), c: p.client(0)}
	for _, owner := range []string{"a", "b"} {
		id, m := p.lun(8*mib, owner)
		r.luns, r.devs = append(r.luns, id), append(r.devs, p.device(m))
		r.snaps = append(r.snaps, uuid.NewString())
	}
	return r
}

func (r *groupRig) begin(attempt uint64, discard bool) error {
	_, err := r.c.BeginGroupSnapshot(r.ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: r.group, Attempt: attempt, Discard: discard})
	return err
}

func (r *groupRig) prepare(attempt uint64) error {
	q := &targetv1.PrepareGroupSnapshotRequest{GroupUuid: r.group, Attempt: attempt}
	for i, lun := range r.luns {
		q.Members = append(q.Members, &targetv1.CreateSnapshotRequest{Uuid: r.snaps[i], Name: "s-" + r.snaps[i], SourceLunUuid: lun})
	}
	_, err := r.c.PrepareGroupSnapshot(r.ctx, q)
	return err
}

func (r *groupRig) hold(attempt uint64, ttl time.Duration) error {
	a, err := r.c.HoldGroupSnapshot(r.ctx, &targetv1.HoldGroupSnapshotRequest{GroupUuid: r.group, Attempt: attempt, Ttl: durationpb.New(ttl)})
	if err == nil {
		r.held = a.Hold
	}
	return err
}

func (r *groupRig) cut(attempt uint64) error {
	_, err := r.c.CutGroupSnapshot(r.ctx, &targetv1.CutGroupSnapshotRequest{GroupUuid: r.group, Attempt: attempt, Hold: r.held})
	return err
}

// holdable repeats a hold that meets something in its way.
func (r *groupRig) holdable(attempt uint64) {
	r.t.Helper()
	var err error
	r.until("the members are held", func() bool { err = r.hold(attempt, groupHoldMax); return err == nil })
}

// begun is a group whose members are prepared.
func (r *groupRig) begun(attempt uint64) *groupRig {
	r.t.Helper()
	for _, f := range []func() error{func() error { return r.begin(attempt, true) }, func() error { return r.prepare(attempt) }} {
		if err := f(); err != nil {
			r.t.Fatal(err)
		}
	}
	return r
}

// ready waits until both nodes have all members, durably.
func (r *groupRig) ready() {
	r.t.Helper()
	r.until("all members are ready", func() bool {
		for _, id := range r.snaps {
			if r.stage(id) != meta.Ready {
				return false
			}
		}
		return true
	})
}

func (r *groupRig) refused(err error, says string) {
	r.t.Helper()
	r.refuses(err, codes.FailedPrecondition, says)
}

// free reports whether a write to a LUN ends at once.
func (r *groupRig) free(i int) bool {
	r.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := r.devs[i].WriteAt(r.ctx, make([]byte, block), 4*mib)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			r.t.Error(err)
		}
		return true
	case <-time.After(150 * time.Millisecond):
		if err := <-done; err != nil { // nothing is held for ever
			r.t.Error(err)
		}
		return false
	}
}

// holding says whether a node holds commands of a LUN.
func (r *groupRig) holding(i int) (held bool) {
	n := r.nodes[i]
	id, _ := parseID(r.luns[i])
	n.do(func(m *pair.Machine, _ int64) { held = m.Kept(id) })
	return held
}

// A writer writes record k anywhere only after record k-1 was acknowledged. Every cut shows a
// prefix of the records, at both nodes, with LUNs of both owners, and with either node asked.
func TestCutShowsAPrefix(t *testing.T) {
	r := newGroup(newTestPair(t).startBoth())
	var acked atomic.Uint64
	var stop atomic.Bool
	where := []int{0} // by record: LUN and block
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	var mu sync.Mutex
	wg.Go(func() {
		rnd, next := rand.New(rand.NewPCG(1, 2)), [2]int{}
		for k := uint64(1); !stop.Load() && next[0] < 1000 && next[1] < 1000; k++ {
			i := rnd.IntN(2)
			mu.Lock()
			where = append(where, i*1000+next[i])
			mu.Unlock()
			b := make([]byte, block)
			binary.LittleEndian.PutUint64(b, k)
			if _, err := r.devs[i].WriteAt(r.ctx, b, int64(next[i])*block); err != nil {
				t.Error(err)
				return
			}
			next[i]++
			acked.Store(k)
		}
	})
	for attempt := uint64(1); attempt <= 6; attempt++ {
		r.c = r.client(int(attempt) % 2)
		r.begun(attempt)
		before := acked.Load()
		r.holdable(attempt)
		if err := r.cut(attempt); err != nil {
			t.Fatal(err)
		}
		after := acked.Load() + 1 // one can be under way
		r.ready()
		mu.Lock()
		list := append([]int(nil), where...)
		mu.Unlock()
		for node := range 2 {
			files := [2][]byte{r.read(r.object(node, "snapshots", r.snaps[0])), r.read(r.object(node, "snapshots", r.snaps[1]))}
			has, last := func(k uint64) bool {
				at := list[k]
				return binary.LittleEndian.Uint64(files[at/1000][at%1000*block:]) == k
			}, uint64(0)
			for last+1 < uint64(len(list)) && has(last+1) {
				last++
			}
			for k := last + 1; k < uint64(len(list)); k++ {
				if has(k) {
					t.Fatalf("attempt %d at node %d: record %d is in the snapshots, and record %d is not", attempt, node, k, last+1)
				}
			}
			if last < before || last > after {
				t.Errorf("attempt %d at node %d: the last record is %d; %d was acknowledged before the hold, and %d after the cut", attempt, node, last, before, after)
			}
		}
	}
	if acked.Load() < 20 {
		t.Errorf("only %d records were written", acked.Load())
	}
}

// What is of an attempt that is over is refused, and says so; the steps can be repeated.
func TestGroupAttempts(t *testing.T) {
	r := newGroup(newTestPair(t).startBoth()).begun(2)
	if err := r.prepare(2); err != nil {
		t.Error("repeated:", err)
	}
	r.refused(r.begin(1, false), "was followed by attempt 2")
	r.refused(r.prepare(1), "is not the last one")
	r.refused(r.hold(1, groupHoldMax), "attempt 1")
	r.refused(r.cut(2), "does not hold")
	r.refuses(r.hold(2, 0), codes.InvalidArgument, "ttl")
	r.refuses(r.hold(2, time.Second), codes.InvalidArgument, "ttl")
	r.holdable(2)
	r.refuses(r.hold(2, groupHoldMax), codes.Unavailable) // and the first one stands
	for i := range r.luns {
		if !r.holding(i) {
			t.Errorf("LUN %d is not held any more, because of a request that came twice", i)
		}
	}
	if err := r.begin(3, true); err != nil {
		t.Fatal(err)
	}
	for i := range r.luns {
		if r.holding(i) {
			t.Errorf("LUN %d is held for an attempt that is over", i)
		}
	}
	r.refused(r.cut(2), "does not hold")
	if got := r.nodes[0].members(r.group); len(got) > 0 {
		t.Errorf("%d members are left", len(got))
	}
	r.begun(4).holdable(4)
	h := r.heldBy(r.nodes[0])
	fix := func(is bool) {
		r.nodes[0].groups.mu.Lock()
		defer r.nodes[0].groups.mu.Unlock()
		h.fixed = is
	}
	fix(true) // by a cut that is under way
	r.refused(r.cut(4), "does not hold")
	if r.heldBy(r.nodes[0]) != h {
		t.Error("a cut that came twice has ended the hold of the first one")
	}
	fix(false)
	if err := r.cut(4); err != nil {
		t.Fatal(err)
	}
	r.ready()
	if err := r.begin(4, true); err != nil { // as it was before the members were made, and comes late
		t.Fatal(err)
	}
	if n := len(r.nodes[0].members(r.group)); n != 2 {
		t.Errorf("%d members are left", n)
	}
	if _, err := r.c.BeginGroupSnapshot(r.ctx, &targetv1.BeginGroupSnapshotRequest{GroupUuid: r.group, Attempt: 4, Final: true}); err != nil {
		t.Fatal(err)
	}
	r.refused(r.begin(5, false), "is deleted")
	r.refused(r.prepare(5), "is deleted")
	for node := range 2 {
		for _, id := range r.snaps {
			r.gone(r.object(node, "snapshots", id))
		}
	}
}

// A hold that has lapsed cuts nothing, and writes continue without anything that ends it.
func TestGroupHoldLapses(t *testing.T) {
	r := newGroup(newTestPair(t).startBoth()).begun(1)
	if err := r.hold(1, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r.free(0) {
		t.Error("LUN 0 is not held")
	}
	if !r.free(0) || !r.free(1) {
		t.Error("a hold has not ended by itself")
	}
	r.refused(r.cut(1), "node a")
	lapsed := r.held // a request that comes late begins another hold, of which nothing is known
	r.holdable(1)
	r.held = lapsed
	r.refused(r.cut(1), "does not hold what attempt 1")
	r.until("that one ends, too", func() bool { return r.heldBy(r.nodes[0]) == nil })
	if h := r.heldBy(r.nodes[0]); h != nil {
		t.Errorf("node a remembers a hold that has lapsed: %+v", h.holdName)
	}
	if r.stage(r.snaps[0]) != meta.Empty {
		t.Errorf("it was cut: %v", r.stage(r.snaps[0]))
	}
}

// The node that was asked dies when the other one has fixed its hold: that one finds out by itself,
// and the attempt is over.
func TestGroupHoldOutlivesNoCoordinator(t *testing.T) {
	r := newGroup(newTestPair(t).startBoth()).begun(1)
	r.holdable(1)
	b := r.nodes[1]
	name := r.heldBy(b).holdName
	if err := b.beginOther(beginCopies{Group: &name}); err != nil {
		t.Fatal(err)
	}
	if r.free(1) {
		t.Error("a hold that is fixed has ended by itself")
	}
	r.until("node b releases", func() bool { return !r.holding(1) })
	if b.groups.tally.void.Load() != 1 {
		t.Error("it was not because node b has asked the log")
	}
	if out, err := r.nodes[0].propose(r.ctx, &meta.Entry{CutGroup: &meta.CutGroup{UUID: r.group, Attempt: 1, Seqs: r.seqs()}}); err == nil {
		t.Errorf("the cut comes afterwards: %+v", out)
	}
}

func (r *groupRig) heldBy(n *Node) *groupHold {
	n.groups.mu.Lock()
	defer n.groups.mu.Unlock()
	return n.groups.holds[r.group]
}

func (r *groupRig) seqs() map[string]uint64 {
	seqs := map[string]uint64{}
	n := r.nodes[0]
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	for _, id := range r.luns {
		seqs[id] = n.md.state.LUNs[id].Seq
	}
	return seqs
}

// A LUN whose owner dies while it is held, or that moves, is not in a cut; the next attempt is.
func TestGroupHoldDoesNotSurviveAFailOver(t *testing.T) {
	r := newGroup(newTestPair(t).quick().startBoth()).begun(1)
	r.holdable(1)
	r.end(1)
	err := r.cut(1)
	if c := status.Code(err); c != codes.FailedPrecondition {
		t.Errorf("cut without node b: %v", err)
	}
	r.until("node a owns both", func() bool {
		p, err := r.nodes[0].planGroup(r.group, 1)
		return err == nil && len(p.other) == 0
	})
	if !r.free(0) || !r.free(1) {
		t.Error("something is held still")
	}
	r.begun(2).holdable(2)
	if err := r.cut(2); err != nil {
		t.Fatal(err)
	}
	r.ready()
	r.start(1)
	r.inSync()
	for _, id := range r.snaps {
		r.until("node b has them as well", func() bool {
			_, err := r.nodes[1].openObject(id)
			return err == nil && r.nodes[1].exists(mustID(id))
		})
	}
}

func mustID(s string) pair.LUNID {
	id, err := parseID(s)
	if err != nil {
		panic(fmt.Sprint(err))
	}
	return id
}
