package work

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/count"
)

func owns(node int) func(string) (int, bool) { return func(string) (int, bool) { return node, true } }

// Node a uses 1.2 of its two CPUs for one LUN, node b nothing: the LUN is all of a's use, and would
// be of b's.
func TestUseFollowsTheOwner(t *testing.T) {
	a, b := newNode(1), newNode(1)
	a.run(10*time.Minute, count.Read, count.Own, 10000, 4096, 1.2)
	b.run(10*time.Minute, count.Read, count.Own, 0, 0, 0.1)
	r := [2]Report{a.report(), b.report()}
	use, luns := Pair(r, owns(0))
	near(t, "a", use[0], 0.6)
	near(t, "b", use[1], 0.05)
	near(t, "the LUN", luns["l0"].Slow, 0.6)
	near(t, "the LUN, lately", luns["l0"].Fast, 0.6)
	use, _ = Pair(r, owns(1)) // it has just moved: what it did counts where it is now
	near(t, "a afterwards", use[0], 0)
	near(t, "b afterwards", use[1], 0.65)
}

// Writes cost both nodes; a LUN takes along only what the owner has more of them.
func TestWritesLoadBothNodes(t *testing.T) {
	a, b := newNode(1), newNode(1)
	full := 2000 * (57e-6 + 4096*1.9e-9)
	mirror := 2000 * (41e-6 + 4096*1.6e-9)
	a.run(10*time.Minute, count.Write, count.Own, 2000, 4096, 3*full) // three times what the model says
	b.run(10*time.Minute, count.Write, count.Own, 0, 0, 3*mirror)
	use, luns := Pair([2]Report{a.report(), b.report()}, owns(0))
	near(t, "a", use[0], 3*full/2)
	near(t, "b", use[1], 3*mirror/2)
	near(t, "the LUN", luns["l0"].Slow, 3*(full-mirror)/2)
	use, _ = Pair([2]Report{a.report(), b.report()}, owns(1))
	near(t, "a afterwards", use[0], 3*mirror/2)
	near(t, "b afterwards", use[1], 3*full/2)
}

// What a node mirrors of the other node's LUNs is no work of its own LUNs.
func TestMirroringIsNoWorkOfOwnLUNs(t *testing.T) {
	a, b := newNode(1), newNode(1)
	full := 2000 * (57e-6 + 4096*1.9e-9)
	mirror := 2000 * (41e-6 + 4096*1.6e-9)
	for _, n := range []*node{a, b} {
		n.run(10*time.Minute, count.Write, count.Own, 2000, 4096, 2*(full+mirror))
	}
	_, luns := Pair([2]Report{a.report(), b.report()}, owns(0))
	near(t, "the LUN, of both nodes", luns["l0"].Slow, 2*2*(full-mirror)/2)
}

// A process that does other things, or next to nothing, does not inflate the work of its LUNs.
func TestScaleIsBounded(t *testing.T) {
	a, b := newNode(1), newNode(1)
	a.run(10*time.Minute, count.Read, count.Own, 10, 4096, 1.9)
	_, luns := Pair([2]Report{a.report(), b.report()}, owns(0))
	if s := luns["l0"].Slow; s > 2e-4 {
		t.Errorf("ten reads a second are %.4f of a node", s)
	}
	a = newNode(1)
	a.run(10*time.Minute, count.Read, count.Own, 1000, 4096, 1.9)
	_, luns = Pair([2]Report{a.report(), b.report()}, owns(0))
	near(t, "scaled at most", luns["l0"].Slow, scaleMax*1000*(9e-6+4096*0.5e-9)/2)
}

func TestReportsOfNodesThatSayNothing(t *testing.T) {
	use, luns := Pair([2]Report{}, owns(0))
	if use != [2]float64{} || len(luns) > 0 {
		t.Error(use, luns)
	}
}

// What both nodes have executed of a LUN that moved meanwhile is added up.
func TestWorkOfBothNodesAddsUp(t *testing.T) {
	a, b := newNode(1), newNode(1)
	a.run(10*time.Minute, count.Read, count.Own, 4000, 4096, 4000*(9e-6+4096*0.5e-9))
	b.run(10*time.Minute, count.Read, count.Own, 4000, 4096, 4000*(9e-6+4096*0.5e-9))
	_, luns := Pair([2]Report{a.report(), b.report()}, owns(0))
	near(t, "the LUN", luns["l0"].Slow, 8000*(9e-6+4096*0.5e-9)/2)
}

// Reading again what a cache lacks costs time, of a LUN that reads much not more than a cache
// holds.
func TestColdReadsAreBounded(t *testing.T) {
	r := [2]Report{{CPUs: 2, LUNs: map[string]LUN{"few": {Slow: 1e-3, Read: 1 << 20}, "many": {Slow: 1e-3, Read: 1 << 33}}}, {CPUs: 2}}
	_, luns := Pair(r, owns(0))
	near(t, "few", luns["few"].Cold, 300.0/1024)
	near(t, "many", luns["many"].Cold, coldMax/ColdRate)
}
