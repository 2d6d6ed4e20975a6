package node

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// quick has a pair that decides after a second.
func (p *testPair) quick() *testPair {
	for i := range p.cfg {
		p.cfg[i].FailBackDelay = Duration(time.Second)
	}
	return p
}

func (p *testPair) owner(id string) string {
	p.t.Helper()
	l, err := p.client(1).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		p.t.Fatal(err)
	}
	return l.Owner
}

// moved is the last move of a LUN that the chair has decided.
func (p *testPair) moved(id string) (last *targetv1.OwnershipMove) {
	p.t.Helper()
	for i := range p.nodes {
		for _, m := range p.status(i).Ownership.Moves {
			if m.Lun == id && (last == nil || m.Time.AsTime().After(last.Time.AsTime())) {
				last = m
			}
		}
	}
	return last
}

// movedFor waits until the chair says that it has moved a LUN for a reason, a moment after the LUN
// has its new owner, and gives that move.
func (p *testPair) movedFor(id string, reason balance.Reason) (x *targetv1.OwnershipMove) {
	p.t.Helper()
	p.until("the pair says why", func() bool { x = p.moved(id); return x != nil && x.Reason == string(reason) })
	return x
}

// A LUN whose node went away comes back with it, while its host writes.
func TestLUNReturnsHomeAfterRestart(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.write(d, 4096, 2)
	if o := p.owner(id); o != "b" {
		t.Fatalf("owner %s", o)
	}
	p.start(0)
	p.inSync()
	p.until("it is home again", func() bool { p.write(d, 8192, 3); return p.owner(id) == "a" })
	if x := p.movedFor(id, balance.ReasonFailBack); x.FromNode != "b" || x.ToNode != "a" || x.Observed {
		t.Errorf("%v", x)
	}
	p.until("the status shows it", func() bool { return p.status(0).Ownership.Away == 0 && p.status(1).Ownership.Away == 0 })
}

// Nothing goes to a node that is drained, through a restart of it, until the drain has ended.
func TestDrainHoldsThroughRestart(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	r, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 600, Reason: "restart"})
	if err != nil || r.Moved != 1 || p.owner(id) != "b" {
		t.Fatalf("%v %v", r, err)
	}
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.start(0)
	p.inSync()
	p.until("the pair says what it waits for", func() bool {
		p.write(d, 4096, 2)
		for i := range p.nodes {
			o := p.status(i).Ownership
			if o.DrainedNode != "a" || o.DrainReason != "restart" {
				t.Fatalf("node %d: %v", i, o)
			}
			if o.Decides && o.Away == 1 && o.WaitsFor != "" {
				return true
			}
		}
		return false
	})
	if _, err := p.client(1).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "a"}); err == nil {
		t.Error("a person moved it to the node that is drained")
	}
	if o := p.owner(id); o != "b" {
		t.Errorf("owner %s", o)
	}
	if _, err := p.client(0).Drain(p.ctx, &targetv1.DrainRequest{Node: "a"}); err != nil {
		t.Fatal(err)
	}
	p.until("it goes home", func() bool { p.write(d, 8192, 3); return p.owner(id) == "a" })
}

// A LUN stays where a person moved it.
func TestTransferSetsHome(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	if _, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil {
		t.Fatal(err)
	}
	l, err := p.client(0).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil || l.Owner != "b" || l.PreferredNode != "b" {
		t.Fatalf("%v %v", l, err)
	}
	p.write(d, 0, 1)
	if _, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil {
		t.Fatal(err)
	}
}

// A LUN goes to the node that its host can use, and home again once the host can use that one.
func TestLUNFollowsItsHost(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	b := m.Portals[:0:0]
	for _, x := range m.Portals {
		if x.Node == "b" {
			b = append(b, x)
		}
	}
	only := func(c *initiator.Config) { c.Portals = []string{b[0].Address} }
	d := p.device(m, only)
	p.until("it follows its host", func() bool { p.write(d, 0, 1); return p.owner(id) == "b" })
	p.movedFor(id, balance.ReasonConnectivity)
	l, err := p.client(0).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil || l.PreferredNode != "a" {
		t.Errorf("its home moved as well: %v %v", l, err)
	}
}

