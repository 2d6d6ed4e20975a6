package pair

import (
	"slices"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

const region = DefaultRegion

// cold makes the regions of the test's LUN cold, and large enough for some of them.
func (r *rig) cold() *intents {
	u := r.m.units[lun1]
	u.size = 64 * region
	u.intents = intents{}
	return &u.intents
}

// intended makes the bits that are asked for durable and lists them.
func (r *rig) intended() []uint32 {
	r.t.Helper()
	x := r.next(ActIntend)
	r.m.Intended(r.now, x.LUN, true)
	return x.Regions
}

// R7: a region's bit is durable before this node first applies a write to it; the peer's half
// continues meanwhile.
func TestOwnersBitBeforeItsWrite(t *testing.T) {
	r := paired(t, A)
	r.cold()
	w := r.submit(r.op(scsi.OpWrite, 5*region, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.none(ActStore)
	if got := r.intended(); !slices.Equal(got, []uint32{5}) {
		t.Fatalf("%v", got)
	}
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
	// A second write to the region finds it hot.
	w = r.submit(r.op(scsi.OpWrite, 5*region+4096, 512))
	r.none(ActIntend)
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
}

func TestPartnersBitBeforeItsWrite(t *testing.T) {
	r := paired(t, B)
	r.cold()
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Off: region - 256, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply)
	if got := r.intended(); !slices.Equal(got, []uint32{0, 1}) {
		t.Fatalf("%v", got)
	}
	x := r.next(ActApply)
	r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
	r.sent(MsgMirrorAck)
}

// One bitmap write at a time; what is asked for meanwhile goes with the next. A sequential writer
// has bits set ahead.
func TestBitsAreCommittedInGroups(t *testing.T) {
	r := paired(t, A)
	n := r.cold()
	for _, i := range []int64{9, 20, 22} {
		r.submit(r.op(scsi.OpWrite, i*region, 512))
		r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	}
	if a, b := r.intended(), r.intended(); !slices.Equal(a, []uint32{9}) || !slices.Equal(b, []uint32{20, 22}) {
		t.Fatalf("%v then %v", a, b)
	}
	r.submit(r.op(scsi.OpWrite, 10*region, 512))
	if a := r.intended(); len(a) != 1+aheadRegions || a[0] != 10 {
		t.Fatalf("%v", a)
	}
	if n.hot.Count() != 4+aheadRegions {
		t.Fatalf("%v", n.hot.List())
	}
}

func TestUnmapSetsBitsOfItsRangesOnly(t *testing.T) {
	r := paired(t, A)
	r.cold()
	o := r.op(scsi.OpUnmap, 0, 0)
	o.Cmd.Ranges = []scsi.Range{{Off: 0, Len: 512}, {Off: 40 * region, Len: region + 1}, {Off: 7 * region}}
	r.submit(o)
	if got := r.intended(); !slices.Equal(got, []uint32{0, 40, 41}) {
		t.Fatalf("%v", got)
	}
}

// R12: a bitmap that cannot be written is a failed store.
func TestFailedBitmapStepsDown(t *testing.T) {
	r := paired(t, A)
	r.cold()
	w := r.submit(r.op(scsi.OpWrite, 5*region, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	x := r.next(ActIntend)
	r.m.Intended(r.now, x.LUN, false)
	r.none(ActStore)
	r.ended(w, scsi.Unavailable)
	if !r.m.View(r.now).Leaving {
		t.Fatal("it goes on")
	}
}

// checkpointed is a pair about to clear: both nodes have flushed.
func checkpointed(t *testing.T) (*rig, *intents) {
	t.Helper()
	r := paired(t, A, func(c *Config) {
		c.CheckpointIdle = time.Second
		c.State.Check = Checkpoint{Peer: "store-b", Generation: 1, Count: [2]uint64{3, 7}}
	})
	n := r.cold()
	n.hot.AddAll(1, 3)
	r.calm(2 * lease)
	r.calm(2 * lease)
	r.calm(2 * lease)
	x := r.next(ActFlush)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	return r, n
}

// calm lets time pass with the lease kept.
func (r *rig) calm(d int64) {
	r.t.Helper()
	for end := r.now + d; r.now < end; {
		r.pass(50 * ms)
		for b := r.sentMaybe(MsgHeartbeat); b != nil; b = r.sentMaybe(MsgHeartbeat) {
			r.recv(&Msg{Type: MsgHeartbeatAck, ID: b.ID, Aux: b.Aux})
		}
	}
}

func TestCheckpointClearsOnBoth(t *testing.T) {
	r, n := checkpointed(t)
	r.none(ActClear)
	r.notSent(MsgClear) // the partner's flush is due
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	c := r.sent(MsgClear)
	if keep, err := decodeRegions(c.Meta, 64); err != nil || !keep.Empty() || c.Aux != 4 {
		t.Fatalf("%+v %v", c, err)
	}
	r.none(ActSaveState)
	r.recv(&Msg{Type: MsgClearAck, ID: c.ID, LUN: lun1, Aux: 4})
	if x := r.next(ActSaveState); x.State.Check.Count != [2]uint64{4, 7} {
		t.Fatalf("%+v", x.State)
	}
	r.none(ActClear) // R6: the number is durable first
	r.m.StateSaved(r.now, r.m.saved.stateID, true)
	if x := r.next(ActClear); !x.Keep.Empty() || !n.hot.Empty() || r.m.Stats.Cleared != 3 {
		t.Fatalf("%+v", x)
	}
	if d := r.sent(MsgClearDone); d.ID != c.ID {
		t.Fatalf("%+v", d)
	}
}

// R7: what was written since the flush began keeps its bit, on both nodes.
func TestCheckpointKeepsWhatWasWrittenSince(t *testing.T) {
	r, n := checkpointed(t)
	w := r.submit(r.op(scsi.OpWrite, 2*region, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	c := r.sent(MsgClear)
	if keep, err := decodeRegions(c.Meta, 64); err != nil || !slices.Equal(keep.List(), []uint32{2}) {
		t.Fatalf("%v %v", keep.List(), err)
	}
	r.submit(r.op(scsi.OpWrite, 3*region, 512)) // after the partner was notified
	r.recv(&Msg{Type: MsgClearAck, ID: c.ID, LUN: lun1, Aux: 4})
	r.saveState()
	r.next(ActClear)
	if !slices.Equal(n.hot.List(), []uint32{2, 3}) {
		t.Fatalf("%v", n.hot.List())
	}
}

func TestCheckpointOfAnotherEpochClearsNothing(t *testing.T) {
	for name, f := range map[string]func(*rig){
		"the peer is excluded": func(r *rig) {
			r.m.get(r.now)
			r.got(record(6, A), "v6")
			r.saved()
		},
		"the owner changed": func(r *rig) { r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 9}}) },
	} {
		t.Run(name, func(t *testing.T) {
			r, n := checkpointed(t)
			r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
			c := r.sent(MsgClear)
			f(r)
			r.recv(&Msg{Type: MsgClearAck, ID: c.ID, LUN: lun1, Aux: 4})
			r.pass(20 * ms)
			if x, ok := r.poll(ActSaveState); ok {
				r.m.StateSaved(r.now, x.ID, true)
			}
			r.none(ActClear)
			if n.hot.Count() != 3 {
				t.Fatalf("%v", n.hot.List())
			}
		})
	}
}

func TestPartnerClears(t *testing.T) {
	r := paired(t, B, func(c *Config) { c.State.Check = Checkpoint{Peer: "store-a", Generation: 1, Count: [2]uint64{3, 7}} })
	n := r.cold()
	n.hot.AddAll(1, 5)
	// A write that is still being applied keeps its bit, whatever the owner says.
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4, LUN: lun1, Off: 4 * region, Len: 512, Data: make([]byte, 512)})
	r.next(ActApply)
	msg := &Msg{Type: MsgClear, ID: 77, Seq: 1, LUN: lun1, Aux: 4, Meta: Regions{1 << 2}.Encode()}
	r.recv(msg)
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 5, LUN: lun1, Off: 5 * region, Len: 512, Data: make([]byte, 512)})
	r.notSent(MsgClearAck)
	r.recv(msg) // again, before the number is durable
	r.notSent(MsgClearAck)
	if l := r.saveState(); l.Check.Count != [2]uint64{4, 7} {
		t.Fatalf("%+v", l)
	}
	r.sent(MsgClearAck)
	r.none(ActClear) // R6: not before the leader has the number too, and this node has that on record
	r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 6, LUN: lun1, Off: 3 * region, Len: 512, Data: make([]byte, 512)})
	r.recv(&Msg{Type: MsgClearDone, ID: 76, LUN: lun1}) // of another one
	r.none(ActSaveState)
	r.recv(&Msg{Type: MsgClearDone, ID: 77, LUN: lun1})
	r.none(ActClear)
	if l := r.saveState(); l.Check.Settled != 4 {
		t.Fatalf("%+v", l)
	}
	r.next(ActClear)
	if !slices.Equal(n.hot.List(), []uint32{2, 3, 4, 5}) {
		t.Fatalf("%v", n.hot.List())
	}
	r.recv(msg) // again, after a break of the link
	if a := r.sent(MsgClearAck); a.Result != scsi.OK {
		t.Fatalf("%+v", a)
	}
	r.none(ActClear)
	// The owner gave it up and tries another under the same number: a number belongs to one
	// checkpoint only (R6).
	r.recv(&Msg{Type: MsgClear, ID: 78, Seq: 1, LUN: lun1, Aux: 4})
	if a := r.sent(MsgClearAck); a.Result != scsi.Busy {
		t.Fatalf("%+v", a)
	}
	r.none(ActClear)
	for _, bad := range []*Msg{
		{Type: MsgClear, Seq: 1, LUN: lun1, Aux: 6},
		{Type: MsgClear, Seq: 0, LUN: lun1, Aux: 5},
		{Type: MsgClear, Seq: 1, LUN: LUNID{9}, Aux: 5},
		{Type: MsgClear, Seq: 1, LUN: lun1, Aux: 5, Meta: []byte("torn")},
	} {
		r.recv(bad)
		r.none(ActSaveState)
		r.notSent(MsgClearAck)
	}
}

