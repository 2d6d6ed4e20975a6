package pair

import (
	"bytes"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestForwardAndResult(t *testing.T) {
	r := paired(t, B)
	o := r.submit(r.op(scsi.OpRead, 512, 512))
	f := r.sent(MsgForward)
	r.recv(&Msg{Type: MsgForwardResult, ID: f.ID, Data: bytes.Repeat([]byte{9}, 512)})
	r.ended(o, scsi.OK)
	if o.Cmd.Data[511] != 9 {
		t.Fatal("the data did not come back")
	}
	short := r.submit(r.op(scsi.OpRead, 512, 512))
	f = r.sent(MsgForward)
	r.recv(&Msg{Type: MsgForwardResult, ID: f.ID, Data: make([]byte, 100)})
	r.ended(short, scsi.Failed) // never GOOD with bytes that did not come
}

func (r *rig) forward(id uint64, o *Op) *Msg {
	msg := &Msg{Type: MsgForward, Kind: o.Cmd.Kind, Seq: 1, ID: id, LUN: lun1, Off: o.Cmd.Off, Len: o.Cmd.Len, Front: 2, FrontN: id, Data: o.Cmd.Data}
	msg.Meta = appendNexus(nil, o.Cmd.Nexus)
	if o.Cmd.Kind == scsi.OpCompareWrite {
		msg.Meta = append(msg.Meta, o.Cmd.Verify...)
	}
	return msg
}

func TestForwardedDuplicateIsAnsweredFromTheRecord(t *testing.T) {
	r := paired(t, A)
	w := r.forward(10, r.op(scsi.OpWrite, 0, 512))
	r.recv(w)
	m := r.sent(MsgMirror)
	if m.Front != 2 || m.FrontN != 10 {
		t.Fatalf("R11d: the mirror frame carries (%d, %d)", m.Front, m.FrontN)
	}
	r.recv(w) // a duplicate of what is at work starts nothing
	r.notSent(MsgMirror)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	if x := r.sent(MsgForwardResult); x.ID != 10 || x.Result != scsi.OK {
		t.Fatalf("%+v", x)
	}
	r.recv(w)
	r.notSent(MsgMirror)
	if x := r.sent(MsgForwardResult); x.ID != 10 || x.Result != scsi.OK {
		t.Fatalf("%+v", x)
	}
}

// A command for a LUN that this node does not know, as it has just been removed here, is answered,
// and leaves nothing behind that a later command could be taken for.
func TestForwardForALUNThatHasGone(t *testing.T) {
	r := paired(t, A)
	for _, first := range []bool{true, false} { // the second is answered from the record
		w := r.forward(10, r.op(scsi.OpWrite, 0, 512))
		w.LUN[0]++
		r.recv(w)
		if x := r.sent(MsgForwardResult); x.ID != 10 || x.Result != scsi.Unavailable || (x.Ended != nil) != first {
			t.Fatalf("%+v", x)
		}
		r.none(ActReply)
	}
	if len(r.m.fwd.in) != 0 {
		t.Errorf("%d commands are left", len(r.m.fwd.in))
	}
}

func TestForwardRefusesNonsense(t *testing.T) {
	for name, change := range map[string]func(*Msg){
		"read beyond any limit":  func(m *Msg) { m.Kind, m.Data, m.Len = scsi.OpRead, nil, 1<<62 },
		"data of another length": func(m *Msg) { m.Len = 4096 },
		"no such kind":           func(m *Msg) { m.Kind = 200 },
		"kind zero":              func(m *Msg) { m.Kind = 0 },
		"short nexus":            func(m *Msg) { m.Meta = m.Meta[:5] },
		"nexus longer than it":   func(m *Msg) { m.Meta[8] = 0xff },
		"compare without data":   func(m *Msg) { m.Kind = scsi.OpCompareWrite },
		"odd unmap list":         func(m *Msg) { m.Kind, m.Meta = scsi.OpUnmap, append(m.Meta, 1) },
		"write same of nothing":  func(m *Msg) { m.Kind, m.Data = scsi.OpWriteSame, nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := paired(t, A)
			m := r.forward(10, r.op(scsi.OpWrite, 0, 512))
			change(m)
			r.recv(m)
			if x := r.sent(MsgForwardResult); x.Result != scsi.Failed {
				t.Fatalf("%+v", x)
			}
			r.notSent(MsgMirror)
			r.none(ActStore)
		})
	}
}

