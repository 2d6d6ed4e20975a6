package pair

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A disk that cannot be read, or refuses what is written, has failed, whatever the blocks are. An
// object that was deleted has not.
func TestDiskFailsWhileHealing(t *testing.T) {
	begin := func(t *testing.T, kind ActionKind) (*rig, *Op) {
		r := keepsSums(t, A)
		o := r.submit(r.op(scsi.OpRead, 0, 4096))
		r.finds(ActStore, blocks(2, 1))
		if req := r.asks(blocks(2, 1)); kind == ActHeal {
			r.fetched(req, 1)
		} else {
			r.refused(req, scsi.Damaged)
		}
		return r, o
	}
	for _, x := range []struct {
		kind ActionKind
		res  scsi.Result
	}{{ActHeal, scsi.WriteError}, {ActAccept, scsi.WriteError}, {ActAccept, scsi.ReadError}} {
		r, o := begin(t, x.kind)
		r.done(x.kind, x.res)
		r.ended(o, scsi.Unavailable)
		if r.m.leave.why == "" || r.m.leave.failed != (x.res == scsi.WriteError) || r.m.Stats.LostBlocks != 0 {
			t.Errorf("%+v: leaving %q, failed %v, %d lost", x, r.m.leave.why, r.m.leave.failed, r.m.Stats.LostBlocks)
		}
	}
	for _, kind := range []ActionKind{ActHeal, ActAccept} {
		r, o := begin(t, kind)
		r.done(kind, scsi.Unavailable)
		r.stored(scsi.Unavailable)
		r.ended(o, scsi.Unavailable)
		if r.m.leave.why != "" || r.m.Stats.LostBlocks != 0 {
			t.Errorf("%d: %q", kind, r.m.leave.why)
		}
	}
}

// Each stage of healing ends with the standing of the node.
func TestHealingEndsWithTheStanding(t *testing.T) {
	stages := map[string]func(*rig) *Op{
		"waits for its range": func(r *rig) *Op {
			o := r.submit(r.op(scsi.OpRead, 0, 4096))
			r.submit(r.op(scsi.OpWrite, 0, 512))
			r.finds(ActStore, blocks(2, 1))
			return o
		},
		"asks": func(r *rig) *Op {
			o := r.submit(r.op(scsi.OpRead, 0, 4096))
			r.finds(ActStore, blocks(2, 1))
			r.asks(blocks(2, 1))
			return o
		},
		"writes": func(r *rig) *Op {
			o := r.submit(r.op(scsi.OpRead, 0, 4096))
			r.finds(ActStore, blocks(2, 1))
			r.fetched(r.asks(blocks(2, 1)), 1)
			return o
		},
	}
	// over lets the store end what it is at, and wants the command to end without an answer of the
	// medium.
	over := func(t *testing.T, r *rig, o *Op) {
		t.Helper()
		if x, ok := r.poll(ActHeal); ok {
			r.none(ActReply)
			r.m.StoreDone(r.now, x.Op, scsi.OK)
		}
		r.none(ActStore)
		for x, ok := r.poll(ActReply); ok; x, ok = r.poll(ActReply) {
			if x.Op.Cmd.Result != scsi.Unavailable {
				t.Errorf("%v", x.Op.Cmd.Result)
			}
		}
		if o.stage != stDone || o.Cmd.Result != scsi.Unavailable || r.m.ops[o.id] != nil {
			t.Errorf("stage %d, %v", o.stage, o.Cmd.Result)
		}
	}
	for name, stage := range stages {
		t.Run("the peer dies: "+name, func(t *testing.T) {
			r := keepsSums(t, A)
			o := stage(r)
			r.aloneByCrash()
			r.m.SelfFlushed(r.now, true)
			r.none(ActFetch)
			if x, ok := r.poll(ActHeal); ok {
				r.m.StoreDone(r.now, x.Op, scsi.OK)
			} else {
				if x, ok := r.poll(ActStore); ok { // the write that was first
					r.m.StoreDone(r.now, x.Op, scsi.OK)
					r.next(ActReply)
				}
				r.accepts(scsi.OK, blocks(2, 1))
			}
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
		})
		t.Run("this node leaves: "+name, func(t *testing.T) {
			r := keepsSums(t, A)
			o := stage(r)
			r.m.StepDown(r.now, "orderly stop")
			if name == "waits for its range" {
				r.m.LinkDown(r.now, r.m.link.number, true) // ends the write
			}
			over(t, r, o)
		})
		t.Run("outside: "+name, func(t *testing.T) {
			r := keepsSums(t, A)
			o := stage(r)
			r.m.get(r.now)
			r.got(record(6, B), "v6")
			r.saved()
			r.phase(Outside)
			over(t, r, o)
		})
		t.Run("the link breaks: "+name, func(t *testing.T) {
			r := keepsSums(t, A)
			o := stage(r)
			r.m.LinkDown(r.now, r.m.link.number, false)
			r.linkUp()
			in := r.peerInfo(Paired)
			in.Sums = true
			r.sync(in)
			r.beat()
			switch {
			case name == "waits for its range":
				r.mirrorAck(r.sent(MsgMirror), scsi.OK) // the earlier frame
				r.stored(scsi.OK)
				r.next(ActReply)
				r.fetched(r.asks(blocks(2, 1)), 1)
			case name == "asks":
				req := r.asks(blocks(2, 1))
				r.fetched(req, 1)
				r.fetched(req, 2) // what the old link brought after all
			}
			r.done(ActHeal, scsi.OK)
			r.none(ActHeal)
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
		})
	}
}

