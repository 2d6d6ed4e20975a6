package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// beside has two sessions of a host, both of which have shown life now.
func beside(r *rig) (a, b *scsi.Liveness) {
	a, b = new(scsi.Liveness), new(scsi.Liveness)
	a.Answered(r.now)
	b.Answered(r.now)
	return a, b
}

func (r *rig) through(session byte, kind scsi.OpKind, off int64, length int, l *scsi.Liveness) *Op {
	return r.submit(r.ofSession(r.op(kind, off, length), session, l))
}

// signs has a host answer the ping that it was sent.
func (r *rig) signs(l *scsi.Liveness) {
	r.t.Helper()
	if x := r.next(ActProve); x.Alive != l {
		r.t.Fatal("another host is asked")
	}
	l.Answered(r.now)
	r.m.Proved(r.now, l)
}

// A host with one session is never asked because of its own writes.
func TestOneSessionIsNotAsked(t *testing.T) {
	r := paired(t, A)
	a, _ := beside(r)
	for range 3 {
		r.calm(100 * ms)
		o := r.through(1, scsi.OpWrite, 0, 512, a)
		r.none(ActProve)
		r.completes(o)
	}
	if r.m.units[lun1].wrote != nil {
		t.Error("its ranges are remembered")
	}
}

// A write over one session to where another session of the host has written since waits for a sign
// of life; elsewhere it does not.
func TestWriteOverAnotherSession(t *testing.T) {
	r := paired(t, A)
	a, b := beside(r)
	r.completes(r.through(1, scsi.OpWrite, 0, 512, a))
	r.calm(10 * ms)
	// The machine remembers writes from here on, and knows none of the earlier ones.
	o := r.through(2, scsi.OpWrite, 1<<20, 512, b)
	r.notSent(MsgMirror)
	r.signs(b)
	r.completes(o)
	r.calm(10 * ms)
	o = r.through(1, scsi.OpWrite, 1<<20+4096, 512, a)
	r.signs(a)
	r.completes(o)
	r.calm(10 * ms)

	o = r.through(1, scsi.OpWrite, 2<<20, 512, a) // beside what b has written
	r.none(ActProve)
	r.completes(o)
	o = r.through(1, scsi.OpWrite, 1<<20+512, 512, a) // in the same granule, a moment after the sign
	r.none(ActProve)
	r.completes(o)
	r.calm(10 * ms)
	o = r.through(2, scsi.OpWrite, 1<<20+1024, 512, b) // where a has written since b's sign
	r.notSent(MsgMirror)
	r.calm(10 * ms)
	r.notSent(MsgMirror)
	before := r.m.Stats.Overwritten
	r.signs(b)
	r.completes(o)
	if before == 0 {
		t.Error("not counted")
	}
	r.calm(10 * ms)
	o = r.through(2, scsi.OpWrite, 1<<20+65536, 512, b)
	r.none(ActProve)
	r.completes(o)
	r.completes(r.through(1, scsi.OpWrite, 1<<20+131072, 512, a))
	o = r.through(1, scsi.OpWrite, 1<<20+65536, 512, a) // the session that wrote last, but not here
	r.signs(a)
	r.completes(o)
	o = r.through(2, scsi.OpRead, 1<<20+65536, 512, b) // a read does no harm
	r.none(ActProve)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

// A host that has left the session does not answer, and its write is answered BUSY in the end.
func TestWriteOverASessionThatWasLeft(t *testing.T) {
	r := paired(t, A)
	a, b := beside(r)
	r.completes(r.through(1, scsi.OpWrite, 0, 512, a))
	r.calm(10 * ms)
	o := r.through(2, scsi.OpWrite, 0, 512, b)
	r.signs(b)
	r.completes(o)
	late := r.through(1, scsi.OpWrite, 0, 512, a)
	for range 45 {
		r.notSent(MsgMirror)
		r.calm(100 * ms)
	}
	r.ended(late, scsi.Busy)
}

// It is judged again when the write starts: the one before may have been another session's.
func TestWriteThatWaitsBehindAnotherSession(t *testing.T) {
	r := paired(t, A)
	a, b := beside(r)
	r.completes(r.through(1, scsi.OpWrite, 1<<20, 512, a))
	r.calm(ms)
	o := r.through(2, scsi.OpWrite, 1<<20, 512, b)
	r.signs(b)
	r.completes(o)
	o = r.through(1, scsi.OpWrite, 1<<20, 512, a)
	r.signs(a)
	r.completes(o)
	r.calm(ms)
	first := r.through(2, scsi.OpWrite, 0, 512, b)
	m := r.sent(MsgMirror)
	second := r.through(2, scsi.OpWrite, 0, 512, b)
	r.calm(ms)
	a.Answered(r.now) // after the first has started, and before the second does
	third := r.through(1, scsi.OpWrite, 0, 512, a)
	r.none(ActProve)
	r.calm(ms)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(first, scsi.OK)
	r.completes(second)
	r.notSent(MsgMirror)
	r.signs(a)
	r.completes(third)
}

// What is forwarded counts from when it is handed over.
func TestForwardedWritesOverTwoSessions(t *testing.T) {
	r := signing(t, true)
	a, b := beside(r)
	r.through(1, scsi.OpWrite, 0, 512, a)
	r.sent(MsgForward)
	r.calm(10 * ms)
	r.through(2, scsi.OpWrite, 0, 512, b)
	r.notSent(MsgForward)
	r.signs(b)
	r.sent(MsgForward)
	r.through(1, scsi.OpWrite, 0, 512, a)
	r.notSent(MsgForward)
}

// A write of another host counts, and a host that has come to several sessions counts as one with
// several for a while after it has returned to one.
func TestSeveralSessionsForAWhile(t *testing.T) {
	r := paired(t, A)
	a, b := beside(r)
	r.completes(r.through(1, scsi.OpWrite, 0, 512, a))
	r.calm(ms)
	o := r.through(2, scsi.OpWrite, 0, 512, b)
	r.signs(b)
	r.completes(o)
	r.calm(ms)
	o = r.through(1, scsi.OpWrite, 1<<20, 512, a)
	r.signs(a)
	r.completes(o)
	r.calm(2 * ms)
	o = r.through(2, scsi.OpWrite, 2<<20, 512, b)
	r.none(ActProve)
	r.completes(o)
	o = r.through(1, scsi.OpWrite, 2<<20, 512, a)
	r.signs(a)
	r.completes(o)
	for range int(besideFor/1e9) + 1 {
		r.calm(1000 * ms)
		a.Answered(r.now)
	}
	other := r.op(scsi.OpWrite, 3<<20, 512)
	other.Cmd.Nexus.Initiator, other.Cmd.Liveness = "iqn.other", nil
	r.m.hosts.table[pathKey{lun1, "iqn.other"}] = map[scsi.NexusID]bool{other.Cmd.Nexus: true}
	r.completes(r.submit(other))
	o = r.through(1, scsi.OpWrite, 3<<20, 512, a) // one session for long: the path switch protects it
	r.none(ActProve)
	r.completes(o)
	r.calm(besideUnits + besideFor)
	r.m.Tick(r.now)
	if len(r.m.hosts.latest) != 0 || r.m.units[lun1].wrote != nil {
		t.Errorf("remembered: %v, %v", r.m.hosts.latest, r.m.units[lun1].wrote != nil)
	}
}

// Ranges that are wider than the table, and more sessions than it tells apart, cost a question.
func TestWroteTable(t *testing.T) {
	op := func(session byte, off, length int64) *scsi.Op {
		return &scsi.Op{Kind: scsi.OpWrite, Off: off, Len: length, Nexus: scsi.NexusID{Initiator: "h", ISID: [6]byte{session}}}
	}
	w := newWrote(10, 4096)
	if w.calm(op(1, 0, 512), 9) || !w.calm(op(1, 0, 512), 10) {
		t.Error("what was before the table")
	}
	w.note(20, op(1, 4096, 4096))
	w.note(30, op(1, 8192, 512))
	for _, c := range []struct {
		session byte
		off, n  int64
		sign    int64
		calm    bool
	}{{1, 0, 1 << 20, 10, true}, {2, 4096, 1, 19, false}, {2, 4096, 1, 20, true}, {2, 0, 4096, 19, true}, {2, 0, 4097, 19, false},
		{2, 8191, 2, 20, false}, {2, 8192 + 4095, 1, 29, false}, {2, 12288, 4096, 10, true}} {
		if got := w.calm(op(c.session, c.off, c.n), c.sign); got != c.calm {
			t.Errorf("%+v: %v", c, got)
		}
	}
	w.note(40, op(2, 4096, 512))
	w.note(50, op(1, 4096, 512))
	if w.calm(op(1, 4096, 1), 39) || !w.calm(op(1, 4096, 1), 40) || w.calm(op(2, 4096, 1), 49) || w.calm(op(3, 4096, 1), 49) {
		t.Error("of several sessions")
	}
	wide := int64(granules) * 4096
	if w.calm(op(2, 0, wide), 49) || !w.calm(op(2, 0, wide), 50) {
		t.Error("a wide write is judged by all that is remembered")
	}
	u := &scsi.Op{Kind: scsi.OpUnmap, Ranges: []scsi.Range{{Off: 1 << 30, Len: 4096}, {Off: 1 << 31, Len: 4096}}, Nexus: op(1, 0, 0).Nexus}
	w.note(60, u)
	if w.calm(op(2, 1<<31, 512), 59) || !w.calm(op(2, 1<<31+4096, 512), 50) {
		t.Error("ranges of an UNMAP")
	}
	u.Ranges[1].Len = wide
	w.note(70, u)
	if w.calm(op(1, 0, 512), 69) || !w.calm(op(1, 0, 512), 70) {
		t.Error("a wide UNMAP")
	}
	for i := range besideIDs + 1 {
		o := op(1, 0, 512)
		o.Nexus.Port = uint16(i)
		w.note(80, o)
	}
	if len(w.ids) > besideIDs || w.calm(op(1, 0, 512), 79) {
		t.Error(len(w.ids))
	}
	if n := testing.AllocsPerRun(100, func() { w.note(90, op(1, 0, 65536)) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
