package tally

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func unit(uid, pair, pool, owner string, gib int64) *v1alpha1.LogicalUnit {
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}, Spec: v1alpha1.LogicalUnitSpec{Size: *resource.NewQuantity(gib<<30, resource.BinarySI)},
		Status: v1alpha1.LogicalUnitStatus{Owner: owner}}
	if pair != "" {
		lu.Spec.Placement = &v1alpha1.Placement{Pair: pair, Pool: pool}
	}
	return lu
}

func of(t *testing.T, c Counter, pair string) Count {
	t.Helper()
	got, err := c.Of(t.Context(), pair)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A LUN counts once, where its placement says and for what its last version says.
func TestTallyFollowsLUNs(t *testing.T) {
	var x Tally
	check := func(what string, want Count) {
		t.Helper()
		if got := of(t, &x, "p"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, not %+v", what, got, want)
		}
	}
	check("nothing", Count{})
	x.Set(unit("1", "", "", "", 1))
	check("not placed", Count{})
	x.Set(unit("1", "p", "fast", "", 1))
	x.Set(unit("1", "p", "fast", "a", 1))
	x.Set(unit("1", "p", "fast", "a", 1))
	check("placed", Count{1, map[string]int{"a": 1}, map[string]int64{"fast": 1 << 30}})
	x.Set(unit("1", "", "", "", 1)) // an event from before the placement
	x.Set(unit("2", "p", "", "b", 4))
	x.Set(unit("3", "q", "", "b", 8))
	striped := unit("4", "p", "", "", 16)
	striped.Spec.Striped = &v1alpha1.Striping{LUNs: 4}
	x.Set(striped)
	for n := range 4 {
		leg := unit(fmt.Sprint("4-", n), "p", "", "a", 4)
		leg.Spec.Leg = &v1alpha1.Leg{}
		x.Set(leg)
	}
	check("a second one, and a striped volume with its legs", Count{6, map[string]int{"a": 5, "b": 1}, map[string]int64{"fast": 1 << 30, "": 20 << 30}})
	for n := range 4 {
		x.Forget(types.UID(fmt.Sprint("4-", n)))
	}
	x.Forget("4")
	x.Set(unit("2", "p", "", "a", 6))
	check("moved, and expanded", Count{2, map[string]int{"a": 2}, map[string]int64{"fast": 1 << 30, "": 6 << 30}})
	got := of(t, &x, "p")
	got.Owned["a"], got.Promised["fast"] = 9, 9
	check("the caller's copy was changed", Count{2, map[string]int{"a": 2}, map[string]int64{"fast": 1 << 30, "": 6 << 30}})
	x.Forget("1")
	x.Forget("1")
	x.Forget("4")
	x.Forget("2")
	check("all have gone", Count{})
	if got := of(t, &x, "q"); got.LUNs != 1 {
		t.Errorf("%+v", got)
	}
}

// Whatever happens in whatever order, the counts are those of the LUNs that there are.
func TestTallyIsTheSumOfWhatThereIs(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var x, sum Tally
		now := map[string]*v1alpha1.LogicalUnit{}
		for range 500 {
			uid := fmt.Sprint(rng.IntN(20))
			if now[uid] != nil && rng.IntN(4) == 0 {
				delete(now, uid)
				x.Forget(types.UID(uid))
				continue
			}
			pair := fmt.Sprint("p", rng.IntN(3))
			if old := now[uid]; old != nil {
				pair = old.Spec.Placement.Pair
			}
			now[uid] = unit(uid, pair, []string{"", "fast"}[rng.IntN(2)], []string{"", "a", "b"}[rng.IntN(3)], 1+rng.Int64N(9))
			x.Set(now[uid])
		}
		for _, lu := range now {
			sum.Set(lu)
		}
		for p := range 3 {
			name := fmt.Sprint("p", p)
			got, want := of(t, &x, name), of(t, &sum, name)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, %s: %+v, not %+v", seed, name, got, want)
			}
		}
	}
}

