package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// look passes the time until the lone member looks at the record.
func (r *rig) look() {
	r.t.Helper()
	r.pass(int64(r.m.cfg.RecordEvery) + 20*ms)
	r.pull()
	for _, x := range r.queue {
		if x.Kind == ActArbiterGet {
			return
		}
	}
	r.t.Fatal("a lone member does not look at the record")
}

// looks answers the lone member if it looks at the record: nothing has changed.
func (r *rig) looks() {
	if _, ok := r.poll(ActArbiterGet); ok {
		r.m.ArbiterDone(r.now, Got, &r.m.rec, r.m.version, "")
	}
}

func forced(epoch, generation uint64, members ...Node) Record {
	rec := record(epoch, members...)
	rec.Generation = generation
	return rec
}

// Whatever a lone member finds in place of its own record ends its service, hosts included (R2).
func TestLoneMemberFindsAnotherRecord(t *testing.T) {
	another := record(7, A)
	another.Members[0].Incarnation.Nonce = 99
	for name, c := range map[string]struct {
		rec  *Record
		says string
	}{
		"the other node was forced":            {ptr(forced(7, 2, B)), "node b was forced"},
		"the other node went on":               {ptr(record(7, B)), "only member"},
		"the other node has come far":          {ptr(record(12, B)), "only member"},
		"another process of this node":         {&another, "only member"},
		"another record of the same epoch":     {ptr(record(6, B)), "another record of epoch 6"},
		"an older record: it was rolled back":  {ptr(record(5, A, B)), "rolled back"},
		"no record: the arbiter was emptied":   {nil, "record was lost"},
		"both, and this node had not asked it": {ptr(forced(7, 2, B, A)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := alone(t, A)
			started := r.submit(r.op(scsi.OpRead, 0, 512))
			r.look()
			if c.rec == nil {
				r.arbiter(Missing)
			} else {
				r.got(*c.rec, "v9")
			}
			if c.says == "" {
				r.phase(Alone) // it names this process: what it means is decided once it is durable
				r.saved()
				r.phase(Paired)
				return
			}
			r.phase(Fenced)
			r.reason(c.says)
			r.m.StoreDone(r.now, r.next(ActStore).Op, scsi.OK)
			r.ended(started, scsi.Unavailable)
			r.ended(r.submit(r.op(scsi.OpRead, 0, 512)), scsi.Unavailable)
			r.pass(10 * lease)
			r.none(ActArbiterCAS)
			if c.rec != nil && c.rec.Epoch > 6 {
				r.next(ActDropHosts)
			}
			if r.m.View(r.now).ForceEpoch == 0 {
				t.Fatal("an administrator cannot name this node")
			}
		})
	}
}

// Its own record, or no answer, changes nothing.
func TestLoneMemberGoesOn(t *testing.T) {
	r := alone(t, A)
	r.look()
	r.got(record(6, A), "v6")
	r.look()
	r.arbiter(Unknown)
	r.pass(200 * ms)
	r.got(record(6, A), "v6")
	r.phase(Alone)
	if !r.m.Serving(r.now) || r.m.reason != "" {
		t.Fatalf("serving %v, %q", r.m.Serving(r.now), r.m.reason)
	}
	r.m.resync.stage = rsAdmit // it asks without a request, one at a time
	r.m.resync.asked, r.m.resync.admitAt, r.m.arb.busy = true, r.now, true
	r.pass(5 * lease)
	r.none(ActArbiterGet)
}

// A lone member that has asked for {a,b} and does not know what became of that may find that the
// other node was a member, and has excluded it: nothing was given up, for everything that it had
// acknowledged was on both (R1c).
func TestLoneMemberThatHasAskedIsExcluded(t *testing.T) {
	for generation, want := range map[uint64]Phase{1: Outside, 2: Fenced} {
		r := alone(t, A)
		r.m.resync.stage, r.m.resync.asked = rsAdmit, true
		r.m.get(r.now)
		r.got(forced(8, generation, B), "v8")
		if want == Outside {
			r.saved()
		}
		r.phase(want)
	}
}

// One that is named with force serves no host before the other has looked.
func TestForcedNodeWaits(t *testing.T) {
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty = 6, false
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.phase(Outside)
	if err := r.m.Force(r.now, 6); err != nil {
		t.Fatal(err)
	}
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	r.saveState()
	r.got(record(6, A), "v6")
	x := r.cas()
	r.won(x, "v7")
	r.saved()
	r.phase(Alone)
	began := r.now
	for !r.m.Serving(r.now) {
		r.pass(10 * ms)
		if _, ok := r.poll(ActArbiterGet); ok {
			r.m.ArbiterDone(r.now, Got, x.Record, "v7", "")
		}
		if r.now-began > 10_000*ms {
			t.Fatal("never serves")
		}
	}
	if waited, least := r.now-began, int64(r.m.cfg.RecordEvery+r.m.cfg.ArbiterMax); waited < least || waited > least+200*ms {
		t.Fatalf("it waits for %d ms", waited/ms)
	}
}