func (r *rig) aloneByCrash() {
	r.t.Helper()
	r.m.LinkDown(r.now, r.m.link.number, true)
	r.pass(2 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	if r.m.straggle == 0 {
		r.next(ActFlushAll)
	}
}

// The owner dies with our command: its mirror frame tells whether it took effect.
func TestForwardedCommandOfADeadOwner(t *testing.T) {
	t.Run("never mirrored: executed here", func(t *testing.T) {
		r := paired(t, B)
		o := r.op(scsi.OpRead, 0, 512)
		r.submit(o)
		r.sent(MsgForward)
		r.aloneByCrash()
		r.stored(scsi.OK)
		r.ended(o, scsi.OK)
	})
	t.Run("mirrored: not executed again", func(t *testing.T) {
		r := paired(t, B)
		o := r.submit(r.op(scsi.OpCompareWrite, 0, 512))
		f := r.sent(MsgForward)
		r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: f.Data, Front: f.Front, FrontN: f.ID})
		x := r.next(ActApply)
		r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
		r.aloneByCrash()
		r.none(ActCompare)
		r.none(ActReply) // alone: not before it is durable
		r.m.SelfFlushed(r.now, true)
		r.ended(o, scsi.OK)
	})
	t.Run("still being applied: not executed again", func(t *testing.T) {
		r := paired(t, B)
		o := r.submit(r.op(scsi.OpCompareWrite, 0, 512))
		f := r.sent(MsgForward)
		r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: f.Data, Front: f.Front, FrontN: f.ID})
		x := r.next(ActApply)
		r.aloneByCrash()
		if r.m.Serving(r.now) {
			t.Fatal("R4: serves while a write of the older epoch may land")
		}
		r.none(ActFlushAll) // it would miss what is still being applied
		r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
		r.none(ActCompare)
		r.next(ActFlushAll)
		r.m.SelfFlushed(r.now, true)
		r.ended(o, scsi.OK)
	})
	// The owner found no space after its peer had applied the write, copied the range back, and
	// died before it could say so: what the mirror frame brought is gone again, so it must not be
	// answered GOOD.
	t.Run("mirrored, then taken back by a repair: executed here", func(t *testing.T) {
		r := paired(t, B)
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		f := r.sent(MsgForward)
		m := Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: f.Data, Front: f.Front, FrontN: f.ID}
		for _, flags := range []uint8{0, FlagRepair} {
			msg := m
			msg.Flags = flags
			r.recv(&msg)
			r.m.Applied(r.now, r.m.link.number, r.next(ActApply).Msg, scsi.OK)
		}
		r.aloneByCrash()
		r.stored(scsi.OK)
		r.ended(o, scsi.OK)
	})
	t.Run("mirrored, the write is too old to run again", func(t *testing.T) {
		r := paired(t, B)
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		r.sent(MsgForward)
		r.pass(lease) // with the crash more than AgeMax
		r.aloneByCrash()
		r.ended(o, scsi.Busy)
	})
}

// The owner steps down while a forwarded write is on its way to us: asked again, it does not say
// that it never started.
func TestLeavingOwnerOfADuplicate(t *testing.T) {
	r := paired(t, A)
	r.m.fwd.from = 2
	f := &Msg{Type: MsgForward, Kind: scsi.OpWrite, Seq: 1, ID: 8, LUN: lun1, Len: 512, Front: 2, FrontN: 8, Data: make([]byte, 512),
		Meta: appendNexus(nil, scsi.NexusID{Initiator: testHost, Port: 2})}
	r.recv(f)
	m := r.sent(MsgMirror)
	r.m.StoreFailed(r.now, "disk")
	r.recv(f)
	r.notSent(MsgForwardResult)
	r.mirrorAck(m, scsi.OK)
	if x := r.sent(MsgForwardResult); x.Result != scsi.Unavailable {
		t.Fatalf("%+v", x)
	}
	r.recv(&Msg{Type: MsgForward, Kind: scsi.OpWrite, Seq: 1, ID: 9, LUN: lun1, Len: 512, Front: 2, FrontN: 9, Data: make([]byte, 512)})
	if x := r.sent(MsgForwardResult); x.ID != 9 || x.Result != scsi.Unavailable {
		t.Fatalf("%+v", x)
	}
}

