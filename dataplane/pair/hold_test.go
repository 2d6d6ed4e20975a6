package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A hold for a cut waits for what changes data, and lets the rest pass.
func TestHoldWaitsForChangesOnly(t *testing.T) {
	r := paired(t, A)
	read := r.submit(r.op(scsi.OpRead, 4096, 512))
	store := r.next(ActStore)
	write := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	r.m.Hold(r.now, 1, []LUNID{lun1}, 800*ms)
	r.none(ActQuiet)
	held := r.submit(r.op(scsi.OpWrite, 8192, 512))
	r.notSent(MsgMirror)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(write, scsi.OK)
	if q := r.next(ActQuiet); q.ID != 1 || q.Result != scsi.OK { // the read is still at work
		t.Fatalf("%+v", q)
	}
	r.m.StoreDone(r.now, store.Op, scsi.OK)
	r.ended(read, scsi.OK)
	during := r.submit(r.op(scsi.OpRead, 0, 512))
	r.stored(scsi.OK)
	r.ended(during, scsi.OK)
	r.notSent(MsgMirror)
	r.m.Release(r.now, 1)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(held, scsi.OK)
}

// A hold ends at its limit, whether it is quiet or not, unless it was fixed in time.
func TestHoldEndsByItself(t *testing.T) {
	for name, c := range map[string]struct{ busy, fix, late, stands bool }{
		"quiet": {}, "not quiet": {busy: true}, "fixed": {fix: true, stands: true}, "fixed too late": {fix: true, late: true},
	} {
		r := paired(t, A)
		var m *Msg
		if c.busy {
			r.submit(r.op(scsi.OpWrite, 0, 512))
			m = r.sent(MsgMirror)
		}
		r.m.Hold(r.now, 1, []LUNID{lun1}, 100*ms)
		r.submit(r.op(scsi.OpWrite, 8192, 512))
		if c.late {
			r.now += 101 * ms // and no tick has come yet
		}
		if c.fix && r.m.Fix(r.now, 1) != c.stands {
			t.Errorf("%s: fixed %v", name, !c.stands)
		}
		r.pass(150 * ms)
		if c.busy {
			if q := r.next(ActQuiet); q.Result != scsi.Busy {
				t.Errorf("%s: %+v", name, q)
			}
			r.mirrorAck(m, scsi.OK)
		}
		if got := r.sentMaybe(MsgMirror) == nil; got != c.stands {
			t.Errorf("%s: held %v", name, got)
		}
		if r.m.Fix(r.now, 1) != c.stands {
			t.Errorf("%s: it can be fixed %v", name, !c.stands)
		}
		r.m.Release(r.now, 1)
		if u := r.m.units[lun1]; u.kept != 0 || u.quiesced != 0 {
			t.Errorf("%s: kept %d, quiesced %d", name, u.kept, u.quiesced)
		}
	}
}

// What is held or moved already is refused at once, and so is what is not ours.
func TestHoldRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		before func(r *rig)
		want   scsi.Result
	}{
		"nothing before":    {func(*rig) {}, scsi.OK},
		"another hold":      {func(r *rig) { r.m.Hold(r.now, 1, []LUNID{lun1}, 800*ms) }, scsi.Unavailable},
		"a transfer":        {func(r *rig) { r.m.Quiesce(r.now, 1, []LUNID{lun1}, 800*ms) }, scsi.Unavailable},
		"the peer's LUN":    {func(r *rig) { r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}}) }, scsi.Unavailable},
		"a hold that ended": {func(r *rig) { r.m.Hold(r.now, 1, []LUNID{lun1}, 1*ms); r.m.Release(r.now, 1) }, scsi.OK},
	} {
		r := paired(t, A)
		c.before(r)
		for q, ok := r.poll(ActQuiet); ok; q, ok = r.poll(ActQuiet) {
			if q.ID == 2 {
				t.Fatalf("%s: %+v", name, q)
			}
		}
		r.m.Hold(r.now, 2, []LUNID{lun1}, 800*ms)
		if q := r.next(ActQuiet); q.ID != 2 || q.Result != c.want {
			t.Errorf("%s: %+v", name, q)
		}
		if r.m.Fix(r.now, 2) != (c.want == scsi.OK) {
			t.Errorf("%s: fixed", name)
		}
	}
}

// A transfer that comes during a hold waits for its end, and a hold that was fixed is lost with the
// ownership of a unit.
func TestHoldAndTransfer(t *testing.T) {
	r := paired(t, A)
	r.m.Hold(r.now, 1, []LUNID{lun1}, 50*ms)
	r.next(ActQuiet)
	r.m.Quiesce(r.now, 2, []LUNID{lun1}, 1500*ms)
	r.none(ActQuiet)
	r.pass(100 * ms) // the hold lapses
	if q := r.next(ActQuiet); q.ID != 2 || q.Result != scsi.OK {
		t.Fatalf("%+v", q)
	}
	r.m.Release(r.now, 2)
	r.m.Hold(r.now, 3, []LUNID{lun1}, 800*ms)
	r.next(ActQuiet)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	if r.m.Fix(r.now, 3) {
		t.Error("a hold of a LUN that has moved was fixed")
	}
}
