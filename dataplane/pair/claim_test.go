package pair

import (
	"errors"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// rebooted is a lone member whose operating system restarted; its last life had flushed everything
// up to an epoch.
func rebooted(t *testing.T, flushed uint64, state State) *rig {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty = 6, false
	cfg.Incarnation = inc("another boot", 9)
	cfg.State = state
	cfg.State.Flushed = flushed
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	return r
}

// R8: the only member lost power before it had flushed what was written while there were two: hosts
// get the error.
func TestLostDataIsMarkedBeforeService(t *testing.T) {
	r := rebooted(t, 5, State{})
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	if l := r.saveState(); !l.Lost {
		t.Fatalf("%+v", l)
	}
	r.won(r.cas(), "v7")
	r.saved()
	r.phase(Alone)
	if x := r.next(ActMarkLost); len(x.Units) != 1 || x.Units[0] != lun1 {
		t.Fatalf("%+v", x)
	}
	o := r.submit(r.op(scsi.OpRead, 0, 512))
	r.none(ActStore)              // no host is served before the loss is reported
	r.pass(int64(r.m.replaces())) // its former life may be on another machine (R2b)
	r.none(ActStore)
	r.got(r.m.rec, "v7") // asked during the wait: not an answer that ends it
	r.pass(50 * ms)
	r.none(ActStore)
	r.got(r.m.rec, "v7")
	if l := r.saveState(); l.Replaces || !l.Lost {
		t.Fatalf("%+v", l)
	}
	r.m.LostMarked(r.now)
	if l := r.saveState(); l.Lost {
		t.Fatalf("%+v", l)
	}
	r.ended(o, scsi.Busy) // held for so long
	o = r.submit(r.op(scsi.OpRead, 0, 512))
	r.stored(scsi.OK)
	r.ended(o, scsi.OK)
}

func TestNothingLostWhenAllWasFlushed(t *testing.T) {
	r := rebooted(t, 6, State{})
	r.won(r.claim(), "v7")
	r.saved()
	r.none(ActMarkLost)
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	if l := r.saveState(); l.Flushed != 7 {
		t.Fatalf("%+v", l)
	}
}

// The process died after it had claimed and before the loss was reported to hosts.
func TestLostDataIsNotForgottenByARestart(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty, cfg.State.Lost = 7, false, true
	cfg.Incarnation.Nonce = 50
	r := newRig(t, cfg)
	r.got(record(7, A), "v7")
	r.won(r.claim(), "v8")
	r.saved()
	r.next(ActMarkLost)
}

// outsider is a node whose peer is the only member, and away.
func excluded(t *testing.T) *rig {
	t.Helper()
	cfg := config(B)
	cfg.DurableEpoch, cfg.Empty = 5, false
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	r.saved()
	r.phase(Outside)
	return r
}

func TestForceTakesOver(t *testing.T) {
	r := excluded(t)
	if err := r.m.Force(r.now, 5); !errors.Is(err, ErrForceEpoch) {
		t.Fatal(err)
	}
	if e := r.m.View(r.now).ForceEpoch; e != 6 {
		t.Fatal(e)
	}
	if err := r.m.Force(r.now, 6); err != nil {
		t.Fatal(err)
	}
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	if l := r.saveState(); !l.Lost || !l.LostAll {
		t.Fatalf("%+v", l)
	}
	r.got(record(6, A), "v66") // its version only
	x := r.cas()
	if x.Version != "v66" || x.Record.Epoch != 7 || x.Record.Generation != 2 || len(x.Record.Members) != 1 || x.Record.Chair() != B {
		t.Fatalf("%+v", x)
	}
	r.won(x, "v7")
	r.saved()
	r.phase(Alone)
	if x := r.next(ActMarkLost); len(x.Units) != 1 {
		t.Fatalf("%+v", x)
	}
	r.next(ActDropHosts)
}

func TestForceOverALostRecord(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty, cfg.State.Check.Generation = 9, false, 4
	r := newRig(t, cfg)
	r.arbiter(Missing)
	r.phase(Fenced)
	if err := r.m.Force(r.now, r.m.View(r.now).ForceEpoch); err != nil {
		t.Fatal(err)
	}
	r.next(ActFlushAll)
	r.m.SelfFlushed(r.now, true)
	r.saveState()
	r.arbiter(Missing)
	x := r.cas()
	if x.Version != "" || x.Record.Epoch != 10 || x.Record.Generation != 5 {
		t.Fatalf("%+v", x.Record)
	}
	r.won(x, "v1")
	r.saved()
	r.phase(Alone)
}

func TestForceIsRefused(t *testing.T) {
	r := excluded(t)
	r.linkUp()
	r.sync(r.peerInfo(Alone))
	if err := r.m.Force(r.now, 6); !errors.Is(err, ErrForceAlive) {
		t.Fatal(err)
	}
	for _, r := range []*rig{paired(t, A), alone(t, A)} {
		if err := r.m.Force(r.now, r.m.rec.Epoch); !errors.Is(err, ErrForceState) {
			t.Fatal(err)
		}
	}
	r = paired(t, A)
	r.m.StoreFailed(r.now, "gone")
	if err := r.m.Force(r.now, r.m.rec.Epoch); !errors.Is(err, ErrForceState) {
		t.Fatal(err)
	}
}

// R2: a record of the epoch that this node acted under, with other content, was written again after
// a rollback.
func TestForkIsKnownAfterARestart(t *testing.T) {
	cfg := config(A)
	known := record(6, A)
	cfg.DurableEpoch, cfg.Empty, cfg.Known = 6, false, &known
	r := newRig(t, cfg)
	r.got(record(6, B), "v6")
	r.phase(Fenced)
	r.reason("written again")
}

// The node lost power between its exclude and its service: the peer, excluded for nothing, has what
// this one may have lost.
func TestRecordThatWasNeverActedOnIsYielded(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*SyncInfo)
		yields bool
	}{
		"the peer lives":      {func(*SyncInfo) {}, true},
		"it restarted":        {func(in *SyncInfo) { in.Incarnation.Nonce = 77 }, true},
		"it rebooted as well": {func(in *SyncInfo) { in.Incarnation = inc("other", 77) }, false},
		"its disk failed":     {func(in *SyncInfo) { in.Untrusted = true }, false},
		"its disk is another": {func(in *SyncInfo) { in.Store = "new" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(A)
			known := record(5, A, B)
			cfg.DurableEpoch, cfg.Empty, cfg.Acted = 5, false, &known
			cfg.Incarnation = inc("another boot", 9)
			r := newRig(t, cfg)
			r.got(record(6, A), "v6")
			if x := r.next(ActSaveEpoch); x.Durable {
				t.Fatal("it is not acted on: the record names another process")
			}
			r.m.EpochSaved(r.now, 6, true)
			r.phase(Outside)
			r.pass(10 * lease)
			r.none(ActArbiterCAS)
			r.none(ActFlushAll)
			r.reason("waiting for the peer")
			r.linkUp()
			in := r.peerInfo(Outside)
			c.change(&in)
			r.sync(in)
			if !c.yields {
				x := r.claim()
				if x.Record.Chair() != A {
					t.Fatalf("%+v", x.Record)
				}
				return
			}
			x := r.cas()
			if x.Record.Epoch != 7 || len(x.Record.Members) != 1 || x.Record.Members[0] != (Member{B, "store-b", in.Incarnation}) {
				t.Fatalf("%+v", x.Record)
			}
			r.won(x, "v7")
			r.saved()
			r.phase(Outside)
		})
	}
}

