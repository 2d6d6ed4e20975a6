package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func unowned(t *testing.T, self Node) *rig {
	r := paired(t, self)
	clear(r.m.hosts.table)
	return r
}

func TestPathSwitchAsksThePeer(t *testing.T) {
	r := unowned(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	r.none(ActStore) // R11a
	ask := r.sent(MsgPathSwitch)
	again := r.submit(r.op(scsi.OpRead, 512, 512))
	r.notSent(MsgPathSwitch) // asked once
	r.recv(&Msg{Type: MsgPathSwitchAck, ID: ask.ID})
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
	r.stored(scsi.OK)
	r.ended(again, scsi.OK)
	r.recv(&Msg{Type: MsgPathSwitchAck, ID: ask.ID}) // twice is harmless
}

// The node of the old path drains, kills what has not started, and only then lets go.
func TestPathSwitchYields(t *testing.T) {
	r := paired(t, A)
	first := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	waits := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.recv(&Msg{Type: MsgPathSwitch, ID: 31, LUN: lun1, Meta: []byte(testHost)})
	d := r.next(ActDrain)
	if d.Host != testHost || d.LUN != lun1 {
		t.Fatalf("%+v", d)
	}
	r.notSent(MsgPathSwitchAck)
	r.m.Drained(r.now, d.ID)
	r.ended(waits, scsi.Busy) // it never started, the host repeats it
	if a := r.sent(MsgPathSwitchAck); a.ID != 31 {
		t.Fatal(a.ID)
	}
	r.m.Drained(r.now, d.ID) // twice is harmless
	r.notSent(MsgPathSwitchAck)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(first, scsi.OK)
	r.submit(r.op(scsi.OpRead, 0, 512))
	r.sent(MsgPathSwitch) // the path is the other one now
}

// Both ask at once: a goes first and answers only after its own commands have started, b kills its
// own.
func TestPathSwitchOfBothAtOnce(t *testing.T) {
	a, b := unowned(t, A), unowned(t, B)
	oa, ob := a.submit(a.op(scsi.OpRead, 0, 512)), b.submit(b.op(scsi.OpRead, 0, 512))
	askA, askB := a.sent(MsgPathSwitch), b.sent(MsgPathSwitch)
	a.recv(askB)
	b.recv(askA)
	a.m.Drained(a.now, a.next(ActDrain).ID)
	a.notSent(MsgPathSwitchAck)
	b.m.Drained(b.now, b.next(ActDrain).ID)
	b.ended(ob, scsi.Busy)
	a.recv(b.sent(MsgPathSwitchAck))
	a.stored(scsi.OK)
	a.ended(oa, scsi.OK)
	a.m.Drained(a.now, a.next(ActDrain).ID)
	b.recv(a.sent(MsgPathSwitchAck)) // b does not wait for it any more
	if len(b.m.hosts.table[pathKey{lun1, testHost}]) > 0 {
		t.Fatal("b takes a path that nobody asked for any more")
	}
}

func TestPathSwitchIsAskedAgainOnANewLink(t *testing.T) {
	r := unowned(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	ask := r.sent(MsgPathSwitch)
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.linkUp()
	r.sync(r.peerInfo(Paired))
	r.sync(r.peerInfo(Paired))
	if x := r.sent(MsgPathSwitch); x.ID != ask.ID {
		t.Fatalf("asked as %d, before as %d", x.ID, ask.ID)
	}
	r.recv(&Msg{Type: MsgPathSwitchAck, ID: ask.ID})
	if r.m.Serving(r.now) {
		r.stored(scsi.OK)
		r.ended(o, scsi.OK)
	} else {
		t.Fatal("a quick break of the link costs the lease")
	}
}

func TestQuiesceHoldsAndReleases(t *testing.T) {
	r := paired(t, A)
	first := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	r.m.Quiesce(r.now, 1, []LUNID{lun1}, 1000*ms)
	r.none(ActQuiet)
	held := r.submit(r.op(scsi.OpRead, 4096, 512))
	r.none(ActStore)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(first, scsi.OK)
	if q := r.next(ActQuiet); q.ID != 1 || q.Result != scsi.OK || !r.m.Quiesced(lun1) {
		t.Fatalf("%+v", q)
	}
	// The transfer: the entry names the other node the owner; what was held is forwarded there
	// (R10).
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	r.notSent(MsgForward)
	r.m.Release(r.now, 1)
	if f := r.sent(MsgForward); f.Seq != 2 {
		t.Fatalf("%+v", f)
	}
	r.none(ActReply)
	_ = held
}

func TestQuiesceGivesUp(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	r.m.Quiesce(r.now, 1, []LUNID{lun1}, 100*ms)
	held := r.submit(r.op(scsi.OpRead, 4096, 512))
	r.pass(150 * ms)
	if q := r.next(ActQuiet); q.Result != scsi.Busy {
		t.Fatalf("%+v", q)
	}
	r.stored(scsi.OK)
	r.ended(held, scsi.OK)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
	r.m.Release(r.now, 1) // by a caller that had not heard yet
	if u := r.m.units[lun1]; u.quiesced != 0 {
		t.Fatalf("quiesced %d", u.quiesced)
	}
}

// A snapshot that is asked for during a transfer begins afterwards, and only if the LUN is still
// ours: the new owner's writes are not held here (R14).
func TestQuiescesTakeTurns(t *testing.T) {
	for name, owner := range map[string]Node{"stays": A, "moves": B} {
		r := paired(t, A)
		r.m.Quiesce(r.now, 7, []LUNID{lun1}, 1000*ms)
		if q := r.next(ActQuiet); q.ID != 7 || q.Result != scsi.OK {
			t.Fatalf("%s: %+v", name, q)
		}
		r.m.Quiesce(r.now, 3, []LUNID{lun1}, 1000*ms)
		held := r.submit(r.op(scsi.OpRead, 4096, 512))
		r.none(ActQuiet)
		r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: owner, Seq: 2}})
		r.none(ActQuiet)
		r.m.Release(r.now, 7)
		if owner == B {
			if q := r.next(ActQuiet); q.ID != 3 || q.Result != scsi.Unavailable {
				t.Fatalf("%s: %+v", name, q)
			}
			r.sent(MsgForward)
			continue
		}
		if q := r.next(ActQuiet); q.ID != 3 || q.Result != scsi.OK {
			t.Fatalf("%s: %+v", name, q)
		}
		r.none(ActStore)
		r.m.Release(r.now, 3)
		r.stored(scsi.OK)
		r.ended(held, scsi.OK)
	}
}