// The front end's side: a mirror frame that has come and is still being applied says that the
// command started.
func TestUnavailableOfACommandThatWasMirrored(t *testing.T) {
	r := paired(t, B)
	o := r.submit(r.op(scsi.OpCompareWrite, 0, 512))
	f := r.sent(MsgForward)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: f.Data, Front: f.Front, FrontN: f.ID})
	x := r.next(ActApply)
	r.recv(&Msg{Type: MsgForwardResult, ID: f.ID, Result: scsi.Unavailable})
	r.none(ActCompare)
	r.notSent(MsgForward)
	r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
	r.aloneByCrash()
	r.m.SelfFlushed(r.now, true)
	r.ended(o, scsi.OK)
}

// A forwarded write that was refused here for lack of space, or taken back because the owner had
// none, may have changed a part of its range. If the owner dies before it has said so, the write is
// executed here; one that is too old for that ends as the owner would have ended it, because BUSY
// says that nothing was changed, and so does a comparison, which would find its own change.
func TestForwardedWriteThatFoundNoSpace(t *testing.T) {
	for name, c := range map[string]struct {
		kind  scsi.OpKind
		flags uint8
		res   scsi.Result
	}{
		"refused here":        {scsi.OpWrite, 0, scsi.NoSpace},
		"taken back":          {scsi.OpWrite, FlagRepair, scsi.OK},
		"not even taken back": {scsi.OpWrite, FlagRepair, scsi.NoSpace},
		"a comparison":        {scsi.OpCompareWrite, 0, scsi.NoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			r := paired(t, B)
			o := r.submit(r.op(c.kind, 0, 512))
			f := r.sent(MsgForward)
			r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: f.Data, Front: f.Front, FrontN: f.ID, Flags: c.flags})
			r.m.Applied(r.now, r.m.link.number, r.next(ActApply).Msg, c.res)
			if c.kind == scsi.OpWrite {
				r.pass(lease) // with the crash more than AgeMax
			}
			r.aloneByCrash()
			r.m.SelfFlushed(r.now, true)
			r.ended(o, scsi.NoSpace)
		})
	}
}

// What was sent twice is answered twice alike, also if it was refused: its host may have had the
// answer, and continued, before the second frame comes.
func TestForwardedDuplicateOfWhatWasRefused(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(*rig)
		want scsi.Result
	}{
		"too old": {func(r *rig) { r.calm(1200 * ms) }, scsi.Busy},
		"aborted": {func(r *rig) { r.recv(&Msg{Type: MsgForwardAbort, ID: 10, Front: 2}) }, scsi.Aborted},
		"the owner has changed": {func(r *rig) {
			r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
		}, scsi.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := paired(t, A)
			first := r.submit(r.op(scsi.OpWrite, 0, 512))
			m := r.sent(MsgMirror)
			w := r.forward(10, r.op(scsi.OpWrite, 0, 512)) // waits for the range
			r.recv(w)
			x.end(r)
			r.mirrorAck(m, scsi.OK)
			r.stored(scsi.OK)
			r.ended(first, scsi.OK)
			if f := r.sent(MsgForwardResult); f.ID != 10 || f.Result != x.want {
				t.Fatalf("%+v", f)
			}
			r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 3}})
			r.recv(w)
			r.notSent(MsgMirror)
			if f := r.sent(MsgForwardResult); f.ID != 10 || f.Result != x.want {
				t.Fatalf("again: %+v", f)
			}
			r.none(ActStore)
		})
	}
}