// The lone member is alive after all and begins to copy: a force that has not asked for its record
// yet is given up, and one that has asked is settled first.
func TestForceIsGivenUpForACopy(t *testing.T) {
	forcing := func(t *testing.T) *rig {
		cfg := config(B)
		cfg.DurableEpoch, cfg.Empty = 6, false
		r := newRig(t, cfg)
		r.got(record(6, A), "v6")
		if err := r.m.Force(r.now, 6); err != nil {
			t.Fatal(err)
		}
		r.next(ActFlushAll)
		r.m.SelfFlushed(r.now, true)
		r.saveState()
		return r
	}
	t.Run("before it has asked", func(t *testing.T) {
		r := forcing(t)
		r.linkUp()
		r.sync(r.peerInfo(Alone))
		r.recv(&Msg{Type: MsgMetaInstall, Aux: 1})
		r.next(ActInstall)
		r.got(record(6, A), "v6")
		r.pass(4 * lease)
		r.none(ActArbiterCAS)
	})
	t.Run("after it has asked", func(t *testing.T) {
		r := forcing(t)
		r.got(record(6, A), "v6")
		x := r.cas()
		r.linkUp()
		r.sync(r.peerInfo(Alone))
		r.recv(&Msg{Type: MsgMetaInstall, Aux: 1})
		r.pass(100 * ms)
		r.none(ActInstall)
		r.won(x, "v7")
		r.saved()
		r.phase(Alone)
	})
}
