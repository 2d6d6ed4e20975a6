package pair

import (
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// passing lets time pass with heartbeats, until it is over or done says so.
func (r *rig) passing(ns int64, done func() bool) bool {
	for end := r.now + ns; r.now < end && !done(); {
		r.pass(100 * ms)
		if r.m.phase == Paired && r.m.leave.why == "" && !r.m.excl.active {
			r.beat()
		}
	}
	return done()
}

// passingWell is passing with a store that answers probes at once.
func (r *rig) passingWell(ns int64, done func() bool) bool {
	for end := r.now + ns; r.now < end && !done(); {
		r.passing(100*ms, done)
		r.probes()
	}
	return done()
}

// probes answers those of either disk.
func (r *rig) probes() {
	if x, ok := r.poll(ActProbe); ok {
		r.m.Probed(r.now, x.ID)
	}
	for i, x := range r.queue {
		if x.Kind == ActSend && x.Msg.Type == MsgFlush && x.Msg.Flags&FlagProbe != 0 {
			r.queue = slices.Delete(r.queue, i, i+1)
			r.recv(&Msg{Type: MsgFlushAck, ID: x.Msg.ID, Result: scsi.OK})
			return
		}
	}
}

func (r *rig) gone() bool { return r.m.leave.why != "" || r.m.excl.active }

// Both disks are busy with the same load: what leaves would leave its load to the other one.
func TestEquallySlowNodesStay(t *testing.T) {
	r := paired(t, A)
	for n := range int64(3) {
		r.submit(r.op(scsi.OpWrite, n*512, 512))
	}
	// The peer answers one write every two seconds, and the store here is as slow.
	for n := range 3 {
		if r.passing(2400*ms, r.gone) {
			t.Fatalf("write %d: %q, excluding %v", n, r.m.leave.why, r.m.excl.active)
		}
		r.recv(&Msg{Type: MsgMirrorAck, ID: r.sent(MsgMirror).ID, Result: scsi.OK})
		x := r.next(ActStore)
		if r.passing(2400*ms, r.gone) {
			t.Fatalf("write %d here: %q, excluding %v", n, r.m.leave.why, r.m.excl.active)
		}
		r.m.StoreDone(r.now, x.Op, scsi.OK)
	}
}

// A flush that is late on both nodes.
func TestFlushLateOnBoth(t *testing.T) {
	r := paired(t, A)
	r.submit(r.op(scsi.OpFlush, 0, 0))
	if r.passing(3*int64(r.m.cfg.MirrorMax), r.gone) {
		t.Fatalf("%q, excluding %v", r.m.leave.why, r.m.excl.active)
	}
	if r.m.Stats.BothLate == 0 {
		t.Fatal("not counted")
	}
	// The peer's disk has done it after all: now it is known to be the faster one.
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID, Result: scsi.OK})
	if !r.passingWell(2*int64(r.m.cfg.MirrorMax), func() bool { return r.m.leave.why != "" }) {
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
	left := func() bool { return r.m.leave.why != "" }
	for len(under) > 0 && !left() {
		r.passingWell(2000*ms, left)
		if !left() {
			r.m.StoreDone(r.now, under[0], scsi.OK)
			under = under[1:]
		}
	}
	if !left() {
		t.Fatal("writes that the peer did in 20 ms take more than Dm here, and the node stays")
	}
}

// For the flush of a checkpoint no host waits: it may take as long as it likes as long as the store
// does other things meanwhile, on either node.
func TestCheckpointThatTakesLong(t *testing.T) {
	for _, atPeer := range []bool{false, true} {
		r := paired(t, A)
		r.m.ckptBegin(r.now, r.m.units[lun1], false)
		flush := r.next(ActFlush).Op
		asked := r.sent(MsgFlush)
		r.pass(20 * ms)
		if atPeer {
			r.m.StoreDone(r.now, flush, scsi.OK)
		} else {
			r.recv(&Msg{Type: MsgFlushAck, ID: asked.ID, Result: scsi.OK})
		}
		for n := range int64(8) {
			o := r.submit(r.op(scsi.OpWrite, n*512, 512))
			r.mirrorAck(r.sent(MsgMirror), scsi.OK)
			x := r.next(ActStore)
			if r.passingWell(2000*ms, r.gone) {
				t.Fatalf("at the peer %v: %q, excluding %v", atPeer, r.m.leave.why, r.m.excl.active)
			}
			r.m.StoreDone(r.now, x.Op, scsi.OK)
			r.ended(o, scsi.OK)
		}
		if !r.passingWell(2*int64(r.m.cfg.MirrorMax), r.gone) {
			t.Fatalf("at the peer %v: both stay although nothing is done there", atPeer)
		}
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
		if r.passingWell(500*ms, excluding) {
			t.Fatal("a peer that answers other writes is excluded after Dm")
		}
		r.recv(&Msg{Type: MsgMirrorAck, ID: r.sent(MsgMirror).ID, Result: scsi.OK})
		r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
		r.ended(o, scsi.OK)
	}
	if !r.passingWell(4*int64(r.m.cfg.MirrorMax), excluding) {
		t.Fatalf("mirrored write %d is waited for without a limit", stuck.ID)
	}
}

// A mirrored write is at the peer first. Before a node excludes it, its own disk has to show that
// it is at work, promptly and for a while: disks that stopped for one reason come back together.
func TestOwnDiskIsAskedFirst(t *testing.T) {
	r := paired(t, A)
	dm := int64(r.m.cfg.MirrorMax)
	r.submit(r.op(scsi.OpWrite, 0, 512))
	excluding := func() bool { return r.m.excl.active }
	if r.passing(3*dm, excluding) {
		t.Fatal("the peer is excluded by a node whose own disk answers nothing")
	}
	x := r.next(ActProbe)
	r.none(ActProbe) // one at a time
	r.m.Probed(r.now, x.ID)
	if r.passing(50*ms, excluding) {
		t.Fatal("a probe that took very long shows a disk that is well")
	}
	x = r.next(ActProbe)
	r.m.Probed(r.now, x.ID)
	if r.passingWell(dm/20, excluding) {
		t.Fatal("one prompt answer is enough")
	}
	if !r.passingWell(dm, excluding) {
		t.Fatal("the disk is well, the peer answers nothing, and it is not excluded")
	}
	if r.m.Stats.SlowExcludes != 1 {
		t.Fatalf("%d are counted", r.m.Stats.SlowExcludes)
	}
}

// Nor does it leave while the peer is about to be late itself.
func TestStaysWhileThePeerIsInDoubt(t *testing.T) {
	r := paired(t, A)
	r.m.StoreBegins(r.now, r.submit(r.op(scsi.OpRead, 1024, 512)))
	r.passing(100*ms, never)
	r.submit(r.op(scsi.OpWrite, 0, 512))
	if r.passing(3*int64(r.m.cfg.MirrorMax), r.gone) {
		t.Fatalf("%q, excluding %v", r.m.leave.why, r.m.excl.active)
	}
	r.recv(&Msg{Type: MsgMirrorAck, ID: r.sent(MsgMirror).ID, Result: scsi.OK})
	if r.passing(int64(r.m.cfg.MirrorMax), r.gone) {
		t.Fatal("it leaves before the peer's disk has been asked")
	}
	if !r.passingWell(int64(r.m.cfg.MirrorMax), func() bool { return r.m.leave.why != "" }) {
		t.Fatal("the peer has answered, and a node whose disk does nothing stays")
	}
}