func TestQuiesceOfWhatIsNotOurs(t *testing.T) {
	for name, id := range map[string]LUNID{"no such unit": {9}, "the peer's unit": lun1} {
		r := paired(t, B)
		r.m.Quiesce(r.now, 1, []LUNID{id}, 100*ms)
		if q := r.next(ActQuiet); q.Result != scsi.Unavailable {
			t.Fatalf("%s: %+v", name, q)
		}
	}
}

// A host goes over to this node; before its command starts it has to answer a ping that was sent
// after the command came.
func TestPathSwitchWantsASignOfLife(t *testing.T) {
	for name, life := range map[string]func(*scsi.Liveness, int64){
		"never": func(*scsi.Liveness, int64) {},
		// The command had come by then, and yet: the host may have left since, and have started its
		// retry over the old path.
		"to a ping of before the peer let go": func(l *scsi.Liveness, now int64) { l.Answered(now - 1) },
		"to a ping of since then":             func(l *scsi.Liveness, now int64) { l.Answered(now) },
	} {
		t.Run(name, func(t *testing.T) {
			r := unowned(t, A)
			o := r.op(scsi.OpWrite, 0, 512)
			o.Cmd.Liveness = new(scsi.Liveness)
			r.submit(o)
			ask := r.sent(MsgPathSwitch)
			r.none(ActProve)
			r.pass(10 * ms)
			r.recv(&Msg{Type: MsgPathSwitchAck, ID: ask.ID})
			if x := r.next(ActProve); x.Alive != o.Cmd.Liveness {
				t.Fatalf("%+v", x)
			}
			life(o.Cmd.Liveness, r.now)
			if name != "never" {
				r.m.Proved(r.now, o.Cmd.Liveness)
			}
			if name != "to a ping of since then" {
				r.notSent(MsgMirror)
				r.calm(4000 * ms)
				r.notSent(MsgMirror)
				r.ended(o, scsi.Busy)
				return
			}
			r.mirrorAck(r.sent(MsgMirror), scsi.OK)
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
		})
	}
}

