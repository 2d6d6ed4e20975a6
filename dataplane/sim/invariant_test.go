package sim

import (
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// still is a world that nothing happens in.
func still() *world {
	w := &world{cfg: Config{Seed: 1, LUNs: 1, Blocks: 2}}
	w.seed()
	w.shape = w.draw()
	w.net.w, w.arb.w = w, w
	w.luns = []pair.LUNID{{1}}
	w.history.init(1, 2)
	w.truth.init(1, 2)
	for i := range w.nodes {
		w.nodes[i] = newHost(w, pair.Node(i))
		w.nodes[i].disk.epoch = 9
	}
	return w
}

func TestRecordIsJudged(t *testing.T) {
	a := pair.Member{Node: pair.A, Store: "store-a-1", Incarnation: pair.Incarnation{Boot: "x", Nonce: 1}}
	b := pair.Member{Node: pair.B, Store: "store-b-2", Incarnation: pair.Incarnation{Boot: "boot-b-0", Nonce: 2}}
	again := a
	again.Incarnation.Nonce = 3
	other := a
	other.Store = "store-a-7"
	rec := func(epoch uint64, ms ...pair.Member) *pair.Record {
		return &pair.Record{Epoch: epoch, Generation: 1, Members: ms}
	}
	forced := func(epoch uint64) *pair.Record {
		return &pair.Record{Epoch: epoch, Generation: 2, Members: []pair.Member{again}}
	}
	for _, x := range []struct {
		name    string
		old, to *pair.Record
		set     func(*world)
		want    string
	}{
		{"exclude", rec(1, a, b), rec(2, a), nil, ""},
		{"readmit", rec(2, a), rec(3, a, b), nil, ""},
		{"renew", rec(2, a), rec(3, again), nil, ""},
		{"no-op successor", rec(2, a), rec(2, a), nil, ""},
		{"another content", rec(2, a), rec(2, a, b), nil, "another content"},
		{"an epoch is left out", rec(1, a, b), rec(3, a), nil, "goes from epoch"},
		{"who was no member", rec(2, b), rec(3, a), nil, "which no member was"},
		{"another store", rec(2, a), rec(3, other), nil, "which no member was"},
		{"readmit by a new process", rec(2, a), rec(3, again, b), nil, "readmits no node"},
		{"another generation", rec(1, a, b), forced(2), nil, "without a force"},
		{"force that is not on record", rec(1, a, b), forced(2), func(w *world) { w.admin.ever[0] = true }, "R8"},
		{"force", rec(1, a, b), forced(2), func(w *world) {
			w.admin.ever[0] = true
			w.nodes[0].disk.life = pair.State{Lost: true, LostAll: true}
		}, ""},
		{"force over a record that was lost", rec(3, b), forced(2), func(w *world) {
			w.admin.ever[0], w.arb.lost = true, true
			w.nodes[0].disk.life = pair.State{Lost: true, LostAll: true}
		}, ""},
		{"a generation that both nodes were in", rec(1, a, b), forced(2), func(w *world) {
			w.admin.ever[0] = true
			w.nodes[0].disk.life = pair.State{Lost: true, LostAll: true}
			w.arb.past = []pair.Record{{Epoch: 7, Generation: 2, Members: []pair.Member{a, b}}}
		}, "was there before"},
		{"a record that was lost", rec(1, a, b), rec(2, a), func(w *world) { w.arb.lost = true }, "was lost"},
		{"a loss that the peer has kept", rec(1, a, b), rec(2, again), func(w *world) {
			w.nodes[0].disk.life.Lost = true
			w.truth.blocks[0][1].value = 5
			w.nodes[1].disk.luns[0][1].put(5, false)
		}, "has kept what is lost"},
		{"a loss that nobody has kept", rec(1, a, b), rec(2, again), func(w *world) {
			w.nodes[0].disk.life.Lost = true
			w.truth.blocks[0][1].value = 5
		}, ""},
		{"not trusted", rec(1, a, b), rec(2, a), func(w *world) { w.nodes[0].disk.untrusted = true }, "R12"},
		{"lacks a write", rec(1, a, b), rec(2, a), func(w *world) { w.truth.blocks[0][1].value = 5 }, "acknowledged was 5"},
		{"claims unflushed", rec(2, a), rec(3, again), func(w *world) {
			w.truth.blocks[0][1].value = 5
			w.nodes[0].disk.luns[0][1].put(5, false)
		}, "has not flushed"},
		{"joins unflushed", rec(2, a), rec(3, a, b), func(w *world) {
			w.truth.blocks[0][1].value = 5
			for _, h := range w.nodes {
				h.disk.luns[0][1].put(5, false)
			}
			w.nodes[1].flushedAll = 10
		}, "R7"},
	} {
		w := still()
		w.arb.rec, w.arb.exists = *x.old, true
		if x.set != nil {
			x.set(w)
		}
		w.arb.judge(x.to, 0)
		switch err := w.res.Err; {
		case x.want == "" && err != nil:
			t.Errorf("%s: %v", x.name, err)
		case x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)):
			t.Errorf("%s: %v, not %q", x.name, err, x.want)
		}
	}
}

// An arbiter that forgets has been seen by both nodes before, and never gives a version number
// twice.
func TestArbiterForgetsOnlyWhatBothSaw(t *testing.T) {
	w := still()
	w.res.Operations = minOperations
	w.arb.exists, w.arb.version = true, 4
	w.arb.past = []pair.Record{{Epoch: 1}, {Epoch: 2}}
	w.arb.rec = w.arb.past[1]
	if w.arb.forget() {
		t.Fatal("both nodes are down")
	}
	for _, h := range w.nodes {
		h.boot()
	}
	w.nodes[1].disk.epoch = 1
	if w.arb.forget() {
		t.Fatal("node b has not seen epoch 2")
	}
	w.nodes[1].disk.epoch = 2
	if !w.arb.forget() || w.arb.version != 5 || w.arb.exists && w.arb.rec.Epoch != 1 || !w.arb.lost {
		t.Fatalf("%+v", w.arb)
	}
}
