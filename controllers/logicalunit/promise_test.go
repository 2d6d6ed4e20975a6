package logicalunit

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/tally"
)

// promising gives the cluster a pool of 100 MiB of which so many percent may be promised, and has
// the reconciler count.
func (f *fixture) promising(percent int32) *tally.Tally {
	f.Helper()
	f.add(&v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: v1alpha1.StorageClusterSpec{Pools: []v1alpha1.Pool{{Name: "main", OvercommitPercent: percent}}}})
	f.volumes = []*targetv1.BackingVolume{{Name: "default", CapacityBytes: 100 * mebi, FreeBytes: 100 * mebi, Nodes: []string{"a", "b"}}}
	p := &v1alpha1.TargetPair{}
	if err := f.c.Get(f.Context(), client.ObjectKey{Name: "p"}, p); err != nil {
		f.Fatal(err)
	}
	q := resource.NewQuantity(100*mebi, resource.BinarySI)
	p.Status.Pools = []v1alpha1.PoolStatus{{Name: "main", Capacity: q, Free: q}}
	if err := f.c.Update(f.Context(), p); err != nil {
		f.Fatal(err)
	}
	counts := &tally.Tally{}
	f.r.Tally = counts
	return counts
}

func readyOf(lu *v1alpha1.LogicalUnit) metav1.Condition {
	if c := meta.FindStatusCondition(lu.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// LUNs that are placed at the same time do not share the last bytes that may be promised.
func TestPlacementsAtOnceKeepTheLimit(t *testing.T) {
	f := setup(t, nil)
	counts := f.promising(200)
	const each, fit = 30 * mebi, 6 // of 200 MiB
	var all sync.WaitGroup
	for i := range 20 {
		name := fmt.Sprint("at-once-", i)
		f.add(&v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Size: *resource.NewQuantity(each, resource.BinarySI)}})
	}
	for i := range 20 {
		all.Go(func() {
			key := client.ObjectKey{Name: fmt.Sprint("at-once-", i)}
			lu := &v1alpha1.LogicalUnit{}
			if err := f.c.Get(f.Context(), key, lu); err != nil {
				t.Error(err)
				return
			}
			_ = (&pass{Reconciler: f.r, lu: lu}).place(f.Context())
		})
	}
	all.Wait()
	placed := 0
	for i := range 20 {
		lu := &v1alpha1.LogicalUnit{}
		if err := f.c.Get(t.Context(), client.ObjectKey{Name: fmt.Sprint("at-once-", i)}, lu); err != nil {
			t.Fatal(err)
		}
		if lu.Spec.Placement != nil {
			placed++
		}
	}
	if n, err := counts.Of(t.Context(), "p"); err != nil || placed != fit || n.Promised["main"] != fit*each {
		t.Errorf("%d LUNs are placed, not %d; %+v, %v", placed, fit, n, err)
	}
}

// A LUN that would promise too much waits with the reason, and is placed when there is room.
func TestOvercommitIsSaid(t *testing.T) {
	f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Size = resource.MustParse("60Mi") })
	counts := f.promising(100)
	other := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other"}, Spec: v1alpha1.LogicalUnitSpec{Size: resource.MustParse("50Mi"), Placement: &v1alpha1.Placement{Pair: "p"}}}
	counts.Set(other)
	lu, res, _ := f.look()
	if c := readyOf(lu); c.Reason != v1alpha1.ReasonNoRoom || !strings.Contains(c.Message, "52428800 bytes of pool main are promised") || !strings.Contains(c.Message, "overcommitPercent") ||
		lu.Spec.Placement != nil || res == (ctrl.Result{}) {
		t.Fatalf("%+v, %+v", c, res)
	}
	counts.Forget("other")
	if lu, _, _ = f.look(); readyOf(lu).Status != "True" {
		t.Errorf("%+v", lu.Status)
	}
}

// A size that may not be promised is refused, and everything else of the spec is carried out.
func TestExpansionIsRefusedAtTheLimit(t *testing.T) {
	f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Size = resource.MustParse("60Mi") })
	f.promising(100)
	f.look()
	f.spec(func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Size, lu.Spec.Hosts = resource.MustParse("101Mi"), []v1alpha1.HostAccess{{IQN: "iqn.2026-01.x:h"}}
	})
	lu, _, _ := f.look()
	if c := readyOf(lu); c.Reason != v1alpha1.ReasonNoRoom || !strings.Contains(c.Message, "expand the LUN: pair p: 62914560 bytes of pool main are promised") {
		t.Errorf("%+v", c)
	}
	if lu.Status.Size.Value() != 60*mebi || len(lu.Status.Hosts) != 1 || strings.Contains(fmt.Sprint(f.calls), "expand") {
		t.Errorf("%+v; calls %v", lu.Status, f.calls)
	}
	c := &v1alpha1.StorageCluster{}
	if err := f.c.Get(t.Context(), client.ObjectKey{Name: "c"}, c); err != nil {
		t.Fatal(err)
	}
	c.Spec.Pools[0].OvercommitPercent = 150
	if err := f.c.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if lu, _, _ = f.look(); readyOf(lu).Status != "True" || lu.Status.Size.Value() != 101*mebi {
		t.Errorf("%+v", lu.Status)
	}
}

// The legs of a striped volume do not grow where the volume may not, and get what else is new.
func TestStripedExpansionIsRefusedAtTheLimit(t *testing.T) {
	f := striped(t)
	f.promising(30)
	f.look()
	f.allSay()
	f.look()
	f.spec(func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Size, lu.Spec.WriteCache = resource.MustParse("33Mi"), v1alpha1.WriteThrough
	})
	lu, _, _ := f.look()
	if c := readyOf(lu); c.Reason != v1alpha1.ReasonNoRoom || !strings.Contains(c.Message, "expand the LUN: pair p") {
		t.Errorf("%+v", c)
	}
	for i := range 3 {
		if leg := f.leg(i); leg.Spec.Size.Value() != 4*mebi || leg.Spec.WriteCache != v1alpha1.WriteThrough {
			t.Errorf("%+v", leg.Spec)
		}
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Size = resource.MustParse("30Mi") }) // as if it had never been asked for
	f.look()
	for i := range 3 {
		if leg := f.leg(i); leg.Spec.Size.Value() != 10*mebi {
			t.Errorf("%+v", leg.Spec)
		}
	}
}