// A placement that is being written counts, until the object says otherwise or it is given up.
func TestTallyCountsReservations(t *testing.T) {
	var x Tally
	check := func(what, pair string, luns int, gib int64) {
		t.Helper()
		if got := of(t, &x, pair); got.LUNs != luns || got.Promised[""] != gib<<30 {
			t.Errorf("%s: pair %s: %+v, not %d LUNs and %d GiB", what, pair, got, luns, gib)
		}
	}
	x.Reserve(unit("1", "", "", "", 4), &v1alpha1.Placement{Pair: "p"})
	check("reserved", "p", 1, 4)
	x.Set(unit("1", "", "", "", 4)) // an event that is older
	check("an older event", "p", 1, 4)
	x.Release("1")
	check("given up", "p", 0, 0)
	x.Reserve(unit("1", "", "", "", 4), &v1alpha1.Placement{Pair: "p"})
	x.Reserve(unit("1", "", "", "", 4), &v1alpha1.Placement{Pair: "q"})
	check("chosen again", "p", 0, 0)
	check("chosen again", "q", 1, 4)
	x.Set(unit("1", "p", "", "", 4)) // the first write had come through
	check("it is elsewhere", "p", 1, 4)
	check("it is elsewhere", "q", 0, 0)
	x.Reserve(unit("1", "", "", "", 4), &v1alpha1.Placement{Pair: "q"}) // by a pass whose object is older
	x.Release("1")
	check("it has its place", "p", 1, 4)
	over := unit("2", "", "", "", 8)
	over.Spec.Striped = &v1alpha1.Striping{LUNs: 4}
	x.Reserve(over, &v1alpha1.Placement{Pair: "p", LegPairs: v1alpha1.LegPairsOf([]string{"p", "q", "p", "r"})})
	check("striped over pairs", "p", 1, 8)
	check("striped over pairs", "q", 0, 2)
	x.Forget("1")
	x.Forget("2")
	check("all have gone", "p", 0, 0)
}

// A LUN counts with the size that it has, and with a larger one of its spec once that is granted.
func TestTallyGrantsGrowth(t *testing.T) {
	var x Tally
	limit := func(_, pool string, promised map[string]int64, more int64) error {
		if promised[pool]+more > 10<<30 {
			return fmt.Errorf("%d and %d more", promised[pool]>>30, more>>30)
		}
		return nil
	}
	grown := func(uid string, from, to int64) *v1alpha1.LogicalUnit {
		lu := unit(uid, "p", "", "a", to)
		lu.Status.Size = resource.NewQuantity(from<<30, resource.BinarySI)
		x.Set(lu)
		return lu
	}
	check := func(what string, gib int64, err error, refused bool) {
		t.Helper()
		if got := of(t, &x, "p").Promised[""]; got != gib<<30 || (err != nil) != refused {
			t.Errorf("%s: %d GiB, not %d; %v", what, got>>30, gib, err)
		}
	}
	x.Set(unit("1", "p", "", "a", 4))
	lu := grown("2", 3, 8)
	check("a wish", 7, nil, false)
	check("too much", 7, x.Grow(lu, limit), true)
	lu = grown("2", 3, 6)
	check("as much as may be", 10, x.Grow(lu, limit), false)
	check("again", 10, x.Grow(lu, limit), false)
	check("more", 10, x.Grow(grown("2", 3, 7), limit), true)
	grown("2", 6, 6)
	check("it has grown", 10, nil, false)
	striped := grown("3", 0, 0)
	x.Forget("3")
	striped.Spec.Size = *resource.NewQuantity(4<<30, resource.BinarySI)
	striped.Spec.Striped, striped.Spec.Placement.LegPairs = &v1alpha1.Striping{LUNs: 2}, v1alpha1.LegPairsOf([]string{"q", "p"})
	check("striped, of which one pair has no room", 10, x.Grow(striped, limit), true)
	x.Forget("1")
	check("striped", 8, x.Grow(striped, limit), false)
}

// The tally gives no counts before the LogicalUnits that exist at the start are counted: the first
// placements would all go to one pair.
func TestTallyWaitsForTheCache(t *testing.T) {
	var x Tally
	ready := false
	synced := func() bool { return ready }
	x.synced.Store(&synced)
	if _, err := x.Of(t.Context(), "p"); err == nil {
		t.Error("it counts before the cache is there")
	}
	ready = true
	if _, err := x.Of(t.Context(), "p"); err != nil {
		t.Error(err)
	}
}

func TestTallyIsSafeForConcurrentUse(t *testing.T) {
	var x Tally
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				uid := fmt.Sprint(i, "-", n%10)
				x.Set(unit(uid, "p", "", "a", int64(n)))
				_, _ = x.Of(t.Context(), "p")
				x.Forget(types.UID(uid))
			}
		})
	}
	wg.Wait()
	if got := of(t, &x, "p"); got.LUNs != 0 {
		t.Errorf("%+v", got)
	}
}
