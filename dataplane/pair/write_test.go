package pair

import (
	"bytes"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func TestWriteGoesToPeerFirst(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 4096))
	r.none(ActStore) // R5
	m := r.sent(MsgMirror)
	if m.Off != 0 || len(m.Data) != 4096 || m.Epoch != 5 || m.Seq != 1 {
		t.Fatalf("%+v", m)
	}
	second := r.submit(r.op(scsi.OpWrite, 512, 512))
	r.notSent(MsgMirror) // overlapping: waits for the range
	r.mirrorAck(m, scsi.OK)
	if x := r.stored(scsi.OK); x.Durable {
		t.Fatal("a mirrored write without FUA need not be durable")
	}
	r.ended(o, scsi.OK)
	m = r.sent(MsgMirror)
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(second, scsi.OK)
}

func TestFUAAndFlushReachBoth(t *testing.T) {
	r := paired(t, A)
	o := r.op(scsi.OpWrite, 0, 512)
	o.Cmd.FUA = true
	r.submit(o)
	m := r.sent(MsgMirror)
	if m.Flags&FlagFUA == 0 {
		t.Fatal("the peer need not make a FUA write durable")
	}
	r.mirrorAck(m, scsi.OK)
	if x := r.stored(scsi.OK); !x.Durable {
		t.Fatal("the owner need not make a FUA write durable")
	}
	r.ended(o, scsi.OK)

	f := r.submit(r.op(scsi.OpFlush, 0, 0))
	x := r.next(ActFlush)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.none(ActReply) // R8: not before the peer
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	r.ended(f, scsi.OK)
}

func TestAgeLimit(t *testing.T) {
	r := paired(t, A)
	for kind, want := range map[scsi.OpKind]bool{scsi.OpWrite: true, scsi.OpCompareWrite: true, scsi.OpRead: false} {
		o := r.op(kind, 0, 512)
		o.Cmd.Arrived = r.now - int64(r.m.cfg.AgeMax) - 1
		r.submit(o)
		if want {
			r.ended(o, scsi.Busy)
			r.notSent(MsgMirror)
		} else {
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
		}
	}
}

// A write that waits for a range grows old there; what matters is the moment its execution starts
// (R11b).
func TestAgeLimitCountsWaiting(t *testing.T) {
	r := paired(t, A)
	r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	old := r.submit(r.op(scsi.OpWrite, 0, 512))
	for range 12 {
		r.pass(100 * ms)
		r.beat()
	}
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.next(ActReply)
	r.ended(old, scsi.Busy)
}

func TestCheckIsMadeUnderTheLock(t *testing.T) {
	verdict := scsi.OK
	r := paired(t, A, func(c *Config) { c.Check = func(*scsi.Op, LUNID) scsi.Result { return verdict } })
	first := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	second := r.submit(r.op(scsi.OpWrite, 0, 512))
	verdict = scsi.ReservationConflict // an entry applied meanwhile
	r.mirrorAck(m, scsi.OK)
	r.stored(scsi.OK)
	r.ended(first, scsi.OK)
	r.ended(second, scsi.ReservationConflict)
}

func TestAbortByStage(t *testing.T) {
	t.Run("held", func(t *testing.T) {
		r := paired(t, A)
		clear(r.m.hosts.table)
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		r.m.Abort(r.now, o)
		r.ended(o, scsi.Aborted)
	})
	t.Run("waiting for its range", func(t *testing.T) {
		r := paired(t, A)
		first := r.submit(r.op(scsi.OpWrite, 0, 512))
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		r.m.Abort(r.now, o)
		r.ended(o, scsi.Aborted)
		r.mirrorAck(r.sent(MsgMirror), scsi.OK)
		r.stored(scsi.OK)
		r.ended(first, scsi.OK)
		r.notSent(MsgMirror)
	})
	t.Run("sent to the peer", func(t *testing.T) {
		r := paired(t, A)
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		r.m.Abort(r.now, o)
		r.none(ActReply) // R5: it keeps its lock until it is resolved on both
		next := r.submit(r.op(scsi.OpRead, 0, 512))
		r.none(ActStore)
		r.mirrorAck(r.sent(MsgMirror), scsi.OK)
		r.stored(scsi.OK)
		r.ended(o, scsi.OK)
		r.stored(scsi.OK)
		r.ended(next, scsi.OK)
	})
	t.Run("in the store", func(t *testing.T) {
		r := paired(t, A)
		o := r.submit(r.op(scsi.OpRead, 0, 512))
		r.m.Abort(r.now, o)
		r.none(ActReply)
		r.stored(scsi.OK)
		r.ended(o, scsi.OK)
	})
	t.Run("forwarded", func(t *testing.T) {
		r := paired(t, B)
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		f := r.sent(MsgForward)
		r.m.Abort(r.now, o)
		if a := r.sent(MsgForwardAbort); a.ID != f.ID {
			t.Fatalf("aborts %d, sent %d", a.ID, f.ID)
		}
		r.m.Abort(r.now, o)
		r.notSent(MsgForwardAbort)
		r.recv(&Msg{Type: MsgForwardResult, ID: f.ID, Result: scsi.Aborted})
		r.ended(o, scsi.Aborted)
	})
}

