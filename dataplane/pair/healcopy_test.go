package pair

import (
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// healScrub is the owner of a LUN of one range that has begun to compare it.
func healScrub(t *testing.T) *rig {
	t.Helper()
	r := keepsSums(t, A)
	if !r.m.Scrub(r.now, []CopyObject{{lun1, 1 << 20, 1}}, 0, false) {
		t.Fatal("refused")
	}
	r.pull()
	return r
}

// copyFinds answers a read of a copy: these blocks of it do not match.
func (r *rig) copyFinds(bad ...scsi.Range) *Op {
	r.t.Helper()
	o := r.next(ActCopyRead).Op
	o.Buf, o.Sum, o.Bad = make([]byte, o.Cmd.Len), []byte("sum"), bad
	r.m.StoreDone(r.now, o, scsi.OK)
	return o
}

func TestScrubHealsTheOwner(t *testing.T) {
	r := healScrub(t)
	r.copyFinds(blocks(4, 1))
	r.notSent(MsgCopySum)
	r.fetched(r.asks(blocks(4, 1)), 1)
	r.done(ActHeal, scsi.OK)
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
	if v := r.m.View(r.now).Scrub; v.Active || v.Done != 1<<20 || v.Mismatched != 0 || r.m.Stats.Healed != 1 {
		t.Fatalf("%+v", v)
	}
}

// What the partner has is known to be wrong, so it is written also by a scrub that only reports.
func TestScrubRepairsADamagedPartner(t *testing.T) {
	r := healScrub(t)
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID, Result: scsi.Damaged})
	d := r.sent(MsgCopyData)
	if d.Flags&FlagScrub == 0 || len(d.Meta) != 0 || len(d.Data) != 1<<20 {
		t.Fatalf("%+v", d)
	}
	r.recv(&Msg{Type: MsgCopyAck, ID: d.ID})
	if v := r.m.View(r.now).Scrub; v.Mismatched != 1 || v.Repaired != 1 || v.Skipped != 0 {
		t.Fatalf("%+v", v)
	}
}

func TestScrubSkipsWhatIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*rig)
		want Skip
	}{
		"at both nodes": {func(r *rig) {
			r.refused(r.asks(blocks(4, 1)), scsi.Damaged)
			r.accepts(scsi.Damaged, blocks(4, 1))
			r.copyFinds(blocks(4, 1))
		}, SkipUnreadable},
		"no space": {func(r *rig) {
			r.fetched(r.asks(blocks(4, 1)), 1)
			r.done(ActHeal, scsi.NoSpace)
		}, SkipUnrepaired},
		"deleted": {func(r *rig) {
			r.fetched(r.asks(blocks(4, 1)), 1)
			r.done(ActHeal, scsi.Unavailable)
			r.done(ActCopyRead, scsi.Unavailable)
		}, SkipDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			r := healScrub(t)
			r.copyFinds(blocks(4, 1))
			c.do(r)
			r.notSent(MsgCopySum)
			v := r.m.View(r.now).Scrub
			if v.Active || v.Skipped != 1 || v.Skips[c.want].Ranges != 1 || r.m.leave.why != "" {
				t.Fatalf("%+v", v)
			}
			if lost := r.m.Stats.LostBlocks == 1; lost != (c.want == SkipUnreadable) {
				t.Fatal(r.m.Stats.LostBlocks)
			}
		})
	}
}

// The link breaks: the range of a scrub is skipped, and its lock is free.
func TestScrubThatAsksEndsWithTheLink(t *testing.T) {
	r := healScrub(t)
	r.copyFinds(blocks(4, 1))
	r.asks(blocks(4, 1))
	r.m.LinkDown(r.now, r.m.link.number, false)
	if len(r.m.ops) != 0 || r.m.units[lun1].locks.Len() != 0 || r.m.View(r.now).Scrub.Skipped != 1 {
		t.Fatalf("%d wait, %+v", len(r.m.ops), r.m.View(r.now).Scrub)
	}
}

// healJoin is a source with one range to copy, and a joiner.
func healJoin(t *testing.T, sums bool) *rig {
	t.Helper()
	r := alone(t, A)
	r.linkUp()
	in := r.joiner()
	in.Sums = sums
	r.sync(in)
	r.next(ActExport)
	r.m.SendMeta(r.now, 0, []byte("all"), nil, []CopyObject{{lun1, copyChunk, 1}})
	r.recv(&Msg{Type: MsgMetaAck})
	return r
}

// joinerHasNone answers what a source asks for, block by block.
func (r *rig) joinerHasNone(list ...int64) {
	r.t.Helper()
	for _, b := range list {
		r.refused(r.asks(blocks(b, 1)), scsi.ReadError)
	}
}