// A node that only observes moves nothing, and says once what it would do.
func TestObserverMovesNothing(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick()
	p.cfg[0].Balancing, p.cfg[1].Balancing = "observe", "observe"
	p.startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 1}); err != nil {
		t.Fatal(err)
	}
	p.until("it says what it would do", func() bool {
		p.write(d, 0, 1)
		x := p.moved(id)
		return x != nil && x.Observed && x.Reason == "FailBack"
	})
	if o := p.owner(id); o != "b" {
		t.Errorf("owner %s", o)
	}
}

// A host that is logged in and does nothing has not shown that it can use the node.
func TestSessionAloneShowsNoUse(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	_, m := p.lun(8*mib, "a")
	p.enter(1, testHost)
	h, ok := p.nodes[1].use().Hosts[testHost]
	if !ok || h.Uses {
		t.Fatalf("%v %v", h, ok)
	}
	d := p.device(m)
	p.write(d, 0, 1)
	p.until("it shows it", func() bool { return p.nodes[0].use().Hosts[testHost].Uses && p.nodes[1].use().Hosts[testHost].Uses })
}

// A node of a release before gets metadata that it can read although a drain stands.
func TestReleaseBeforeGetsNoDrain(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	id, _ := p.lun(8*mib, "a")
	if r, err := p.client(1).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil || r.HeldUntil == nil {
		t.Fatalf("%v %v", r, err)
	}
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 600}); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.cfg[0].earlier = true
	p.start(0)
	p.inSync()
	if d := p.nodes[0].drained(); d != nil {
		t.Errorf("it has %v", d)
	}
	if n, _ := p.nodes[0].heldByPeople(); n != 0 {
		t.Error("it has a hold")
	}
	if r, err := p.client(1).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "b"}); err != nil || r.HeldUntil != nil {
		t.Errorf("a transfer that cannot hold says that it does: %v %v", r, err)
	}
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 600}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a drain that the other node cannot apply: %v", err)
	}
}

// A LUN goes home although its disks take longer for each write than a calm move may hold commands.
func TestLUNOfSlowDiskGoesHome(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick()
	for i := range p.cfg {
		p.cfg[i].Faults = func(op, path string, _, _ int64) error {
			if op == store.FaultWrite && strings.HasPrefix(path, "volumes/default/luns/") {
				time.Sleep(2 * calmHold)
			}
			return nil
		}
	}
	p.startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 1}); err != nil {
		t.Fatal(err)
	}
	if o := p.owner(id); o != "b" {
		t.Fatalf("owner %s", o)
	}
	var writers sync.WaitGroup
	defer writers.Wait()
	var home atomic.Bool
	defer home.Store(true)
	for w := range int64(4) { // there is always a write at work
		writers.Go(func() {
			for !home.Load() {
				p.write(d, w*mib, byte(w+1))
			}
		})
	}
	p.until("it is home", func() bool { return p.owner(id) == "a" })
}

// A move that was postponed may hold commands for longer the next time, up to what any move may.
func TestPostponedMoveMayHoldLonger(t *testing.T) {
	c := &chair{tries: map[string]int{}}
	calm, rule := []balance.Move{{LUN: "x", Reason: balance.ReasonFailBack}}, []balance.Move{{LUN: "x", Reason: balance.ReasonDrain}}
	for _, tc := range []struct {
		tries int
		want  time.Duration
	}{{0, calmHold}, {1, 2 * calmHold}, {4, 16 * calmHold}, {40, transferHold}} {
		if c.tries["x"] = tc.tries; c.holdFor(calm) != tc.want || c.holdFor(rule) != transferHold {
			t.Errorf("after %d tries: %v, %v", tc.tries, c.holdFor(calm), c.holdFor(rule))
		}
	}
	c.tries["gone"] = 2
	if c.forgetTries(calm); len(c.tries) != 1 || c.tries["x"] == 0 {
		t.Errorf("%v", c.tries)
	}
}
