package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

var snap1 = LUNID{2}

// joining is a lone member whose peer has come back; the copy has begun.
func joining(t *testing.T) *rig {
	t.Helper()
	r := alone(t, A)
	r.linkUp()
	r.sync(r.joiner())
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, []byte("all"), nil, r.objects())
	if m := r.sent(MsgMetaInstall); string(m.Meta) != "all" {
		t.Fatalf("%+v", m)
	}
	r.recv(&Msg{Type: MsgMetaAck})
	return r
}

func (r *rig) joiner() SyncInfo {
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = 99
	return in
}

func (r *rig) objects() []CopyObject {
	return []CopyObject{{lun1, copyChunk, 1}, {snap1, copyChunk, 2}}
}

// copyRead answers one read of the source.
func (r *rig) copyRead() *Op {
	r.t.Helper()
	x := r.next(ActCopyRead)
	x.Op.Buf, x.Op.Sum = make([]byte, x.Op.Cmd.Len), []byte("sum")
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	return x.Op
}

// alike compares all ranges: the joiner needs none of them.
func (r *rig) alike() {
	r.t.Helper()
	for range 2 {
		r.copyRead()
		r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
	}
}

// copied brings the resync to where everything is copied: the joiner has been asked to flush.
func (r *rig) copied() {
	r.t.Helper()
	r.alike()
	r.next(ActResyncList)
	r.m.ResyncObjects(r.now, r.objects())
	r.sent(MsgFlushAll)
}

func TestResyncToReadmission(t *testing.T) {
	r := joining(t)
	blocked := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.notSent(MsgMirror) // R7: the copy holds the range from the read to the joiner's answer
	r.copyRead()
	r.copyRead()
	for range 2 {
		s := r.sent(MsgCopySum)
		r.recv(&Msg{Type: MsgCopyNeed, ID: s.ID, Aux: 1})
		d := r.sent(MsgCopyData)
		r.none(ActCopyFree)
		r.recv(&Msg{Type: MsgCopyAck, ID: d.ID})
		r.next(ActCopyFree)
	}
	// Every write goes to the joiner, and through to this disk.
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	if x := r.stored(scsi.OK); !x.Durable {
		t.Fatal("R1b")
	}
	r.ended(blocked, scsi.OK)
	r.next(ActResyncList) // what was made meanwhile
	r.m.ResyncObjects(r.now, r.objects())
	r.sent(MsgFlushAll)
	late := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	if m.Flags&FlagFUA == 0 {
		t.Fatal("R1c: durable on both while the readmission is unresolved")
	}
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(late, scsi.OK)
	r.m.Propose(r.now, []byte("entry"))
	r.notSent(MsgAppend) // the log is barred: both must be admitted at equal indexes
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: 0})
	r.none(ActArbiterCAS) // first it is on record whose bits these are (R6)
	if l := r.saveState(); l.Check.Peer != "store-b" {
		t.Fatalf("%+v", l)
	}
	x := r.cas()
	if x.Record.Epoch != 7 || x.Record.Chair() != A || x.Record.Member(B).Incarnation.Nonce != 99 {
		t.Fatalf("%+v", x.Record)
	}
	if !r.m.Serving(r.now) || r.m.Serving(r.now+lease) {
		t.Fatal("while the readmission is unresolved service must end before the joiner could exclude us")
	}
	r.won(x, "v7")
	r.saved()
	r.phase(Paired)
	if v := r.m.View(r.now).Resync; v.Done != 2*copyChunk || v.Sent != 2*copyChunk || v.Active {
		t.Fatalf("%+v", v)
	}
}

// A conflict does not say that the request has not landed: what was heard may be the answer to its
// repetition. As long as the record cannot be read this node neither asks again, nor serves for
// longer than after its first request.
func TestReadmissionAfterAConflict(t *testing.T) {
	r := joining(t)
	r.copied()
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: 0})
	r.saveState()
	asked := r.now
	r.cas()
	r.m.ArbiterDone(r.now, Conflict, nil, "", "")
	for r.now < asked+10*lease {
		r.pass(20 * ms)
		r.none(ActArbiterCAS)
		if _, ok := r.poll(ActArbiterGet); ok {
			r.m.ArbiterDone(r.now, Unknown, nil, "", "down")
		}
		if r.now > asked+lease/2 && r.m.Serving(r.now) {
			t.Fatalf("it serves %d ms after it has asked", (r.now-asked)/ms)
		}
	}
	for range 100 {
		r.pass(20 * ms)
		if _, ok := r.poll(ActArbiterGet); ok {
			r.m.ArbiterDone(r.now, Got, &r.m.rec, "v6", "")
			r.pass(20 * ms)
			r.cas() // it has not landed: now it asks again
			return
		}
	}
	t.Fatal("the record is not read")
}

