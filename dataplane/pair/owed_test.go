package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// live keeps heartbeats answered for as long as d, and does more in each turn.
func (r *rig) live(d int64, do ...func()) {
	r.t.Helper()
	for end := r.now + d; r.now < end; {
		r.pass(20 * ms)
		for b := r.sentMaybe(MsgHeartbeat); b != nil; b = r.sentMaybe(MsgHeartbeat) {
			r.recv(&Msg{Type: MsgHeartbeatAck, ID: b.ID, Aux: b.Aux})
		}
		for _, f := range do {
			f()
		}
	}
}

func peerMoves(r *rig) {
	in := r.peerInfo(Paired)
	in.Moves = true
	r.sync(in)
}

// An entry that the partner is given and says nothing of is waited for as long as a mirrored write
// (R9).
func TestEntryThatStaysUnanswered(t *testing.T) {
	r := paired(t, A)
	peerMoves(r)
	r.m.Propose(r.now, []byte("x"))
	r.sent(MsgAppend)
	r.durable()
	dm := int64(r.m.cfg.MirrorMax)
	r.live(dm - 100*ms)
	if r.m.excl.active {
		t.Fatal("excluded too early")
	}
	r.live(dm, r.probes)
	if !r.m.excl.firm {
		t.Fatalf("not excluded: %s", r.dump())
	}
	r.sync(r.peerInfo(Paired))
	r.pass(2 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.next(ActShow) // continues alone
}

// A partner whose work moves on is waited for, and one of release 0.1.0, which cannot say so.
func TestEntryThatTakesLong(t *testing.T) {
	t.Run("it says so", func(t *testing.T) {
		r := paired(t, A)
		peerMoves(r)
		r.m.Propose(r.now, []byte("x"))
		r.sent(MsgAppend)
		moved := uint64(0)
		for range 10 {
			r.live(1000*ms, r.probes)
			moved++
			in := r.peerInfo(Paired)
			in.Moves, in.Moved = true, moved
			r.sync(in)
		}
		if r.m.excl.active {
			t.Fatal("excluded while it was at work")
		}
	})
	t.Run("release 0.1.0", func(t *testing.T) {
		r := paired(t, A)
		r.m.Propose(r.now, []byte("x"))
		r.sent(MsgAppend)
		r.live(3*int64(r.m.cfg.MirrorMax), r.probes)
		if r.m.excl.active {
			t.Fatal("excluded")
		}
	})
}

// A joiner that does not answer an entry ends the resync.
func TestEntryThatAJoinerDoesNotAnswer(t *testing.T) {
	r := alone(t, A)
	r.linkUp()
	in := r.peerInfo(Outside)
	in.Moves = true
	r.sync(in)
	r.m.resync.stage, r.m.resync.mirror, r.m.resync.movedAt = rsCopy, true, r.now
	r.m.resync.plan = &copyPlan{}
	r.m.Propose(r.now, []byte("x"))
	r.sent(MsgAppend)
	r.durable()
	r.queue = nil
	for range 520 {
		r.pass(10 * ms)
		r.m.lease.heard = r.now
		if x, ok := r.poll(ActArbiterGet); ok {
			_ = x
			r.m.ArbiterDone(r.now, Got, ptr(record(6, A)), "v6", "")
		}
	}
	r.next(ActShow)
	if r.m.resync.stage != rsIdle {
		t.Fatal("the resync goes on")
	}
}

// A node that does not finish what its partner waits for steps down without being excluded: the
// partner may be gone (R12).
func TestPartnerThatHangsStepsDown(t *testing.T) {
	mirror := func(r *rig) *Msg {
		m := &Msg{Type: MsgMirror, ID: 7, LUN: lun1, Kind: scsi.OpWrite, Len: 512, Data: make([]byte, 512), Seq: 1}
		r.recv(m)
		return m
	}
	for name, c := range map[string]struct {
		begin func(*rig)
		end   func(*rig)
	}{
		"a mirrored write": {func(r *rig) { mirror(r) }, func(r *rig) {
			x := r.next(ActApply)
			r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
		}},
		"a mirrored write whose bit is not durable": {func(r *rig) {
			r.m.units[lun1].intents.hot = nil
			mirror(r)
		}, func(r *rig) {
			r.m.Intended(r.now, r.next(ActIntend).LUN, true)
			r.m.Applied(r.now, r.m.link.number, r.next(ActApply).Msg, scsi.OK)
		}},
		"a flush": {func(r *rig) { r.recv(&Msg{Type: MsgFlush, ID: 7, LUN: lun1}) }, func(r *rig) {
			r.m.Applied(r.now, r.m.link.number, r.next(ActPeerFlush).Msg, scsi.OK)
		}},
		"an entry": {func(r *rig) { r.recv(&Msg{Type: MsgAppend, Aux: 1, Meta: []byte("x")}) }, func(r *rig) {
			r.m.Appended(r.now, 1)
			r.m.Shown(r.now, 1, scsi.OK, nil, nil)
		}},
		"an entry that is durable": {func(r *rig) {
			r.recv(&Msg{Type: MsgAppend, Aux: 1, Meta: []byte("x")})
			r.m.Appended(r.now, 1)
		}, func(r *rig) { r.m.Shown(r.now, 1, scsi.OK, nil, nil) }},
	} {
		for _, finishes := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				r := paired(t, B)
				c.begin(r)
				dm := int64(r.m.cfg.MirrorMax)
				r.live(dm - 100*ms)
				if r.m.leave.why != "" {
					t.Fatal("too early")
				}
				if finishes {
					c.end(r)
				}
				r.live(dm, r.probes)
				if (r.m.leave.why == "") != finishes {
					t.Fatalf("finished %v, leaving %q", finishes, r.m.leave.why)
				}
			})
		}
	}
}

