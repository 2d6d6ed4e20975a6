package sim

import (
	"slices"
	"testing"
)

func w(value uint64, call, ret int64) rec {
	return rec{kind: recWrite, value: value, call: call, ret: ret}
}

func r(value uint64, call, ret int64) rec {
	return rec{kind: recRead, value: value, call: call, ret: ret}
}

func maybe(x rec) rec { x.optional = true; return x }

func fua(x rec) rec { x.durable = true; return x }

func swap(verify, value uint64, call, ret int64) rec {
	return rec{kind: recSwap, verify: verify, value: value, call: call, ret: ret}
}

func miss(verify, value uint64, call, ret int64) rec {
	return rec{kind: recMiss, verify: verify, value: value, call: call, ret: ret}
}

func TestCheckerOfLinearizability(t *testing.T) {
	for _, x := range []struct {
		name string
		recs []rec
		ok   bool
	}{
		{"nothing", nil, true},
		{"read of zero", []rec{r(0, 1, 2)}, true},
		{"read what was written", []rec{w(1, 1, 2), r(1, 3, 4)}, true},
		{"read what was overwritten", []rec{w(1, 1, 2), w(2, 3, 4), r(1, 5, 6)}, false},
		{"read during a write, old then new", []rec{w(1, 1, 9), r(0, 2, 3), r(1, 4, 5)}, true},
		{"read during a write, new then old", []rec{w(1, 1, 9), r(1, 2, 3), r(0, 4, 5)}, false},
		{"lost write", []rec{w(1, 1, 2), r(0, 3, 4)}, false},
		{"an attempt that was given up and happened", []rec{maybe(w(1, 1, 9)), r(1, 10, 11)}, true},
		{"an attempt that was given up and did not", []rec{maybe(w(1, 1, 9)), r(0, 10, 11)}, true},
		{"both", []rec{maybe(w(1, 1, 9)), r(1, 10, 11), r(0, 12, 13)}, false},
		{"an attempt that happens after its operation returned", []rec{maybe(w(1, 1, 5)), w(1, 2, 5), w(2, 6, 7), r(1, 8, 9)}, false},
		{"an attempt that never returned", []rec{maybe(w(1, 1, forever)), w(2, 6, 7), r(1, 8, 9)}, true},
		{"swap", []rec{w(1, 1, 2), swap(1, 2, 3, 4), r(2, 5, 6)}, true},
		{"swap of something else", []rec{w(1, 1, 2), swap(3, 2, 3, 4)}, false},
		{"miscompare", []rec{w(1, 1, 2), miss(3, 2, 3, 4), r(1, 5, 6)}, true},
		{"miscompare of what is there", []rec{w(1, 1, 2), miss(1, 2, 3, 4)}, false},
		{"swapped twice: the duplicate miscompares and the value is there", []rec{w(1, 1, 2), miss(1, 2, 3, 4), r(2, 5, 6)}, false},
		{"own retry miscompares", []rec{w(1, 1, 2), maybe(swap(1, 2, 3, 9)), miss(1, 2, 4, 9), r(2, 10, 11)}, true},
		{"own retry miscompares, and nothing was swapped", []rec{w(1, 1, 2), maybe(swap(1, 2, 3, 9)), miss(1, 2, 4, 9), r(1, 10, 11)}, false},
		{"two swaps of one value", []rec{w(1, 1, 2), swap(1, 2, 3, 9), swap(1, 3, 3, 9)}, false},
	} {
		if err := judge(&state{[]uint64{0}}, x.recs); (err == nil) != x.ok {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

func TestShortestEndsWithTheImpossible(t *testing.T) {
	recs := []rec{w(1, 1, 2), r(1, 3, 4), r(0, 5, 6), w(2, 7, 8), r(2, 9, 10)}
	got := shortest(&state{[]uint64{0}}, recs)
	if len(got) != 3 || got[2].value != 0 {
		t.Fatalf("%v", describe(got))
	}
}

// Both nodes lose power at 100: what was flushed is there afterwards, what was not may be.
func TestPartsAroundALoss(t *testing.T) {
	const at = 100
	for _, x := range []struct {
		name    string
		recs    []rec
		flushes []flushed
		ok      bool
	}{
		{"unflushed and gone", []rec{w(1, 1, 2), r(0, 110, 111)}, nil, true},
		{"unflushed and there", []rec{w(1, 1, 2), r(1, 110, 111)}, nil, true},
		{"unflushed, there and gone", []rec{w(1, 1, 2), r(1, 110, 111), r(0, 112, 113)}, nil, false},
		{"FUA and gone", []rec{fua(w(1, 1, 2)), r(0, 110, 111)}, nil, false},
		{"flushed and gone", []rec{w(1, 1, 2), r(0, 110, 111)}, []flushed{{0, 3, 4}}, false},
		{"another LUN flushed and gone", []rec{w(1, 1, 2), r(0, 110, 111)}, []flushed{{1, 3, 4}}, true},
		{"flush began before the write ended", []rec{w(1, 1, 5), r(0, 110, 111)}, []flushed{{0, 3, 8}}, true},
		{"flush that was not answered", []rec{w(1, 1, 2), r(0, 110, 111)}, []flushed{{0, 3, 105}}, true},
		{"an older unflushed one comes back over a durable one", []rec{w(1, 1, 2), fua(w(2, 3, 4)), r(1, 110, 111)}, nil, false},
		{"one that overlapped the durable one", []rec{w(1, 1, 9), fua(w(2, 3, 4)), r(1, 110, 111)}, nil, true},
		{"a younger one over the durable one", []rec{fua(w(2, 3, 4)), w(3, 5, 6), r(3, 110, 111)}, nil, true},
		{"under way at the loss", []rec{fua(w(2, 3, 4)), maybe(w(3, 90, 120)), r(3, 130, 131)}, nil, true},
		{"under way at the loss, undone later", []rec{maybe(w(3, 90, 120)), w(3, 105, 120), r(3, 130, 131), r(0, 132, 133)}, nil, false},
		{"a lie before the loss", []rec{w(1, 1, 2), r(0, 3, 4), r(0, 110, 111)}, nil, false},
		{"read before, gone after", []rec{w(1, 1, 2), r(1, 3, 4), r(0, 110, 111)}, nil, true},
	} {
		h := &history{blocks: [][][]rec{{x.recs}}, flushes: x.flushes, losses: []loss{{lun: 0, at: at}}}
		if err := h.linearizable(); (err == nil) != x.ok {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

// After a force the block may hold whatever was ever written there; what came after the force
// counts as ever.
func TestPartsAroundAForce(t *testing.T) {
	recs := []rec{
		{kind: recWrite, durable: true, value: 1, call: 10, ret: 20}, {kind: recWrite, durable: true, value: 2, call: 30, ret: 40},
		{kind: recRead, value: 2, call: 50, ret: 60}, {kind: recWrite, value: 3, call: 300, ret: 310},
	}
	h := &history{losses: []loss{{lun: 0, at: 100, forced: true}}}
	parts := h.parts(0, recs)
	if len(parts) != 2 || !slices.Equal(parts[1].start.vals, []uint64{0, 1, 2}) {
		t.Fatalf("%+v", parts)
	}
	h.losses[0].forced = false
	if parts = h.parts(0, recs); !slices.Equal(parts[1].start.vals, []uint64{2}) {
		t.Fatalf("%+v", parts[1].start.vals)
	}
}

// Two losses: what survived the first unflushed may go with the second, what was flushed between
// may not.
func TestPartsAroundTwoLosses(t *testing.T) {
	h := &history{losses: []loss{{lun: 0, at: 100}, {lun: 0, at: 200}}}
	recs := []rec{w(1, 1, 2), r(1, 110, 111), w(2, 120, 121)}
	parts := h.parts(0, recs)
	if len(parts) != 3 || !slices.Equal(parts[1].start.vals, []uint64{0, 1}) || !slices.Equal(parts[2].start.vals, []uint64{0, 1, 2}) {
		t.Fatalf("%+v", parts)
	}
	h.flushes = []flushed{{0, 122, 123}}
	if parts = h.parts(0, recs); !slices.Equal(parts[2].start.vals, []uint64{2}) {
		t.Fatalf("%v", parts[2].start.vals)
	}
}

func TestHistoryTakesRetries(t *testing.T) {
	var h history
	h.init(1, 2)
	l := &logical{kind: opWrite, n: 2, value: 7, tries: []try{{start: 1}, {start: 2, none: true}, {start: 3}}}
	h.add(0, l, 0, nil, 9)
	for b := range 2 {
		recs := h.blocks[0][b]
		if len(recs) != 2 || !recs[0].optional || recs[0].call != 1 || recs[1].optional || recs[1].call != 3 || recs[1].ret != 9 {
			t.Errorf("block %d: %+v", b, recs)
		}
	}
}

func TestTruthKnowsOnlyWhatIsCertain(t *testing.T) {
	var f truth
	f.init(1, 1)
	count := func() (n int) { f.each(func(int, int, *fact) { n++ }); return n }
	a := &logical{kind: opWrite, n: 1, value: 1, tries: make([]try, 1)}
	b := &logical{kind: opWrite, n: 1, value: 2, tries: make([]try, 1)}
	f.begin(a)
	if !f.alone(a) || count() != 0 {
		t.Error("one open write")
	}
	f.end(a, true, 5)
	if count() != 1 || f.blocks[0][0].value != 1 {
		t.Errorf("%+v", f.blocks)
	}
	f.begin(a)
	f.begin(b)
	f.end(a, true, 6)
	f.end(b, true, 7)
	if count() != 0 {
		t.Error("two that overlapped: nobody knows which came last")
	}
	f.begin(b)
	f.end(b, true, 8)
	if count() != 1 || f.blocks[0][0].value != 2 {
		t.Errorf("%+v", f.blocks)
	}
}
