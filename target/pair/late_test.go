package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/target/scsi"
)

// passing lets time pass with heartbeats, until it is over or done says so.
func (r *rig) passing(ns int64, done func() bool) bool {
	for end := r.now + ns; r.now < end && !done(); {
		r.pass(100 * ms)
		if r.m.phase == Paired && r.m.leaving == "" && !r.m.excl.active {
			r.beat()
		}
	}
	return done()
}

func (r *rig) gone() bool { return r.m.leaving != "" || r.m.excl.active }

// Both disks are busy with the same load: what leaves would leave its load to the other one.
func TestEquallySlowNodesStay(t *testing.T) {
	r := paired(t, A)
	for n := range int64(3) {
		r.submit(r.op(scsi.OpWrite, n*512, 512))
	}
	// The peer answers one write every two seconds, and the store here is as slow.
	for n := range 3 {
		if r.passing(2400*ms, r.gone) {
			t.Fatalf("write %d: %q, excluding %v", n, r.m.leaving, r.m.excl.active)
		}
		r.recv(&Msg{Type: MsgMirrorAck, ID: r.sent(MsgMirror).ID, Result: scsi.OK})
		x := r.next(ActStore)
		if r.passing(2400*ms, r.gone) {
			t.Fatalf("write %d here: %q, excluding %v", n, r.m.leaving, r.m.excl.active)
		}
		r.m.StoreDone(r.now, x.Op, scsi.OK)
	}
}

// A flush that is late on both nodes.
func TestFlushLateOnBoth(t *testing.T) {
	r := paired(t, A)
	r.submit(r.op(scsi.OpFlush, 0, 0))
	if r.passing(3*int64(r.m.cfg.MirrorMax), r.gone) {
		t.Fatalf("%q, excluding %v", r.m.leaving, r.m.excl.active)
	}
	if r.m.Stats.BothLate == 0 {
		t.Fatal("not counted")
	}
	// The peer's disk has done it after all: now it is known to be the faster one.
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID, Result: scsi.OK})
	if !r.passing(2*int64(r.m.cfg.MirrorMax), func() bool { return r.m.leaving != "" }) {
		t.Fatal("it stays although its store has stopped and the peer is well")
	}
}

// One that is much slower than its peer leaves, although it gets on.
func TestSlowerNodeLeaves(t *testing.T) {
	r := paired(t, A)
	var under []*Op
	for n := range int64(8) {
		r.submit(r.op(scsi.OpWrite, n*512, 512))
		r.pass(20 * ms)
		r.recv(&Msg{Type: MsgMirrorAck, ID: r.sent(MsgMirror).ID, Result: scsi.OK})
		under = append(under, r.next(ActStore).Op)
	}
	left := func() bool { return r.m.leaving != "" }
	for len(under) > 0 && !left() {
		r.passing(2000*ms, left)
		if !left() {
			r.m.StoreDone(r.now, under[0], scsi.OK)
			under = under[1:]
		}
	}
	if !left() {
		t.Fatal("writes that the peer did in 20 ms take more than Dm here, and the node stays")
	}
}

// A peer that gets on is waited for, but not for ever.
func TestPeerThatLetsAWriteWait(t *testing.T) {
	r := paired(t, A)
	r.submit(r.op(scsi.OpWrite, 0, 512))
	stuck := r.sent(MsgMirror)
	excluding := func() bool { return r.m.excl.active }
	for n := int64(1); r.now < 1000*ms+2*int64(r.m.cfg.MirrorMax); n++ {
		o := r.submit(r.op(scsi.OpWrite, n*512, 512))
		if r.passing(500*ms, excluding) {
			t.Fatal("a peer that answers other writes is excluded after Dm")
		}
		r.recv(&Msg{Type: MsgMirrorAck, ID: r.sent(MsgMirror).ID, Result: scsi.OK})
		r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
		r.ended(o, scsi.OK)
	}
	if !r.passing(4*int64(r.m.cfg.MirrorMax), excluding) {
		t.Fatalf("mirrored write %d is waited for without a limit", stuck.ID)
	}
}