// The partner says that the number belongs to a checkpoint that was given up: it is taken over,
// durably, and nothing cleared.
func TestNumberOfAGivenUpCheckpoint(t *testing.T) {
	r, n := checkpointed(t)
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	c := r.sent(MsgClear)
	r.recv(&Msg{Type: MsgClearAck, ID: c.ID, LUN: lun1, Aux: 4, Result: scsi.Busy})
	r.calm(3000 * ms)
	r.none(ActFlush) // no other before the number is durable
	if l := r.saveState(); l.Check.Count[A] != 4 {
		t.Fatalf("%+v", l)
	}
	r.none(ActClear)
	r.calm(2000 * ms)
	x := r.next(ActFlush)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	if c := r.sent(MsgClear); c.Aux != 5 || n.hot.Count() != 3 {
		t.Fatalf("%+v %v", c, n.hot.List())
	}
}

// What is not flushed is bounded: a busy owner flushes on both nodes, and takes no bits back.
func TestUnflushedBytesAreBounded(t *testing.T) {
	r := paired(t, A, func(c *Config) { c.State.Check = Checkpoint{Peer: "store-b", Generation: 1} })
	n := r.cold()
	n.hot.Add(0)
	for range 40 {
		n.dirty += 1 << 20
		r.calm(50 * ms)
	}
	x := r.next(ActFlush)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	r.calm(100 * ms)
	r.notSent(MsgClear)
	if n.dirty > 8<<20 || n.hot.Empty() {
		t.Fatalf("%d bytes, hot %v", n.dirty, n.hot.List())
	}
}

