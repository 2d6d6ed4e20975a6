package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// A person's transfer holds, also through the restart of a node, although the home is another node
// again, and not longer than it says. A drain does not wait for it.
func TestTransferHoldsThroughRestart(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	transfer := func(seconds uint32) *timestamppb.Timestamp {
		t.Helper()
		r, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b", HoldSeconds: &seconds})
		if err != nil {
			t.Fatal(err)
		}
		return r.HeldUntil
	}
	until := transfer(600)
	if left := time.Until(until.AsTime()); left < 580*time.Second || left > 602*time.Second {
		t.Fatalf("held until %v", until.AsTime())
	}
	p.write(d, 0, 1)
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.start(0)
	p.inSync()
	if _, err := p.client(0).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, PreferredNode: "a"}); err != nil { // as the operator does
		t.Fatal(err)
	}
	p.until("the pair says what the LUN waits for", func() bool {
		p.write(d, 4096, 2)
		for i := range p.nodes {
			o := p.status(i).Ownership
			if o.Held != 1 || !o.HeldUntil.AsTime().Equal(until.AsTime()) {
				t.Fatalf("node %d: %v", i, o)
			}
			if o.Decides && o.Away == 1 && strings.Contains(o.WaitsFor, "is held until "+until.AsTime().Format(time.RFC3339)) {
				return true
			}
		}
		return false
	})
	for range 10 { // the delay of fail-back is over long before
		time.Sleep(500 * time.Millisecond)
		p.write(d, 8192, 3)
		if o := p.owner(id); o != "b" {
			t.Fatal("it was taken back")
		}
	}
	l, err := p.client(0).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil || !l.HeldUntil.AsTime().Equal(until.AsTime()) {
		t.Fatalf("%v %v", l, err)
	}
	if _, err := p.client(0).Drain(p.ctx, &targetv1.DrainRequest{Node: "b", Seconds: 600}); err != nil || p.owner(id) != "a" {
		t.Fatalf("a drain waits for the hold: %v, owner %s", err, p.owner(id))
	}
	if _, err := p.client(0).Drain(p.ctx, &targetv1.DrainRequest{Node: "b"}); err != nil {
		t.Fatal(err)
	}
	transfer(0)
	if _, err := p.client(0).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, PreferredNode: "a"}); err != nil {
		t.Fatal(err)
	}
	p.until("it goes home", func() bool { p.write(d, 0, 4); return p.owner(id) == "a" })
}

// A pinned LUN goes to its node, which is its home from then on, although its host can use only the
// other one; a person cannot move it away, and it is back at once after a failure or a drain, of
// which the status says that it waits for it.
func TestPinnedLUN(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth() // fail-back would take 30 s
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	pin := func(node string) {
		t.Helper()
		l, err := p.client(1).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, PinnedNode: node})
		if err != nil || l.PinnedNode != node {
			t.Fatalf("%v %v", l, err)
		}
	}
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "b", Seconds: 600, Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	pin("b")
	p.until("the status says what it waits for", func() bool {
		for i := range p.nodes {
			if o := p.status(i).Ownership; o.Decides && o.Away == 1 && strings.Contains(o.WaitsFor, "node b is drained") {
				return true
			}
		}
		return false
	})
	if o := p.owner(id); o != "a" {
		t.Errorf("owner %s, of which the node is drained", o)
	}
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "b"}); err != nil {
		t.Fatal(err)
	}
	p.until("it is where it is pinned", func() bool { return p.owner(id) == "b" })
	p.until("it is its home, and the pair says why it moved", func() bool { // one node says so a moment after the other
		l, err := p.client(0).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
		x := p.moved(id)
		return err == nil && l.PreferredNode == "b" && l.PinnedNode == "b" && x != nil && x.Reason == "Pin"
	})
	transfer := &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "a"}
	if _, err := p.client(0).TransferOwnership(p.ctx, transfer); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "pinned to node b") {
		t.Errorf("a person moves it: %v", err)
	}
	if r, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "a"}); err != nil || r.Moved != 0 {
		t.Errorf("%v %v", r, err)
	}
	if err := p.stop(1); err != nil {
		t.Fatal(err)
	}
	p.write(d, 4096, 2)
	p.start(1)
	p.inSync()
	start := time.Now()
	p.until("it is back", func() bool { p.write(d, 8192, 3); return p.owner(id) == "b" })
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it waited for %v", took)
	}
	pin("none")
	if r, err := p.client(0).TransferOwnership(p.ctx, transfer); err != nil || r.Moved != 1 {
		t.Errorf("%v %v", r, err)
	}
}