// The runtime says that the work of an entry continues: neither side gives it up.
func TestAppendMoves(t *testing.T) {
	r := paired(t, B)
	r.recv(&Msg{Type: MsgAppend, Aux: 1, Meta: []byte("x")})
	r.queue = nil
	for range 10 {
		r.live(1000*ms, r.probes)
		before := r.m.log.moves
		r.m.AppendMoves(r.now)
		if r.m.log.moves != before+1 || r.sent(MsgSync) == nil {
			t.Fatal("the chair does not hear of it")
		}
	}
	if r.m.leave.why != "" {
		t.Fatal(r.m.leave.why)
	}
	r.m.Appended(r.now, 1)
	r.m.Shown(r.now, 1, scsi.OK, nil, nil)
	moves := r.m.log.moves
	if r.m.AppendMoves(r.now); r.m.log.moves != moves {
		t.Fatal("nothing is under way")
	}
}

// What a node owes is judged as its own work is: it stays as long as its disk gets on with other
// work, and as long as the owner's disk does not answer either, for its leaving would help neither.
func TestPartnerThatIsSlowStays(t *testing.T) {
	mirror := func(r *rig, id uint64) *Msg {
		r.recv(&Msg{Type: MsgMirror, ID: id, LUN: lun1, Kind: scsi.OpWrite, Off: int64(id) * 512, Len: 512, Data: make([]byte, 512), Seq: 1})
		return r.next(ActApply).Msg
	}
	t.Run("its disk gets on", func(t *testing.T) {
		r := paired(t, B)
		mirror(r, 1)
		for id := uint64(2); id < 20; id++ {
			msg := mirror(r, id)
			r.live(1000*ms, r.probes)
			r.m.Applied(r.now, r.m.link.number, msg, scsi.OK)
		}
		if r.m.leave.why != "" {
			t.Fatal(r.m.leave.why)
		}
	})
	t.Run("the owner's disk has stopped as well", func(t *testing.T) {
		r := paired(t, B)
		mirror(r, 1)
		r.live(3 * int64(r.m.cfg.MirrorMax))
		if r.m.leave.why != "" {
			t.Fatal(r.m.leave.why)
		}
	})
}

// A read that the page cache answers shows nothing of the disk.
func TestCachedReadIsNoProgress(t *testing.T) {
	r := paired(t, A)
	stuck := r.submit(r.op(scsi.OpRead, 0, 512))
	r.m.StoreBegins(r.now, r.next(ActStore).Op)
	left := func() bool { return r.m.leave.why != "" }
	for n := int64(1); n < 20 && !left(); n++ {
		hit := r.submit(r.op(scsi.OpRead, n*512, 512))
		r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
		r.ended(hit, scsi.OK)
		r.passingWell(500*ms, left)
	}
	if !left() {
		t.Fatalf("a read waits for the disk for ever: %v", stuck)
	}
}
