package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// R1b: a write that has waited for the lease is answered by a node that becomes alone when it is
// durable here, whatever else ends in that step: here a scrub, while mirrored writes of the former
// epoch that have not begun are dropped.
func TestNothingIsAnsweredBeforeTheFlush(t *testing.T) {
	r := paired(t, A)
	lun2 := LUNID{2}
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1, Size: 1 << 30}, {ID: lun2, Owner: B, Seq: 1, Size: 1 << 30}})
	w := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	x := r.next(ActStore)
	if !r.m.Scrub(r.now, []CopyObject{{lun1, 64 << 20, 1}}, 8<<20, false) {
		t.Fatal("no scrub")
	}
	for i := range uint64(2) { // the second waits for the range of the first, which waits for its bit
		r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 40 + i, LUN: lun2, Len: 512, Data: make([]byte, 512)})
	}
	r.m.LinkDown(r.now, r.m.link.number, true)
	r.pass(2 * lease)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.none(ActReply) // no lease
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	if r.m.Stats.Cancelled != 2 {
		t.Fatalf("%d writes were dropped", r.m.Stats.Cancelled)
	}
	r.none(ActReply)
	r.m.SelfFlushed(r.now, true)
	r.ended(w, scsi.OK)
}