func TestNoSpaceOnThePeer(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 4096, 4096))
	r.mirrorAck(r.sent(MsgMirror), scsi.NoSpace)
	r.none(ActStore) // refused on both alike (R13)
	x := r.next(ActRepairRead)
	x.Op.Buf = bytes.Repeat([]byte{7}, 4096)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	m := r.sent(MsgMirror)
	if m.Flags&FlagRepair == 0 || m.Off != 4096 || m.Len != 4096 || !bytes.Equal(m.Data, x.Op.Buf) {
		t.Fatalf("%+v", m)
	}
	r.none(ActReply)
	r.mirrorAck(m, scsi.OK)
	r.ended(o, scsi.NoSpace)
	r.none(ActArbiterCAS) // no node is excluded
	if r.m.excl.active {
		t.Fatal("out of space excludes")
	}
}

func TestNoSpaceOnTheOwner(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 4096))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.NoSpace)
	x := r.next(ActRepairRead) // the peer has what the owner refused: it must go there again
	x.Op.Buf = make([]byte, 4096)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.ended(o, scsi.NoSpace)
}

func TestPeerThatCannotBeRepaired(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 4096))
	r.mirrorAck(r.sent(MsgMirror), scsi.NoSpace)
	x := r.next(ActRepairRead)
	x.Op.Buf = make([]byte, 4096)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.mirrorAck(r.sent(MsgMirror), scsi.NoSpace)
	r.none(ActReply) // R5: excluded before the range is unlocked
	if !r.m.excl.active {
		t.Fatal("a peer whose copy differs stays a member")
	}
	r.pass(2 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	r.ended(o, scsi.NoSpace)
}

// A write that was sent again on a new link is answered twice. The second answer is none to the
// repair.
func TestSecondAnswerIsNotTheRepairs(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 4096))
	m := r.sent(MsgMirror)
	r.mirrorAck(m, scsi.NoSpace)
	x := r.next(ActRepairRead)
	x.Op.Buf = make([]byte, 4096)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	repair := r.sent(MsgMirror)
	for _, res := range []scsi.Result{scsi.OK, scsi.NoSpace} {
		r.mirrorAck(m, res)
		r.none(ActReply)
		if r.m.excl.active {
			t.Fatal("excluded for an old answer")
		}
	}
	r.mirrorAck(repair, scsi.OK)
	r.ended(o, scsi.NoSpace)
}

func TestPeerRefusesAWrite(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.WriteError)
	r.none(ActReply)
	r.none(ActStore)
	r.pass(2 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	if x := r.stored(scsi.OK); !x.Durable {
		t.Fatal("alone means write-through")
	}
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	r.ended(o, scsi.OK)
}

// A frame that waits to be sent shares the command's buffer: the command must not end, and its
// buffer not be used again, while the peer would still believe the frame.
func TestLeavingKeepsBuffersOfSentFrames(t *testing.T) {
	r := paired(t, A)
	w := r.submit(r.op(scsi.OpWrite, 0, 512))
	m := r.sent(MsgMirror)
	r.m.StepDown(r.now, "orderly stop")
	r.none(ActReply)
	r.mirrorAck(m, scsi.OK)
	r.none(ActStore)
	r.ended(w, scsi.Unavailable)

	r = paired(t, B)
	f := r.submit(r.op(scsi.OpWrite, 0, 512))
	r.sent(MsgForward)
	r.m.StepDown(r.now, "orderly stop")
	r.none(ActReply)
	r.m.LinkDown(r.now, r.m.link.number, true) // no frame leaves any more
	r.ended(f, scsi.Unavailable)
}

