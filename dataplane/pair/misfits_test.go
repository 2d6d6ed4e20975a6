package pair

import (
	"encoding/json"
	"fmt"
	"testing"
)

// A store that lacks files says so to its peer as one that is not trusted does, for releases that
// know nothing else; whether all of it is to be copied is said beside that.
func TestMisfitsAreTold(t *testing.T) {
	for _, c := range []struct{ distrust, misfits string }{{"", ""}, {"", "a file"}, {"fsync failed", ""}, {"fsync failed", "a file"}} {
		t.Run(fmt.Sprintf("%q %q", c.distrust, c.misfits), func(t *testing.T) {
			cfg := config(B)
			cfg.Untrusted, cfg.Misfits = c.distrust, c.misfits
			r := newRig(t, cfg)
			r.linkUp()
			r.pass(lease)
			var said SyncInfo
			if err := json.Unmarshal(r.sent(MsgSync).Meta, &said); err != nil {
				t.Fatal(err)
			}
			if said.Untrusted != (c.distrust != "" || c.misfits != "") || said.Partial != (c.distrust == "" && c.misfits != "") {
				t.Errorf("%+v", said)
			}
		})
	}
}

// What the joiner lacks is copied whole, and of the rest what was written since, unless its store
// has failed as well.
func TestMisfitsAreCopied(t *testing.T) {
	for _, failed := range []bool{false, true} {
		r, in := source(t)
		in.Untrusted, in.Partial = true, true
		if failed {
			r.m.distrust = in.Store
		}
		r.join(in)
		if v := r.m.View(r.now).Resync; v.Full != failed {
			t.Errorf("failed %v: %+v", failed, v)
		}
	}
}

// Of two that restarted, the one that lacks files is not the source, whatever else speaks for it.
func TestMisfitsOfBothThatRestarted(t *testing.T) {
	for _, c := range []struct {
		self         Node
		mine, theirs string
		source       bool
	}{
		{self: A, mine: "a file", source: false},
		{self: B, theirs: "a file", source: true},
		{self: A, mine: "a file", theirs: "another file", source: false},
	} {
		cfg := config(c.self)
		cfg.DurableEpoch, cfg.Empty, cfg.Start, cfg.Misfits = 5, false, 1000*ms, c.mine
		cfg.Incarnation.Nonce, cfg.Lock, cfg.State.Lock = 91, "8:1", "8:1"
		r := newRig(t, cfg)
		r.linkUp()
		r.got(record(5, A, B), "v5")
		in := r.peerInfo(Outside)
		in.Incarnation.Nonce = 92
		in.Untrusted, in.Partial = c.theirs != "", c.theirs != ""
		r.sync(in)
		r.pass(10 * ms)
		if _, ok := r.claims(); ok != c.source {
			t.Fatalf("%v lacks %q, its peer %q: source %v", c.self, c.mine, c.theirs, ok)
		}
		if c.mine != "" {
			r.reason(c.mine)
		}
	}
}

// A lone member serves without the files that it lacks, and readmits no node before it has them
// again, or needs them no more.
func TestLoneMemberWithMisfits(t *testing.T) {
	cfg := config(A)
	cfg.DurableEpoch, cfg.Empty, cfg.Misfits = 6, false, "a file"
	cfg.Incarnation = inc("another boot", 9)
	r := newRig(t, cfg)
	r.got(record(6, A), "v6")
	x := r.claim()
	r.won(x, "v7")
	r.saved()
	r.phase(Alone)

	r = alone(t, A)
	r.m.cfg.Misfits = "a file"
	r.linkUp()
	tries := func() (begun bool) {
		for range 20 {
			r.sync(r.joiner())
			r.pass(lease)
			r.looks()
			_, ok := r.poll(ActExport)
			begun = begun || ok
		}
		return begun
	}
	for _, what := range []string{"a file", "another file"} {
		r.m.Misfits(r.now, what)
		if tries() {
			t.Fatalf("a resync begins without %s", what)
		}
		r.reason(what)
	}
	if r.m.Misfits(r.now, ""); r.m.reason != "" || !tries() {
		t.Errorf("no resync: %q", r.m.reason)
	}
}