// A node that has become alone has no path switch to protect it from what a host sent before it
// left for the other node: a write wants a sign of life of after that moment, however young another
// one is.
func TestLoneNodeWantsASignOfLifeSince(t *testing.T) {
	r := paired(t, A)
	life := new(scsi.Liveness)
	life.Answered(r.now)
	r.aloneByCrash()
	r.m.SelfFlushed(r.now, true)
	o := r.op(scsi.OpWrite, 0, 512)
	o.Cmd.Liveness = life
	life.Answered(r.m.since - 1)
	r.submit(o)
	r.none(ActStore)
	if x := r.next(ActProve); x.Alive != life {
		t.Fatalf("%+v", x)
	}
	life.Answered(r.now)
	r.m.Proved(r.now, life)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

// A session that its host has left asked for the path; the next one of that nexus gets it. Nothing
// of the first is waited for then, and the peer can have the path.
func TestPathOfALaterSessionOfTheNexus(t *testing.T) {
	r := unowned(t, A)
	left, o := r.op(scsi.OpRead, 0, 512), r.op(scsi.OpRead, 0, 512)
	left.Cmd.Liveness, o.Cmd.Liveness = new(scsi.Liveness), new(scsi.Liveness)
	r.submit(left)
	r.sent(MsgPathSwitch)
	r.submit(o)
	ask := r.sent(MsgPathSwitch)
	r.recv(&Msg{Type: MsgPathSwitchAck, ID: ask.ID})
	o.Cmd.Liveness.Answered(r.now)
	r.m.Proved(r.now, o.Cmd.Liveness)
	for range 2 {
		r.stored(scsi.OK)
	}
	r.ended(left, scsi.OK)
	r.ended(o, scsi.OK)
	r.recv(&Msg{Type: MsgPathSwitch, ID: 31, LUN: lun1, Meta: []byte(testHost)})
	r.m.Drained(r.now, r.next(ActDrain).ID)
	r.sent(MsgPathSwitchAck)
}

// Over a path that is here, too, a write wants a sign of life that is not old: its host may have
// left the session it came by, and gone on over another one to this very node.
func TestWriteWantsAYoungSignOfLife(t *testing.T) {
	r := paired(t, A)
	life := new(scsi.Liveness)
	write := func() *Op {
		o := r.op(scsi.OpWrite, 0, 512)
		o.Cmd.Liveness = life
		return r.submit(o)
	}
	life.Answered(r.now - proofMax)
	first := write()
	r.none(ActProve)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(first, scsi.OK)
	r.calm(50 * ms)
	r.reads() // over another session: see TestWriteOverALongRoundTrip
	a, b := write(), write()
	r.next(ActProve)
	r.none(ActProve) // once for both
	r.notSent(MsgMirror)
	read := r.op(scsi.OpRead, 4096, 512)
	read.Cmd.Liveness = life
	r.submit(read)
	r.stored(scsi.OK) // nothing changes by it
	r.ended(read, scsi.OK)
	life.Answered(r.now)
	r.m.Proved(r.now, life)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(a, scsi.OK)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(b, scsi.OK)
}

// Held while no peer could be asked: it starts once its host has shown that it is still there, or
// never.
func TestHeldCommandWantsASignOfLife(t *testing.T) {
	for _, lives := range []bool{true, false} {
		r := unowned(t, A)
		r.m.LinkDown(r.now, r.m.link.number, true)
		o := r.op(scsi.OpRead, 0, 512)
		o.Cmd.Liveness = new(scsi.Liveness)
		o.Cmd.Liveness.Answered(r.now) // before this node served again
		r.submit(o)
		r.pass(2 * lease)
		r.none(ActProve)
		r.won(r.cas(), "v6")
		r.saved()
		r.phase(Alone)
		r.none(ActStore)
		r.next(ActProve)
		if lives {
			o.Cmd.Liveness.Answered(r.now)
			r.m.Proved(r.now, o.Cmd.Liveness)
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
			continue
		}
		r.pass(4000 * ms)
		r.ended(o, scsi.Busy)
	}
}