// A pair with a node of a release before refuses pins, for new LUNs as well, and does everything
// else. One that has a pin already gives such a node metadata without it.
func TestPinInAMixedPair(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	id, _ := p.lun(8*mib, "b")
	if _, err := p.client(1).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, PinnedNode: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.cfg[0].earlier = true
	p.start(0)
	p.inSync()
	pinOf := func(i int) string {
		l, err := p.client(i).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
		if err != nil {
			t.Fatal(err)
		}
		return l.PinnedNode
	}
	if at := pinOf(0) + pinOf(1); at != "noneb" {
		t.Errorf("pinned to %s", at)
	}
	for i := range p.nodes { // the other node's owner carries it out
		other, _ := p.lun(8*mib, harness.Names[i])
		_, err := p.client(1).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: other, PinnedNode: "b"})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "pinned_node") {
			t.Errorf("a pin that the other node cannot apply: %v", err)
		}
		if _, err := p.client(1).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: other, PinnedNode: "none", PreferredNode: "a"}); err != nil {
			t.Errorf("no pin, where there is none: %v", err)
		}
	}
	_, err := p.client(1).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, SpreadGroup: "team/db"})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "spread_group") {
		t.Errorf("a group that the other node does not keep: %v", err)
	}
	if _, err := p.client(1).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, SpreadGroup: "none"}); err != nil {
		t.Errorf("no group, where there is none: %v", err)
	}
	_, err = p.client(1).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "pinned", SizeBytes: mib, PinnedNode: "b"})
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// The chair sees pins, holds and groups, and says what a LUN waits for that is not where it is
// pinned, its home or not.
func TestChairSeesPinsAndHolds(t *testing.T) {
	x := newLooking()
	x.lun.Preferred, x.lun.Hold = "a", &meta.Hold{Node: "a", Until: time.Now().Add(time.Minute).Round(time.Second)}
	if l := x.look(); l.Pin != balance.None || l.Held <= x.now || l.Held > x.now+int64(61*time.Second) {
		t.Fatalf("%+v", l)
	}
	if l := x.look(); l.Group != "" {
		t.Fatalf("%+v", l)
	}
	x.lun.Group = "team/db"
	if l := x.look(); l.Group != "team/db" {
		t.Fatalf("%+v", l)
	}
	x.lun.Pin = "b"
	if l := x.look(); l.Pin != balance.B || l.Home != balance.A {
		t.Fatalf("%+v", l)
	}
	why := func(p balance.Policy, d *meta.Drain) string {
		t.Helper()
		v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, d, x.reports)
		away, why := whyAway(v, p, d)
		if away != 1 {
			t.Errorf("%d LUNs are away", away)
		}
		return why
	}
	if s := why(balance.Policy{Mode: balance.Off}, nil); s != "LUN l is pinned to node b and about to move there" {
		t.Error(s)
	}
	if s := why(balance.Policy{}, &meta.Drain{Node: "b", Until: time.Now().Add(time.Minute), Reason: "restart"}); !strings.Contains(s, "node b is drained until") {
		t.Error(s)
	}
	x.lun.Owner = "b" // where it is pinned, and not at home
	v, _ := x.k.look(x.now, []*meta.LUN{x.lun}, nil, x.reports)
	if away, why := whyAway(v, balance.Policy{}, nil); away != 0 || v.LUNs[0].Held != 0 {
		t.Errorf("%d %q %+v", away, why, v.LUNs[0])
	}
}
