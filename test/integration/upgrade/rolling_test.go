package upgrade

import (
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// A pair is upgraded under load, one node after the other, and goes back in the same way, with its
// state folders. Each order, so that either node is the first to be of another release.
func TestRollingUpgradeAndBack(t *testing.T) {
	for _, first := range []int{1, 0} {
		t.Run("node "+harness.Names[first]+" first", func(t *testing.T) {
			r := start(t, [2]build{before, before})
			r.volumes(t)
			kept := r.changes(t, 0)
			for _, b := range []build{now, before} {
				for _, i := range []int{first, 1 - first} {
					r.during(t, "node "+harness.Names[i]+" replaced by "+b.version, func() { r.replace(t, i, b) })
					r.same(t)
					r.during(t, "moved there and back", func() {
						r.move(t, 1-i, i)
						r.move(t, i, 1-i)
					})
					kept += r.changes(t, i)
				}
			}
			r.rest(t)
			r.end(t, len(r.luns)+kept)
		})
	}
}

// replace restarts a node with another build, as the operator does: what it owns is moved to the
// other one first.
func (r *rig) replace(t *testing.T, i int, b build) {
	t.Helper()
	r.move(t, i, 1-i)
	if err := r.Term(i); err != nil {
		t.Fatal(err)
	}
	use(r.Pair, i, b)
	if err := r.StartNode(i); err != nil {
		t.Fatal(err)
	}
	r.inSync(t)
	r.runs(t, i, b)
}

// A pair is stopped as a whole and started with the other release. Then the node that stopped last
// has no peer to copy from: it has only what the other release wrote into its state folder.
func TestStateFolderOfTheOtherRelease(t *testing.T) {
	r := start(t, [2]build{before, before})
	r.volumes(t)
	kept := r.changes(t, 0)
	r.rest(t)
	for round, b := range []build{now, before, now} {
		last := round % 2
		for _, i := range []int{1 - last, last} {
			if err := r.Term(i); err != nil {
				t.Fatal(err)
			}
			use(r.Pair, i, b)
		}
		if err := r.StartNode(last); err != nil {
			t.Fatal(err)
		}
		if err := r.WaitPhase(r.ctx, last, targetv1.Phase_PHASE_ALONE); err != nil {
			t.Fatal(err)
		}
		r.runs(t, last, b)
		r.verify(t)
		kept += r.changes(t, last)
		if err := r.StartNode(1 - last); err != nil {
			t.Fatal(err)
		}
		r.inSync(t)
		r.runs(t, 1-last, b)
		r.same(t)
		r.verify(t)
	}
	r.end(t, len(r.luns)+kept)
}