func TestPartnerIgnoresOlderEpochAndOwner(t *testing.T) {
	r := paired(t, B)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Epoch: 4, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Epoch: 5, Seq: 0, ID: 4, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply)
	r.m.exclude(r.now, "test", false, 0)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply) // R3: not from the start of an exclude
}

func TestPartnerAppliesOverlappingWritesInOrder(t *testing.T) {
	r := paired(t, B)
	for id := uint64(1); id <= 2; id++ {
		r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: id, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	}
	x := r.next(ActApply)
	r.none(ActApply)
	r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
	if a := r.sent(MsgMirrorAck); a.ID != 1 {
		t.Fatal(a.ID)
	}
	r.m.Applied(r.now, r.m.link.number, r.next(ActApply).Msg, scsi.OK)
	if a := r.sent(MsgMirrorAck); a.ID != 2 {
		t.Fatal(a.ID)
	}
}

func TestSilentPeerAndSlowStore(t *testing.T) {
	r := paired(t, A)
	r.submit(r.op(scsi.OpWrite, 0, 512))
	for r.now < 1000*ms+int64(r.m.cfg.MirrorMax)+2000*ms && !r.m.excl.active {
		r.pass(100 * ms)
		r.probes()
		if !r.m.excl.active {
			r.beat()
		}
	}
	if !r.m.excl.active {
		t.Fatal("a mirrored write unanswered for Dm does not exclude the peer")
	}
	r = paired(t, A)
	r.m.StoreBegins(r.now, r.submit(r.op(scsi.OpRead, 0, 512)))
	for range 60 {
		r.pass(100 * ms)
		if r.m.leave.why != "" {
			r.next(ActDropHosts) // or they would wait for the answers of a disk that hangs
			return
		}
		r.probes()
		r.beat()
	}
	t.Fatal("a store operation unfinished for Dm does not make the node step down")
}

// What is sent again has data of its own: the answer to the first frame frees the op's buffer, and
// the host's next command may be in it before the second frame has left.
func TestSentAgainOwnsItsData(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpWrite, 0, 4096))
	first := r.sent(MsgMirror)
	if &first.Data[0] != &o.Cmd.Data[0] {
		t.Fatal("the first frame is sent from the command's buffer, without a copy")
	}
	r.m.relink(r.now)
	again := r.sent(MsgMirror)
	o.Cmd.Data[0] = 0xff
	if again.ID != first.ID || len(again.Data) != 4096 || again.Data[0] == 0xff {
		t.Fatal("the second frame changes with the buffer")
	}
}

// Dm is for a disk that hangs. A read that waits in the queue of one that is busy shows nothing of
// the kind.
func TestDmCountsFromWhereTheDiskIsAsked(t *testing.T) {
	r := paired(t, A)
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	x := r.next(ActStore)
	for passed := int64(0); passed < 3*int64(r.m.cfg.MirrorMax); passed += 100 * ms {
		r.pass(100 * ms)
		r.beat()
	}
	r.phase(Paired)
	if r.m.leave.why != "" {
		t.Fatalf("it steps down: %s", r.m.leave.why)
	}
	r.m.StoreBegins(r.now, x.Op)
	for passed := int64(0); passed < int64(r.m.cfg.MirrorMax)-500*ms; passed += 100 * ms {
		r.pass(100 * ms)
		r.beat()
	}
	if r.m.leave.why != "" {
		t.Fatalf("it steps down within Dm: %s", r.m.leave.why)
	}
	for i := 0; i < 20 && r.m.leave.why == ""; i++ {
		r.probes()
		r.beat()
		r.pass(100 * ms)
	}
	if r.m.leave.why == "" {
		t.Fatal("a disk that has not answered for Dm is served from")
	}
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.ended(o, scsi.Unavailable)
}
