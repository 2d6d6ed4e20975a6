package pair

import (
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

var lun2 = LUNID{2}

// pacing is an owner of two LUNs in one backing volume with a window of three writes.
func pacing(t *testing.T) *rig {
	r := paired(t, A)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1}, {ID: lun2, Owner: A, Seq: 1}})
	r.m.LoadIntents(lun2, Regions{1})
	r.m.hosts.table[pathKey{lun2, testHost}] = map[scsi.NexusID]bool{{Initiator: testHost, Port: 1}: true}
	r.m.cfg.WindowMin, r.m.cfg.WindowMax = 512, 8*512
	r.m.pacers[0].window = 3 * 512
	return r
}

func (r *rig) writeTo(l LUNID, n int64) *Op {
	o := r.op(scsi.OpWrite, n*512, 512)
	o.LUN = l
	r.m.Submit(r.now, o)
	return o
}

// endWrite plays the peer and the store for the oldest write that has begun.
func (r *rig) endWrite() LUNID {
	r.t.Helper()
	msg := r.sent(MsgMirror)
	r.recv(&Msg{Type: MsgMirrorAck, ID: msg.ID, Result: scsi.OK})
	r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
	return msg.LUN
}

func never() bool { return false }

func TestLUNsOfAVolumeTakeTurns(t *testing.T) {
	r := pacing(t)
	for n := range int64(6) {
		r.writeTo(lun1, n)
	}
	for n := range int64(3) {
		r.writeTo(lun2, n)
	}
	if v := r.m.Pace(0); v.Used != 3*512 || v.Waiting != 6 {
		t.Fatalf("%+v", v)
	}
	var order []LUNID
	for range 9 {
		order = append(order, r.endWrite())
	}
	want := []LUNID{lun1, lun1, lun1, lun1, lun2, lun1, lun2, lun1, lun2}
	for i := range want {
		if order[i] != want[i] {
			t.Fatalf("write %d is of LUN %v: %v", i, order[i], order)
		}
	}
	if v := r.m.Pace(0); v.Used != 0 || v.Waiting != 0 {
		t.Fatalf("%+v", v)
	}
	r.none(ActStore)
}

// Reads wait for no window, a write that is larger than it goes alone, and one that ends while it
// waits leaves no hole.
func TestWindowEdges(t *testing.T) {
	r := pacing(t)
	big := r.op(scsi.OpWrite, 0, 8192)
	r.m.Submit(r.now, big)
	if r.m.Pace(0).Used != 8192 {
		t.Fatal("a write that is larger than the window never begins")
	}
	waits := r.writeTo(lun2, 100)
	other := r.writeTo(lun1, 101)
	r.submit(r.op(scsi.OpRead, 200*512, 512))
	if x := r.next(ActStore); x.Op.Cmd.Kind != scsi.OpRead {
		t.Fatal("a read waits for writes")
	}
	r.m.Abort(r.now, waits)
	r.ended(waits, scsi.Aborted)
	r.endWrite()
	r.next(ActReply)
	if r.endWrite() != lun1 {
		t.Fatal("the write behind the aborted one has not begun")
	}
	r.ended(other, scsi.OK)
	if v := r.m.Pace(0); v.Used != 0 || v.Waiting != 0 {
		t.Fatalf("%+v", v)
	}
	// A LUN that is deleted takes its writes along.
	r.m.Submit(r.now, r.op(scsi.OpWrite, 0, 8192))
	gone := r.writeTo(lun2, 1)
	r.queue = slices.DeleteFunc(r.queue, func(x Action) bool { return x.Kind == ActReply })
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1}})
	r.ended(gone, scsi.Unavailable)
	r.endWrite()
	if v := r.m.Pace(0); v.Used != 0 || v.Waiting != 0 {
		t.Fatalf("%+v", v)
	}
}

// The window follows the time that writes take, and comes back.
func TestWindowFollowsTheDisks(t *testing.T) {
	r := pacing(t)
	r.m.pacers[0].window = 8 * 512
	for n := range int64(20) {
		r.writeTo(lun1, n)
	}
	r.passing(500*ms, never)
	r.endWrite()
	if w := r.m.Pace(0).Window; w != 4*512 {
		t.Fatalf("after a write of 500 ms the window is %d", w)
	}
	r.endWrite() // began with the old window: proves nothing of the present one
	if w := r.m.Pace(0).Window; w != 4*512 {
		t.Fatalf("one delay counts twice: %d", w)
	}
	for range 18 {
		r.endWrite()
	}
	if w := r.m.Pace(0).Window; w <= 4*512 || w > 8*512 {
		t.Fatalf("after quick writes the window is %d", w)
	}
}

// A write that waits is judged when it begins: after D it is answered BUSY (R11b), and the LUN's
// new owner gets it if it moves.
func TestWaitingWritesAreJudgedWhenTheyBegin(t *testing.T) {
	r := pacing(t)
	r.m.Submit(r.now, r.op(scsi.OpWrite, 0, 8192))
	old := r.writeTo(lun2, 1)
	r.passing(1200*ms, never)
	r.endWrite()
	r.next(ActReply)
	r.ended(old, scsi.Busy)

	r.m.Submit(r.now, r.op(scsi.OpWrite, 0, 8192))
	r.writeTo(lun2, 2)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1}, {ID: lun2, Owner: B, Seq: 2}})
	if f := r.sent(MsgForward); f.LUN != lun2 {
		t.Fatal("it is not forwarded to the new owner")
	}
	r.endWrite()
	if v := r.m.Pace(0); v.Used != 0 || v.Waiting != 0 {
		t.Fatalf("%+v", v)
	}
}