// A mirrored write that waits for its bit when its owner dies has not happened: the new lone node
// does not wait for it (R4).
func TestWritesThatHaveNotBegunAreDropped(t *testing.T) {
	r := paired(t, B)
	r.cold()
	for i := range uint64(2) { // the second waits for the range too
		r.recv(&Msg{Type: MsgMirror, Kind: scsi.OpWrite, Seq: 1, ID: 4 + i, LUN: lun1, Off: region, Len: 512, Data: make([]byte, 512)})
	}
	x := r.next(ActIntend)
	r.m.LinkDown(r.now, r.m.link.number, true)
	r.pass(2 * lease)
	r.won(r.cas(), "v6")
	r.saved()
	r.phase(Alone)
	if !r.m.Serving(r.now) || r.m.Stats.Cancelled != 2 {
		t.Fatalf("serving %v, %d dropped", r.m.Serving(r.now), r.m.Stats.Cancelled)
	}
	r.m.Intended(r.now, x.LUN, true)
	r.none(ActApply)
}

// R10: a transfer does not wait for the flush of a checkpoint, which it makes void. When the LUN is
// back, and the next checkpoint has begun, the end of that flush says nothing of what was written
// since.
func TestTransferDoesNotWaitForACheckpoint(t *testing.T) {
	r, n := checkpointed(t)
	first := r.m.ckpt.flush
	r.m.Quiesce(r.now, 1, []LUNID{lun1}, 1000*ms)
	if q := r.next(ActQuiet); q.Result != scsi.OK || !r.m.Quiesced(lun1) {
		t.Fatalf("%+v", q)
	}
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: B, Seq: 2}})
	r.m.Release(r.now, 1)
	r.pass(20 * ms)
	if r.m.ckpt.stage != ckIdle {
		t.Fatalf("a checkpoint of ownership 1 is at stage %d under ownership 2", r.m.ckpt.stage)
	}
	r.m.SetUnits(r.now, []UnitInfo{{ID: lun1, Owner: A, Seq: 3}})
	old := r.sent(MsgFlush)
	w := r.submit(r.op(scsi.OpWrite, 2*region, 512))
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
	for r.m.ckpt.stage == ckIdle {
		r.calm(2 * lease)
	}
	if r.m.ckpt.flush == first {
		t.Fatal("no checkpoint was begun")
	}
	r.recv(&Msg{Type: MsgFlushAck, ID: old.ID}) // its own half ended before
	r.notSent(MsgClear)
	x := r.next(ActFlush)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	r.notSent(MsgClear)
	r.recv(&Msg{Type: MsgFlushAck, ID: r.sent(MsgFlush).ID})
	if c := r.sent(MsgClear); c.Seq != 3 || n.hot.Empty() {
		t.Fatalf("%+v, hot %v", c, n.hot.List())
	}
}