// The partner is asked under the present sequence of the owner: it drops what an older one asks,
// and no one would ask again.
func TestFetchOfThePresentOwner(t *testing.T) {
	r := keepsSums(t, A)
	r.submit(r.op(scsi.OpRead, 0, 4096))
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 3}})
	r.finds(ActStore, blocks(2, 1))
	if req := r.asks(blocks(2, 1)); req.Seq != 3 {
		t.Fatalf("%+v", req)
	}
}

// There is no space for the partner's copy, for a snapshot shares the block: a read is answered
// from it.
func TestNoSpaceToHeal(t *testing.T) {
	r := keepsSums(t, A)
	o := r.submit(r.op(scsi.OpRead, 512, 4096))
	r.finds(ActStore, blocks(2, 1))
	r.fetched(r.asks(blocks(2, 1)), 1)
	r.done(ActHeal, scsi.NoSpace)
	r.fetched(r.asks(blocks(1, 8)), 5)
	r.none(ActHeal)
	r.none(ActStore)
	r.ended(o, scsi.OK)
	if !bytes.Equal(o.Cmd.Data, bytes.Repeat([]byte{5}, 4096)) {
		t.Fatal("not what the partner has")
	}
	// A range that is wider than what is read, at the end of a LUN whose last block is short.
	r = keepsSums(t, A)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1, Size: 1300}})
	o = r.submit(r.op(scsi.OpRead, 700, 600))
	r.finds(ActStore, scsi.Range{Off: 1024, Len: 276})
	r.fetched(r.asks(scsi.Range{Off: 1024, Len: 276}), 1)
	r.done(ActHeal, scsi.NoSpace)
	req := r.asks(scsi.Range{Off: 512, Len: 788})
	data := make([]byte, req.Len)
	for i := range data {
		data[i] = byte(int(req.Off) + i)
	}
	r.recv(&Msg{Type: MsgFetched, ID: req.ID, Data: data})
	r.ended(o, scsi.OK)
	for i, v := range o.Cmd.Data {
		if v != byte(700+i) {
			t.Fatalf("byte %d is %d", i, v)
		}
	}

	r = keepsSums(t, A)
	o = r.submit(r.op(scsi.OpCompareWrite, 1024, 512))
	r.finds(ActCompare, blocks(2, 1))
	r.fetched(r.asks(blocks(2, 1)), 1)
	r.done(ActHeal, scsi.NoSpace)
	r.ended(o, scsi.NoSpace)
	r.notSent(MsgMirror)
}

// COMPARE AND WRITE compares with what has been healed; with what is lost it compares nothing.
func TestCompareAndWriteOnDamage(t *testing.T) {
	for _, res := range []scsi.Result{scsi.OK, scsi.Miscompare, scsi.Damaged} {
		r := keepsSums(t, A)
		o := r.submit(r.op(scsi.OpCompareWrite, 1024, 512))
		rounds := 1
		if res == scsi.Damaged {
			rounds = healRounds
		}
		for range rounds {
			r.finds(ActCompare, blocks(2, 1))
			r.notSent(MsgMirror)
			r.fetched(r.asks(blocks(2, 1)), 1)
			r.done(ActHeal, scsi.OK)
		}
		if res == scsi.Damaged {
			r.finds(ActCompare, blocks(2, 1))
		} else {
			r.done(ActCompare, res)
		}
		switch res {
		case scsi.OK:
			r.mirrorAck(r.sent(MsgMirror), scsi.OK)
			r.stored(scsi.OK)
			r.ended(o, scsi.OK)
		case scsi.Miscompare:
			r.ended(o, scsi.Miscompare)
		default:
			r.lostAt(o, 1024)
		}
		r.notSent(MsgMirror)
	}
}

