package pair

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// tally checks that the shares of a scrub that has ended add up to its total.
func tally(t *testing.T, r *rig, total, done uint64, skips map[Skip]SkipCount) {
	t.Helper()
	v := r.m.View(r.now).Scrub
	var sum SkipCount
	for why, x := range v.Skips {
		if x != skips[Skip(why)] {
			t.Errorf("%v: %+v, want %+v", Skip(why), x, skips[Skip(why)])
		}
		sum.Ranges, sum.Bytes = sum.Ranges+x.Ranges, sum.Bytes+x.Bytes
	}
	if v.Active || v.Total != total || v.Done != done || v.Done+v.SkippedBytes != v.Total || sum.Bytes != v.SkippedBytes || sum.Ranges != v.Skipped {
		t.Errorf("%+v", v)
	}
}

// compare has one range compared.
func (r *rig) compare() {
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
}

func TestScrubSkipsTheRestOfALUNThatMoved(t *testing.T) {
	r := paired(t, A)
	r.m.Scrub(r.now, []CopyObject{{lun1, 8<<20 + 512, 1}, {LUNID{9}, 1 << 20, 1}}, 1<<20, false)
	r.pull()
	r.compare()
	r.m.units[lun1].owner = B
	for r.m.View(r.now).Scrub.Active {
		r.calm(50 * ms)
		if x, ok := r.poll(ActCopyRead); ok {
			if x.Op.LUN == lun1 && x.Op.Cmd.Off > 2<<20 {
				t.Fatal("goes on with what has moved")
			}
			x.Op.Sum = []byte("sum")
			r.m.StoreDone(r.now, x.Op, scsi.OK)
			r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
		}
	}
	v := r.m.View(r.now).Scrub
	moved := v.Skips[SkipMoved]
	if moved.Ranges < 6 || v.Done+moved.Bytes != v.Total || v.Done < 2<<20 {
		t.Fatalf("%+v", v)
	}
	tally(t, r, 9<<20+512, v.Done, map[Skip]SkipCount{SkipMoved: moved})
}

func TestScrubSaysWhyItSkips(t *testing.T) {
	one := SkipCount{Ranges: 1, Bytes: 1 << 20}
	for want, x := range map[Skip]func(r *rig){
		SkipDeleted: func(r *rig) {
			x := r.next(ActCopyRead)
			r.m.StoreDone(r.now, x.Op, scsi.Unavailable)
		},
		SkipRefused: func(r *rig) {
			r.copyRead()
			r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID, Result: scsi.Unavailable})
		},
		SkipUnrepaired: func(r *rig) {
			r.copyRead()
			r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID, Aux: 1})
			r.recv(&Msg{Type: MsgCopyAck, ID: r.sent(MsgCopyData).ID, Result: scsi.NoSpace})
		},
		SkipUnreadable: func(r *rig) {
			x := r.next(ActCopyRead)
			r.m.StoreDone(r.now, x.Op, scsi.ReadError)
		},
	} {
		r := paired(t, A)
		if !r.m.Scrub(r.now, []CopyObject{{lun1, 1 << 20, 1}}, 0, true) {
			t.Fatal("refused")
		}
		r.pull()
		x(r)
		tally(t, r, 1<<20, 0, map[Skip]SkipCount{want: one})
	}
}

// What has not begun when the pair comes apart is skipped as well, and what ends later is not
// counted again.
func TestScrubThatStopsAddsUp(t *testing.T) {
	r := paired(t, A)
	r.m.Scrub(r.now, []CopyObject{{lun1, 5 << 20, 1}, {LUNID{9}, 3 << 20, 1}}, 0, false)
	r.pull()
	r.compare()
	r.pull()
	x := r.next(ActCopyRead) // in the store when it stops
	r.m.LinkDown(r.now, r.m.link.number, false)
	r.m.get(r.now)
	r.got(record(6, A), "v6")
	r.saved()
	want := map[Skip]SkipCount{SkipApart: {Ranges: 7, Bytes: 7 << 20}}
	tally(t, r, 8<<20, 1<<20, want)
	r.m.StoreDone(r.now, x.Op, scsi.OK)
	tally(t, r, 8<<20, 1<<20, want)
}

func TestScrubFindingsAreNumbered(t *testing.T) {
	r := scrubbing(t, true)
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID, Aux: 1})
	r.recv(&Msg{Type: MsgCopyAck, ID: r.sent(MsgCopyData).ID})
	f := r.m.ScrubFindings()
	if len(f) != 2 || f[0].N != 1 || f[0].Repaired || f[1].N != 2 || !f[1].Repaired || f[1].LUN != lun1 || f[1].Len != 1<<20 {
		t.Fatalf("%+v", f)
	}
	s := &r.m.scrub
	o := &Op{Cmd: &scsi.Op{Off: 512, Len: 512}, LUN: lun1}
	for range 2 * maxFindings {
		r.m.scrubFound(r.now, o, false)
	}
	if f := r.m.ScrubFindings(); len(f) != maxFindings || f[maxFindings-1].N != s.findings {
		t.Fatalf("%d kept, the last is %+v", len(f), f[len(f)-1])
	}
}

// The time that is left follows the rate of the last minute: hosts that come or go change it, and a
// scrub that makes no progress says so.
func TestTimeLeftOfAScrub(t *testing.T) {
	const second = int64(time.Second)
	s := &scrubState{view: ScrubView{Active: true, Total: 1000 << 20}}
	s.mark(0)
	at := int64(0)
	run := func(seconds int, rate uint64) {
		for range seconds {
			at += second
			s.view.Done += rate
			s.mark(at)
		}
	}
	run(100, 1<<20)
	v := s.look(at)
	if left, ok := v.Left(); !ok || left.Round(time.Second) != 900*time.Second {
		t.Fatalf("%v of %+v", left, v)
	}
	run(70, 4<<20)
	v = s.look(at)
	if left, ok := v.Left(); !ok || left.Round(time.Second) != 155*time.Second {
		t.Fatalf("%v of %+v", left, v)
	}
	v = s.look(at + 120*second)
	if _, ok := v.Left(); ok {
		t.Fatalf("it stands still: %+v", v)
	}
	if len(s.marks) > 14 {
		t.Fatalf("%d marks are kept", len(s.marks))
	}
}