func TestResyncNeedsEqualIndexes(t *testing.T) {
	r := joining(t)
	r.copied()
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: 44})
	r.none(ActArbiterCAS)
	r.next(ActDropLink)
}

// The link breaks while ranges are being copied: everything of that resync ends, a snapshot's
// copies included, and a read that comes late belongs to no later one.
func TestResyncThatStops(t *testing.T) {
	r := joining(t)
	r.copyRead()
	slow := r.next(ActCopyRead)
	slow.Op.Buf = make([]byte, slow.Op.Cmd.Len)
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.next(ActCopyFree)
	if len(r.m.ops) != 0 {
		t.Fatalf("%d operations wait for nobody", len(r.m.ops))
	}
	r.queue = nil
	r.linkUp()
	r.pass(2 * lease)
	r.sync(r.joiner())
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, nil, nil, r.objects())
	r.recv(&Msg{Type: MsgMetaAck})
	before := r.m.resync.inflight
	r.m.StoreDone(r.now, slow.Op, scsi.OK) // of the first resync
	if r.m.resync.inflight != before || r.m.View(r.now).Resync.Done != 0 {
		t.Fatalf("a copy of the former resync counts in this one: %d, before %d", r.m.resync.inflight, before)
	}
	w := r.submit(r.op(scsi.OpRead, 0, 512))
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
}

// The end of a save counts only for what the save recorded: one that a slow disk has ended after
// its resync stopped does not let the next resync ask the arbiter.
func TestEndOfAnEarlierSaveIsNotThatOfALaterOne(t *testing.T) {
	r := joining(t)
	r.copied()
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: 0})
	first := r.next(ActSaveState)
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.linkUp()
	r.pass(2 * lease)
	r.queue = nil
	r.sync(r.joiner())
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, nil, nil, r.objects())
	r.recv(&Msg{Type: MsgMetaAck})
	r.next(ActResyncList) // everything was copied before
	r.m.ResyncObjects(r.now, r.objects())
	r.sent(MsgFlushAll)
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: 0})
	second := r.next(ActSaveState)
	r.m.StateSaved(r.now, first.ID, true)
	r.none(ActArbiterCAS)
	r.m.StateSaved(r.now, second.ID, true)
	r.cas()
}

func TestJoinerInstallsAfterItsOwnWork(t *testing.T) {
	r := paired(t, B)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	x := r.next(ActApply)
	r.m.get(r.now)
	r.got(record(6, A), "v6")
	r.saved()
	r.phase(Outside)
	r.sync(r.peerInfo(Alone))
	r.recv(&Msg{Type: MsgMetaInstall, Aux: 3, Meta: []byte("all")})
	r.none(ActInstall) // R4: a write of the older epoch is still at work
	r.recv(&Msg{Type: MsgCopyData, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply) // not before the metadata is installed
	r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
	r.pass(20 * ms)
	r.next(ActInstall)
	r.m.Installed(r.now, r.m.link.number, 3, []UnitInfo{{ID: lun1, Owner: A, Seq: 4}}, nil, scsi.OK)
	r.sent(MsgMetaAck)
	r.recv(&Msg{Type: MsgCopyData, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	r.next(ActApply)
	if r.m.View(r.now).LogIndex != 3 {
		t.Fatal("index")
	}
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	r.ended(o, scsi.Unavailable) // copied to, but no member
}

// A transfer that was decided while there were two ends alone: the peer would come back as owner of
// what this node still executes (R10).
func TestNobodyElseOwnsAUnitAtReadmission(t *testing.T) {
	r := joining(t)
	r.alike()
	r.next(ActResyncList)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 5}})
	r.m.ResyncObjects(r.now, r.objects())
	r.notSent(MsgFlushAll)
	r.next(ActTakeAll)
	r.none(ActResyncList)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 6}})
	r.pass(lease)
	r.next(ActResyncList)
	r.m.ResyncObjects(r.now, r.objects())
	r.sent(MsgFlushAll)
}

// The joiner may know first that this node has taken a unit over again, and passes over what was
// mirrored under the ownership before: it is sent again, under the new one.
func TestAUnitTakenOverWhileCommandsAreAtWork(t *testing.T) {
	r := joining(t)
	r.alike()
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 5}})
	before := r.submit(r.op(scsi.OpWrite, 0, 512))
	first := r.sent(MsgMirror)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 6}})
	again := r.sent(MsgMirror)
	if first.Seq != 5 || again.Seq != 6 || again.ID != first.ID {
		t.Fatalf("sent under ownership %d, then under %d", first.Seq, again.Seq)
	}
	r.mirrorAck(again, scsi.OK)
	r.stored(scsi.OK)
	r.ended(before, scsi.OK)
	r.linkUp() // nothing of it is left to be sent
	r.notSent(MsgMirror)
}
