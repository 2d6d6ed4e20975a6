package pair

import (
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

func (r *rig) over(part string) {
	r.t.Helper()
	if why := r.m.Over(r.now); part == "" && why != "" || !strings.Contains(why, part) || part != "" && why == "" {
		r.t.Fatalf("over: %q, want %q", why, part)
	}
	if v := r.m.View(r.now); v.Over != r.m.Over(r.now) {
		r.t.Fatalf("the view says %q", v.Over)
	}
}

// A member whose store failed is over once it is excluded: until then its hosts may be owed an
// answer.
func TestLeavingNodeIsOverOnceExcluded(t *testing.T) {
	r := paired(t, A)
	r.over("")
	r.m.StoreFailed(r.now, "fsync")
	r.pass(lease)
	r.over("")
	r.m.get(r.now)
	r.got(record(6, B), "v6")
	r.saved()
	r.phase(Outside)
	r.over("fsync")
}

// Nobody excludes it, because the arbiter is away or the peer is: it does not wait for ever.
func TestLeavingNodeIsOverAfterAWhile(t *testing.T) {
	r := paired(t, A)
	r.m.StoreFailed(r.now, "fsync")
	r.pass(5000*ms - 20*ms)
	r.over("")
	r.pass(40 * ms)
	r.over("fsync")
}

func TestJoinerWhoseStoreFailedIsOver(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty = 6, false
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.phase(Outside)
	r.over("")
	r.m.StoreFailed(r.now, "a copied write")
	r.over("a copied write")
}

func TestLoneMemberWhoseStoreFailedIsOver(t *testing.T) {
	r := alone(t, A)
	r.m.StoreFailed(r.now, "fsync")
	r.phase(Fenced)
	r.over("check the disk")
}

// A node whose record is lost stays: force needs its process. When the record is there again, it
// does not, unless it was alone and the record names the other node now: its next life would join,
// and a person has to decide on what only this store has (R2).
func TestLostRecordIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		as   func(*testing.T, Node) *rig
		back Record
		over string
	}{
		"alone, restored":                   {alone, record(6, A), "the record again"},
		"alone, the other node was forced":  {alone, record(7, B), ""},
		"a member, the other one was named": {func(t *testing.T, self Node) *rig { return paired(t, self) }, record(6, B), "the record again"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.as(t, A)
			durable := r.m.saved.epoch
			r.m.get(r.now)
			r.arbiter(Missing)
			r.phase(Fenced)
			r.over("")
			if r.m.forceEpoch() == 0 {
				t.Fatal("it cannot be forced")
			}
			fences := r.m.Stats.Fences
			for range 3 {
				r.pass(lookAgainEvery + 20*ms)
				r.arbiter(Missing)
				r.over("")
			}
			if r.m.Stats.Fences != fences {
				t.Error("each look counts as another fence")
			}
			r.pass(lookAgainEvery + 20*ms)
			r.got(c.back, "v7")
			if c.back.Epoch > durable {
				r.saved()
			}
			r.over(c.over)
			r.phase(Fenced)
			if r.m.Serving(r.now) {
				t.Error("it serves")
			}
		})
	}
}

// A node that cannot be forced and does not change without a person is over.
func TestFencedForAnotherReasonIsOver(t *testing.T) {
	r := paired(t, A)
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = 77
	r.sync(in)
	r.won(r.cas(), "v6")
	x := r.next(ActSaveEpoch)
	r.m.EpochSaved(r.now, x.Record.Epoch, false)
	r.phase(Fenced)
	r.over("cannot save the epoch")
	if r.m.forceEpoch() != 0 {
		t.Error("it can be forced")
	}
}

// joinerFails has a process of the joiner come and say that its store fails, in another life each
// time.
func (r *rig) joinerFails(nonce uint64, failed bool) {
	r.t.Helper()
	in := r.peerInfo(Outside)
	in.Incarnation.Nonce = nonce
	r.linkUp()
	r.sync(in)
	in.Leaving, in.LeaveReason, in.Failed = true, "the store failed", failed
	r.sync(in)
	r.m.LinkDown(r.now, r.m.link.number, true)
	r.pull()
	r.queue = nil
}

