package pair

import (
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// scrubbing is the owner of a LUN that has begun to compare it.
func scrubbing(t *testing.T, repair bool) *rig {
	t.Helper()
	r := paired(t, A)
	if !r.m.Scrub(r.now, []CopyObject{{lun1, 2 << 20, 1}}, 0, repair) {
		t.Fatal("refused")
	}
	r.pull()
	return r
}

func TestScrubComparesUnderTheLock(t *testing.T) {
	r := scrubbing(t, false)
	r.copyRead()
	w := r.submit(r.op(scsi.OpWrite, 512, 512))
	r.notSent(MsgMirror) // a write that is half way would look like a difference
	req := r.sent(MsgCopySum)
	if req.Flags&FlagScrub == 0 {
		t.Fatalf("%+v", req)
	}
	r.recv(&Msg{Type: MsgCopyNeed, ID: req.ID})
	r.mirrorAck(r.sent(MsgMirror), scsi.OK)
	r.stored(scsi.OK)
	r.ended(w, scsi.OK)
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID, Aux: 1})
	r.notSent(MsgCopyData) // only reported
	v := r.m.View(r.now).Scrub
	if v.Active || v.Done != 2<<20 || v.Mismatched != 1 || v.Repaired != 0 || v.Skipped != 0 || v.Finished == 0 {
		t.Fatalf("%+v", v)
	}
	if s := strings.Join(r.texts, "\n"); !strings.Contains(s, "differ at 1048576+1048576: the copy on node b differs from the one that node a serves") {
		t.Fatal(s)
	}
}

func TestScrubRepairsFromTheOwner(t *testing.T) {
	r := scrubbing(t, true)
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID, Result: scsi.ReadError}) // cannot be read: as good as different
	d := r.sent(MsgCopyData)
	if d.Flags&FlagScrub == 0 || len(d.Data) != 1<<20 {
		t.Fatalf("%+v", d)
	}
	r.recv(&Msg{Type: MsgCopyAck, ID: d.ID})
	if v := r.m.View(r.now).Scrub; v.Repaired != 1 || v.Mismatched != 1 {
		t.Fatalf("%+v", v)
	}
}

func TestScrubEndsWithThePair(t *testing.T) {
	r := scrubbing(t, false)
	r.copyRead()
	r.m.LinkDown(r.now, r.m.link.number, false)
	if len(r.m.ops) != 0 || r.m.View(r.now).Scrub.Skipped != 1 {
		t.Fatalf("%d wait, %+v", len(r.m.ops), r.m.View(r.now).Scrub)
	}
	r.m.get(r.now)
	r.got(record(6, A), "v6")
	r.saved()
	if v := r.m.View(r.now).Scrub; v.Active || v.Reason == "" {
		t.Fatalf("%+v", v)
	}
}

// A range of a snapshot that has to wait continues as well: no table of units names it.
func TestScrubOfASnapshotWaitsToo(t *testing.T) {
	r := paired(t, A)
	r.beat()
	lease := r.m.lease.until
	var b *Msg
	for b == nil {
		r.pass(10 * ms)
		b = r.sentMaybe(MsgHeartbeat)
	}
	r.now = lease // the process was stopped: nothing is served before the peer has been heard
	if r.m.Serving(r.now) {
		t.Fatal("serves")
	}
	if !r.m.Scrub(r.now, []CopyObject{{LUNID{9}, 1 << 20, 1}}, 0, false) {
		t.Fatal("refused")
	}
	r.pull()
	r.none(ActCopyRead)
	r.recv(&Msg{Type: MsgHeartbeatAck, ID: b.ID, Aux: b.Aux})
	r.copyRead()
	r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
	if v := r.m.View(r.now).Scrub; v.Active || v.Skipped != 0 || v.Done != 1<<20 {
		t.Fatalf("%+v", v)
	}
}

func TestProgressText(t *testing.T) {
	for want, got := range map[string]string{
		"25% of 4194304 bytes, 1 MiB/s, 3s left": progress(int64(time.Second), 0, 1<<20, 4<<20),
		"0 of 5 bytes":                           progress(5, 5, 0, 5),
		"100% of 10 bytes, 0 MiB/s, 0s left":     progress(int64(time.Hour), 0, 10, 10),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestScrubKeepsToItsRate(t *testing.T) {
	r := paired(t, A)
	r.m.Scrub(r.now, []CopyObject{{lun1, 64 << 20, 1}}, 8<<20, false)
	n := 0
	for end := r.now + 2000*ms; r.now < end; {
		r.calm(50 * ms)
		for x, ok := r.poll(ActCopyRead); ok; x, ok = r.poll(ActCopyRead) {
			x.Op.Sum = []byte("sum")
			r.m.StoreDone(r.now, x.Op, scsi.OK)
			r.recv(&Msg{Type: MsgCopyNeed, ID: r.sent(MsgCopySum).ID})
			n++
		}
	}
	if n < 12 || n > 26 { // 16, and what had been saved up
		t.Fatalf("%d ranges of 1 MiB in 2 s", n)
	}
}

// The partner compares, and writes what the owner has with the region's bit before it (R7).
func TestPartnerOfAScrub(t *testing.T) {
	r := paired(t, B)
	r.cold()
	r.recv(&Msg{Type: MsgCopySum, Flags: FlagScrub, Seq: 1, ID: 5, LUN: lun1, Len: 512})
	x := r.next(ActCompareSum)
	r.m.SumDone(r.now, r.m.link.number, x.Msg, true, scsi.OK)
	if a := r.sent(MsgCopyNeed); a.Aux != 1 {
		t.Fatalf("%+v", a)
	}
	r.recv(&Msg{Type: MsgCopyData, Flags: FlagScrub, Seq: 1, ID: 5, LUN: lun1, Len: 512, Data: make([]byte, 512)})
	r.none(ActApply)
	r.intended()
	x = r.next(ActApply)
	r.m.Applied(r.now, r.m.link.number, x.Msg, scsi.OK)
	r.sent(MsgCopyAck)
	// Not what another owner sends.
	r.recv(&Msg{Type: MsgCopySum, Flags: FlagScrub, Seq: 0, ID: 6, LUN: lun1, Len: 512})
	if a := r.sent(MsgCopyNeed); a.Result != scsi.Unavailable {
		t.Fatalf("%+v", a)
	}
}