// A joiner may have older content: what it has is written at the source only if it is what the
// checksums there say.
func TestResyncHealsTheSourceFromTheJoiner(t *testing.T) {
	r := healJoin(t, true)
	o := r.copyFinds(blocks(9, 2))
	req := r.asks(blocks(9, 1))
	if req.Flags != FlagVerify {
		t.Errorf("flags %b", req.Flags)
	}
	r.fetched(req, 1)
	if r.done(ActHeal, scsi.OK); !o.Verify || r.m.Stats.HealedFromJoiner != 1 {
		t.Fatalf("verify %v, %+v", o.Verify, r.m.Stats)
	}
	r.fetched(r.asks(blocks(10, 1)), 1)
	r.done(ActHeal, scsi.Damaged)
	r.accepts(scsi.Damaged, blocks(10, 1))
	r.copyFinds(blocks(10, 1))
	if bad, err := r.sent(MsgCopyData).DecodeRanges(); err != nil || !slices.Equal(bad, []scsi.Range{blocks(10, 1)}) {
		t.Fatalf("%+v %v", bad, err)
	}
	// All of it is healed: it is compared like any other range.
	r = healJoin(t, true)
	r.copyFinds(blocks(9, 1))
	r.fetched(r.asks(blocks(9, 1)), 1)
	r.done(ActHeal, scsi.OK)
	r.copyRead()
	r.sent(MsgCopySum)
	// Without space the only good copy stays where it is, and the resync begins again later.
	r = healJoin(t, true)
	r.copyFinds(blocks(9, 1))
	r.fetched(r.asks(blocks(9, 1)), 1)
	r.done(ActHeal, scsi.NoSpace)
	r.notSent(MsgCopyData)
	if x := r.next(ActDropLink); !strings.Contains(x.Text, "no space") || r.m.units[lun1].locks.Len() != 0 {
		t.Fatal(x.Text)
	}
	// The link breaks while the joiner is asked.
	r = healJoin(t, true)
	r.copyFinds(blocks(9, 1))
	r.asks(blocks(9, 1))
	r.m.LinkDown(r.now, r.m.link.number, false)
	if len(r.m.ops) != 0 || r.m.units[lun1].locks.Len() != 0 {
		t.Fatalf("%d wait", len(r.m.ops))
	}
}

// A lone source has lost blocks: what lost its checksum only is taken, the others are copied as
// bad, and the resync ends.
func TestResyncFromADamagedSource(t *testing.T) {
	r := healJoin(t, true)
	r.copyFinds(blocks(4, 1), blocks(9, 2))
	r.joinerHasNone(4, 9, 10)
	r.accepts(scsi.OK, blocks(4, 1), blocks(9, 2))
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
	r.next(ActResyncList)

	r = healJoin(t, true)
	w := r.op(scsi.OpWrite, 4*512, 512)
	r.copyFinds(blocks(4, 1), blocks(9, 2))
	r.joinerHasNone(4, 9, 10)
	r.accepts(scsi.Damaged, blocks(4, 1), blocks(9, 2))
	r.submit(w)
	r.copyFinds(blocks(9, 1))
	r.tells(true, blocks(9, 1))
	r.notSent(MsgCopySum) // it is sent without a comparison: the joiner has to learn what is bad
	d := r.sent(MsgCopyData)
	if bad, err := d.DecodeRanges(); err != nil || !slices.Equal(bad, []scsi.Range{blocks(9, 1)}) || d.Off != 0 || d.Len != copyChunk {
		t.Fatalf("%+v %v", bad, err)
	}
	r.notSent(MsgMirror) // a write that makes it good again comes after
	r.recv(&Msg{Type: MsgCopyAck, ID: d.ID})
	r.sent(MsgMirror)
	r.next(ActResyncList)
	if r.m.resync.stage == rsIdle {
		t.Fatal("stopped")
	}
}

func TestResyncOfLostBlocksToAJoinerWithoutSums(t *testing.T) {
	r := healJoin(t, false)
	r.copyFinds(blocks(9, 1))
	r.accepts(scsi.Damaged, blocks(9, 1))
	r.copyFinds(blocks(9, 1))
	r.notSent(MsgCopyData)
	if x := r.next(ActDropLink); !strings.Contains(x.Text, "the joiner keeps no checksums") {
		t.Fatal(x.Text)
	}
	if v := r.m.View(r.now).Resync; v.Active || len(r.m.ops) != 0 {
		t.Fatalf("%+v", v)
	}
	r.phase(Alone)
}

// The resync stops while a range is healed: it is not sent to anybody.
func TestResyncStopsWhileARangeIsAccepted(t *testing.T) {
	r := healJoin(t, true)
	r.copyFinds(blocks(9, 1))
	r.joinerHasNone(9)
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.accepts(scsi.OK, blocks(9, 1))
	r.copyRead()
	r.notSent(MsgCopySum)
	if r.m.units[lun1].locks.Len() != 0 {
		t.Fatal("the range stays locked")
	}
	// A disk that cannot be read stops it too, and says nothing of the blocks.
	r = healJoin(t, true)
	r.copyFinds(blocks(9, 1))
	r.joinerHasNone(9)
	r.done(ActAccept, scsi.ReadError)
	r.next(ActDropLink)
	if r.m.Stats.LostBlocks != 0 || r.m.View(r.now).Resync.Active {
		t.Fatalf("%+v", r.m.View(r.now).Resync)
	}
}

// R7: bits are taken back only after a flush that covers the checksums as well, on both nodes.
func TestCheckpointFlushesChecksums(t *testing.T) {
	r := paired(t, A, func(c *Config) { c.State.Check = Checkpoint{Peer: "store-b", Generation: 1} })
	r.cold().hot.Add(0)
	for _, flushOnly := range []bool{false, true} {
		r.m.ckptBegin(r.now, r.m.units[lun1], flushOnly)
		r.pull()
		x, m := r.next(ActFlush), r.sent(MsgFlush)
		if x.Durable == flushOnly || m.Flags&FlagSums != 0 == flushOnly {
			t.Errorf("flush only %v: here %v, at the peer %b", flushOnly, x.Durable, m.Flags)
		}
		if !flushOnly { // again over the next link
			r.m.relink(r.now)
			if m := r.sent(MsgFlush); m.Flags&FlagSums == 0 {
				t.Error("what is sent again does not ask for the checksums")
			}
		}
		r.m.StoreDone(r.now, x.Op, scsi.OK)
		r.recv(&Msg{Type: MsgFlushAck, ID: m.ID})
		r.m.ckptDrop()
	}
	r.submit(r.op(scsi.OpFlush, 0, 0))
	if x, m := r.next(ActFlush), r.sent(MsgFlush); x.Durable || m.Flags != 0 {
		t.Error("a host pays for the checksums")
	}
}
