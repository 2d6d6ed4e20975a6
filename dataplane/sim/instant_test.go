package sim

import (
	"strings"
	"testing"
)

// wrote is a write of a block that was acknowledged.
func (h *history) wrote(block int, v uint64, call, ret int64) {
	h.blocks[0][block] = append(h.blocks[0][block], rec{kind: recWrite, value: v, call: call, ret: ret})
}

// A snapshot holds what the LUN held at one instant: no write that is in it began after the
// acknowledgement of one that is not.
func TestInstantIsJudged(t *testing.T) {
	for _, x := range []struct {
		name   string
		values [2]uint64
		want   string
	}{
		{"the beginning", [2]uint64{0, 0}, "10 was acknowledged"},
		{"both", [2]uint64{10, 20}, ""},
		{"one of two that overlapped", [2]uint64{11, 20}, ""},
		{"a write of unknown outcome", [2]uint64{12, 20}, ""},
		{"an older value than one that came before the mark", [2]uint64{10, 0}, "20 was acknowledged"},
		{"a write that began after the mark", [2]uint64{10, 21}, "whose write began"},
		{"what no host wrote", [2]uint64{99, 20}, "no host has written"},
		{"a write that is under way", [2]uint64{10, 30}, ""},
	} {
		w := still()
		w.history.wrote(0, 10, 1*ms, 5*ms)
		w.history.wrote(0, 11, 2*ms, 6*ms)
		w.history.blocks[0][0] = append(w.history.blocks[0][0], rec{kind: recWrite, optional: true, value: 12, call: 7 * ms, ret: forever})
		w.history.wrote(1, 20, 3*ms, 8*ms)
		w.history.wrote(1, 21, 13*ms, 14*ms)
		w.clients = []*client{{op: &logical{kind: opWrite, lun: 0, block: 1, n: 1, value: 30, tries: []try{{start: 9 * ms}}}}}
		got := w.instant(0, x.values[:], instant{10 * ms, 12 * ms})
		if x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, not %q", x.name, got, x.want)
		}
	}
	// Two blocks that are not of one instant, whenever that may have been.
	w := still()
	w.history.wrote(0, 10, 1*ms, 5*ms)
	w.history.wrote(1, 20, 6*ms, 7*ms)
	if what := w.instant(0, []uint64{0, 20}, instant{0, 9 * ms}); !strings.Contains(what, "10 was acknowledged") {
		t.Fatal(what)
	}
	if what := w.instant(0, []uint64{10, 0}, instant{0, 9 * ms}); what != "" {
		t.Fatal(what)
	}
}

// The content of a snapshot does not change after its commit, at either node.
func TestSnapshotStaysAsItWasCommitted(t *testing.T) {
	w := still()
	for _, h := range w.nodes {
		h.disk.meta.Snaps[0] = snap{Born: 3, Stage: stageMarked}
		h.noteInstant(0)
		h.disk.meta.Snaps[0].Stage = stageReady
		h.judgeSnap(0)
	}
	if w.res.Err != nil || w.res.Marks[markInstant] != 2 {
		t.Fatal(w.res.Err, w.res.Marks[markInstant])
	}
	w.nodes[1].disk.luns[w.shape.luns][1].put(5, true)
	if w.nodes[1].judgeSnap(0); w.res.Err == nil || !strings.Contains(w.res.Err.Error(), "was committed with") {
		t.Fatal(w.res.Err)
	}
}