// A joiner whose store fails again and again is copied to ever less often; the lone member and its
// hosts are left in peace.
func TestFailingJoinerIsCopiedToLessOften(t *testing.T) {
	r := alone(t, A)
	wait := func() (d int64) {
		t.Helper()
		r.linkUp()
		for d = 0; d < 400_000*ms; d += 100 * ms {
			r.sync(r.peerInfo(Outside))
			r.pass(100 * ms)
			r.looks()
			if _, ok := r.poll(ActExport); ok {
				break
			}
		}
		r.m.LinkDown(r.now, r.m.link.number, true)
		r.pull()
		r.queue = nil
		return d
	}
	last := int64(0)
	for n := range 11 {
		r.joinerFails(uint64(100+n), true)
		d := wait()
		if n > 0 && n < 9 && d < 3*last/2 {
			t.Errorf("after failure %d it waits %d ms, after the one before %d ms", n+1, d/ms, last/ms)
		}
		last = d
	}
	if last < 290_000*ms || last > 310_000*ms {
		t.Errorf("it waits %d ms in the end, not five minutes", last/ms)
	}
	r.joinerFails(300, true)
	in := r.peerInfo(Outside)
	in.Store = "store-new"
	r.linkUp()
	r.sync(in)
	r.pass(lease)
	r.looks()
	r.pass(lease)
	if _, ok := r.poll(ActExport); !ok {
		t.Error("another disk has to wait")
	}
}

// The member that takes over remembers that its peer's store failed, for the disk may have refused
// the mark that makes the peer remember: it is given a full copy without a comparison (R12).
func TestFailedStoreIsDistrustedByItsPeer(t *testing.T) {
	for _, failed := range []bool{true, false} {
		r := alone(t, A)
		r.m.saved.state.Check = Checkpoint{Peer: "store-b", Generation: 1}
		in := r.peerInfo(Outside)
		in.Check = Checkpoint{Peer: "store-a", Generation: 1}
		r.m.rec.Generation = 1
		in.Leaving, in.LeaveReason, in.Failed = true, "why", failed
		r.linkUp()
		r.sync(in)
		r.m.LinkDown(r.now, r.m.link.number, true)
		in.Leaving, in.LeaveReason, in.Failed = false, "", false
		in.Incarnation.Nonce = 99
		r.linkUp()
		r.sync(in)
		r.pass(2 * lease)
		r.next(ActExport)
		r.m.SendMeta(r.now, 1, []byte("{}"), nil, nil)
		if full := r.m.Stats.FullResyncs == 1; full != failed || r.m.plan.blind != failed {
			t.Errorf("failed %v: full copy %v, without a comparison %v", failed, full, r.m.plan.blind)
		}
	}
}

// Meanwhile the lone member says why it does not copy, and no longer than that.
func TestLoneMemberSaysWhatItWaitsFor(t *testing.T) {
	r := alone(t, A)
	r.joinerFails(100, true)
	r.joinerFails(101, true)
	r.linkUp()
	r.sync(r.peerInfo(Outside))
	r.reason("failed 2 times")
	r.pass(3 * lease)
	r.sync(r.peerInfo(Outside))
	if strings.Contains(r.m.reason, "failed") {
		t.Errorf("reason %q stays", r.m.reason)
	}
}

// A store that fails while its node leaves for another reason is said to have failed.
func TestStoreThatFailsLate(t *testing.T) {
	r := paired(t, A)
	r.m.StepDown(r.now, "orderly stop")
	r.queue = nil
	o := r.op(scsi.OpWrite, 0, 512)
	r.submit(o)
	r.ended(o, scsi.Unavailable)
	r.m.StoreFailed(r.now, "fsync")
	if !r.m.leave.failed || r.m.leave.why != "orderly stop" {
		t.Errorf("failed %v, leaving %q", r.m.leave.failed, r.m.leave.why)
	}
}