// What a command waits for while it is healed, and what is late.
func TestWaitingAndLatenessOfHealing(t *testing.T) {
	r := keepsSums(t, A)
	wait := func(want string) {
		t.Helper()
		if got := r.m.Waiting(); !maps.Equal(got, map[string]int{want: 1}) {
			t.Fatalf("%v, want %s", got, want)
		}
	}
	o := r.submit(r.op(scsi.OpRead, 0, 4096))
	other := r.submit(r.op(scsi.OpRead, 0, 512))
	first := r.next(ActStore).Op
	second := r.next(ActStore).Op
	first.Bad = []scsi.Range{blocks(2, 1)}
	r.m.StoreDone(r.now, first, scsi.Damaged)
	if got := r.m.Waiting(); !maps.Equal(got, map[string]int{WaitsRange: 1, WaitsStore: 1}) {
		t.Fatalf("%v", got)
	}
	r.m.StoreDone(r.now, second, scsi.OK)
	r.ended(other, scsi.OK)
	wait(WaitsHeal)
	r.fetched(r.asks(blocks(2, 1)), 1)
	wait(WaitsStore)
	r.done(ActHeal, scsi.OK)
	wait(WaitsStore)
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)

	// A partner that does not answer is excluded, as for a mirrored write.
	r.submit(r.op(scsi.OpRead, 0, 4096))
	r.finds(ActStore, blocks(2, 1))
	if !r.passingWell(4*int64(r.m.cfg.MirrorMax), func() bool { return r.m.excl.active }) {
		t.Fatal("a partner that never answers is waited for")
	}
	// A disk that does not end what is written here is late, also if the page cache answered the
	// read.
	for _, kind := range []ActionKind{ActHeal, ActAccept} {
		r = keepsSums(t, A)
		r.submit(r.op(scsi.OpRead, 0, 4096))
		r.finds(ActStore, blocks(2, 1))
		if req := r.asks(blocks(2, 1)); kind == ActHeal {
			r.fetched(req, 1)
		} else {
			r.refused(req, scsi.Damaged)
		}
		r.next(kind)
		left := false
		for end := r.now + 3*int64(r.m.cfg.MirrorMax); r.now < end && !left; left = r.m.leave.why != "" {
			r.passing(100*ms, never)
			for i, x := range r.queue { // the partner's disk is well
				if x.Kind == ActSend && x.Msg.Type == MsgFlush && x.Msg.Flags&FlagProbe != 0 {
					r.queue = slices.Delete(r.queue, i, i+1)
					r.recv(&Msg{Type: MsgFlushAck, ID: x.Msg.ID, Result: scsi.OK})
					break
				}
			}
		}
		if !left {
			t.Errorf("action %d never ends, and the node stays", kind)
		}
	}
}

// Locks are of whole blocks, wherever in one a range ends.
func TestLocksAreOfWholeBlocks(t *testing.T) {
	m := New(config(A))
	for _, x := range []struct{ off, end, from, to int64 }{{0, 1, 0, 512}, {0, 512, 0, 512}, {511, 513, 0, 1024}, {600, 1020, 512, 1024}, {7, 7, 7, 7}, {1024, 1 << 62, 1024, 1 << 62}} {
		if from, to := m.wide(x.off, x.end); from != x.from || to != x.to {
			t.Errorf("%d to %d: %d to %d", x.off, x.end, from, to)
		}
	}
}

// What is locked and read back never goes beyond the LUN.
func TestRangeEndsWithTheLUN(t *testing.T) {
	r := keepsSums(t, A)
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 1, Size: 1300}})
	w := r.submit(r.op(scsi.OpWrite, 1100, 200))
	r.mirrorAck(r.sent(MsgMirror), scsi.NoSpace)
	x := r.next(ActRepairRead)
	if off, n := x.Op.Range(); off != 1024 || n != 276 {
		t.Fatalf("%d+%d", off, n)
	}
	x.Op.Buf = make([]byte, 276)
	x.Op.Bad = []scsi.Range{{Off: 1024, Len: 276}}
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	m := r.sent(MsgMirror)
	if rs, err := m.DecodeRanges(); err != nil || m.Flags&FlagRepair == 0 || m.Off != 1024 || m.Len != 276 || !slices.Equal(rs, x.Op.Bad) {
		t.Fatalf("%+v %v %v", m, rs, err)
	}
	r.mirrorAck(m, scsi.OK)
	r.ended(w, scsi.NoSpace)

	// A peer without checksums would take what is lost for good: this store cannot make the copies
	// alike.
	r = paired(t, A)
	w = r.submit(r.op(scsi.OpWrite, 512, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.NoSpace)
	x = r.next(ActRepairRead)
	x.Op.Buf, x.Op.Bad = make([]byte, 512), []scsi.Range{blocks(1, 1)}
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.notSent(MsgMirror)
	r.ended(w, scsi.Unavailable)
}
