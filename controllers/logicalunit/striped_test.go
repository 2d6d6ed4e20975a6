package logicalunit

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const mebi = 1 << 20

// striped is a fixture with a volume over three LUNs. What its legs say, the test writes.
func striped(t *testing.T) *fixture {
	t.Helper()
	return stripedOf(t, nil)
}

// stripedOf is striped for a copy of source.
func stripedOf(t *testing.T, source *v1alpha1.Source) *fixture {
	t.Helper()
	f := setup(t, func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Size, lu.Spec.Source = resource.MustParse("12Mi"), source
		lu.Spec.Striped = &v1alpha1.Striping{LUNs: 3, StripeBytes: 256 << 10}
	})
	// Generations are counted as the API server counts them.
	f.r.Client = interceptor.NewClient(f.c.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetGeneration(1)
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			lu, ok := o.(*v1alpha1.LogicalUnit)
			old := &v1alpha1.LogicalUnit{}
			if ok && c.Get(ctx, client.ObjectKeyFromObject(o), old) == nil && !equality.Semantic.DeepEqual(old.Spec, lu.Spec) {
				o.SetGeneration(old.Generation + 1)
			}
			return c.Patch(ctx, o, patch, opts...)
		}})
	return f
}

func (f *fixture) leg(i int) *v1alpha1.LogicalUnit {
	f.Helper()
	lu := &v1alpha1.LogicalUnit{}
	if err := f.c.Get(f.Context(), client.ObjectKey{Name: v1alpha1.LegName("lun-1", i)}, lu); err != nil {
		f.Fatal(err)
	}
	return lu
}

// says has a leg carry out its spec, as the reconciler of a LUN does, and then changes its status.
func (f *fixture) says(i int, change func(*v1alpha1.LogicalUnitStatus)) {
	f.Helper()
	leg := f.leg(i)
	leg.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"}
	if err := f.c.Update(f.Context(), leg); err != nil {
		f.Fatal(err)
	}
	size := leg.Spec.Size.DeepCopy()
	s := &leg.Status
	s.ObservedGeneration, s.Size, s.WWID, s.Owner, s.InSync = leg.Generation, &size, fmt.Sprintf("6%d", i), []string{"a", "b"}[i%2], true
	s.Allocated, s.WriteCache, s.Hosts = resource.NewQuantity(mebi, resource.BinarySI), v1alpha1.WriteBack, nil
	for n, h := range leg.Spec.Hosts {
		s.Hosts = append(s.Hosts, v1alpha1.HostMapping{IQN: h.IQN, LUN: int32(10*n + i), TargetIQN: "t", Generation: int64(100*(n+1) + i), Portals: []string{"p:1"}})
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished} {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: "True", Reason: "Ready", ObservedGeneration: leg.Generation})
	}
	if change != nil {
		change(s)
	}
	if err := f.c.Status().Update(f.Context(), leg); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) allSay() {
	f.Helper()
	for i := range 3 {
		f.says(i, nil)
	}
}

// A volume makes its legs, calls no pair but for the choice of one, and sums up what the legs say.
func TestStripedVolumeSumsUpItsLegs(t *testing.T) {
	f := striped(t)
	lu, res, err := f.look()
	if err != nil || res.RequeueAfter == 0 || condition(lu, "Ready") != "False Progressing" || lu.Annotations[v1alpha1.AnnotationMade] != "" || lu.Spec.Placement.Pair != "p" || lu.Status.ObservedGeneration == lu.Generation {
		t.Fatalf("%+v, %v", lu, err)
	}
	for i := range 3 {
		leg := f.leg(i)
		want := v1alpha1.Leg{Of: "lun-1", UUID: lu.Spec.Placement.UUID, Number: int32(i), Striping: *lu.Spec.Striped}
		if leg.Spec.Size.Value() != 4*mebi || *leg.Spec.Leg != want || leg.Spec.Placement != nil || leg.Labels[v1alpha1.LabelStriped] != "lun-1" {
			t.Errorf("%+v", leg)
		}
	}
	f.says(0, nil)
	f.says(1, nil)
	if lu, _, _ := f.look(); lu.Annotations[v1alpha1.AnnotationMade] != "" || condition(lu, "Ready") != "False Progressing" {
		t.Errorf("with two legs: %+v", lu)
	}
	f.says(2, nil)
	lu, _, err = f.look()
	if err != nil || condition(lu, "Ready") != "True Ready" || condition(lu, "Published") != "True Ready" || lu.Annotations[v1alpha1.AnnotationMade] != "true" || lu.Status.ObservedGeneration != lu.Generation ||
		lu.Status.Size.Value() != 12*mebi || lu.Status.Allocated.Value() != 3*mebi || !lu.Status.InSync || lu.Status.WriteCache != v1alpha1.WriteBack || len(lu.Status.Hosts) != 0 {
		t.Errorf("%+v, %v", lu, err)
	}
	if c := meta.FindStatusCondition(lu.Status.Conditions, "Ready"); !strings.Contains(c.Message, "a: 2, b: 1") {
		t.Errorf("%q", c.Message)
	}
	// What one leg says is what the volume says.
	f.says(1, func(s *v1alpha1.LogicalUnitStatus) {
		s.InSync = false
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: "Ready", Status: "False", Reason: v1alpha1.ReasonPairDown, Message: "the pair is down", ObservedGeneration: f.leg(1).Generation})
	})
	lu, _, _ = f.look()
	if c := meta.FindStatusCondition(lu.Status.Conditions, "Ready"); c.Reason != v1alpha1.ReasonPairDown || !strings.Contains(c.Message, "leg 1") || !strings.Contains(c.Message, "the pair is down") {
		t.Errorf("%+v", c)
	}
	if f.calls != nil {
		t.Errorf("the pair was asked: %v", f.calls)
	}
}

// A host is published when it reaches all legs, and fenced when it reaches none; until then it is
// listed. What a leg said of an earlier spec does not count.
func TestHostsOfStripedVolume(t *testing.T) {
	f := striped(t)
	f.look()
	f.allSay()
	f.look()
	f.spec(hosts("iqn.h"))
	lu, _, _ := f.look()
	if len(lu.Status.Hosts) != 0 || lu.Status.ObservedGeneration == lu.Generation || condition(lu, "Published") != "False Progressing" || f.leg(2).Spec.Hosts[0].IQN != "iqn.h" {
		t.Fatalf("%+v", lu.Status)
	}
	f.says(0, nil)
	f.says(1, nil)
	lu, _, _ = f.look()
	if h := lu.Status.Host("iqn.h"); h == nil || len(h.Legs) != 0 || lu.Status.ObservedGeneration == lu.Generation {
		t.Errorf("with two of three legs: %+v", lu.Status)
	}
	f.says(2, nil)
	lu, _, _ = f.look()
	want := []v1alpha1.LegMapping{{LUN: 0, WWID: "60"}, {LUN: 1, WWID: "61"}, {LUN: 2, WWID: "62"}}
	if h := lu.Status.Host("iqn.h"); h == nil || !equality.Semantic.DeepEqual(h.Legs, want) || h.Generation != 102 || h.TargetIQN != "t" || lu.Status.ObservedGeneration != lu.Generation || condition(lu, "Published") != "True Ready" {
		t.Errorf("%+v", lu.Status)
	}
	f.says(1, func(s *v1alpha1.LogicalUnitStatus) { s.Hosts = nil }) // it cannot be mapped
	lu, _, _ = f.look()
	if h := lu.Status.Host("iqn.h"); h == nil || len(h.Legs) != 0 {
		t.Errorf("one leg has answered that it is not mapped: %+v", lu.Status)
	}
	f.spec(hosts())
	f.look()
	f.says(0, nil)
	f.says(1, nil)
	lu, _, _ = f.look()
	if h := lu.Status.Host("iqn.h"); h == nil || len(h.Legs) != 0 || lu.Status.ObservedGeneration == lu.Generation {
		t.Errorf("with one leg that still has the host: %+v", lu.Status)
	}
	f.says(2, nil)
	if lu, _, _ = f.look(); len(lu.Status.Hosts) != 0 || lu.Status.ObservedGeneration != lu.Generation {
		t.Errorf("%+v", lu.Status)
	}
}

// Size and write cache mode are passed on. The volume has its new size when all legs have theirs.
func TestStripedVolumeIsExpanded(t *testing.T) {
	f := striped(t)
	f.look()
	f.allSay()
	f.look()
	f.spec(func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Size, lu.Spec.WriteCache = resource.MustParse("24Mi"), v1alpha1.WriteThrough
	})
	f.look()
	for i, want := range []int64{12 * mebi, 12 * mebi, 24 * mebi} {
		if leg := f.leg(i); leg.Spec.Size.Value() != 8*mebi || leg.Spec.WriteCache != v1alpha1.WriteThrough {
			t.Errorf("%+v", leg.Spec)
		}
		f.says(i, func(s *v1alpha1.LogicalUnitStatus) { s.WriteCache = v1alpha1.WriteThrough })
		if lu, _, _ := f.look(); lu.Status.Size.Value() != want || (lu.Status.WriteCache == v1alpha1.WriteThrough) != (i == 2) {
			t.Errorf("after leg %d: %+v", i, lu.Status)
		}
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Size = resource.MustParse("25Mi") })
	if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "False Invalid" || f.leg(0).Spec.Size.Value() != 8*mebi {
		t.Errorf("%+v, %v", lu.Status, err)
	}
}

// A volume that is destroyed goes after its legs, and a leg that was there before is none of its.
func TestEndOfStripedVolume(t *testing.T) {
	f := striped(t)
	f.look()
	f.allSay()
	f.look()
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Destroy = true })
	lu, _, _ := f.look()
	for i := range 3 { // its reconciler keeps it until the LUN is gone
		leg := f.leg(i)
		leg.Finalizers = []string{v1alpha1.Finalizer}
		if err := f.c.Update(t.Context(), leg); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.c.Delete(t.Context(), lu); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		lu, _, err := f.look()
		if c := meta.FindStatusCondition(lu.Status.Conditions, "Ready"); err != nil || c.Reason != v1alpha1.ReasonProgressing || !strings.Contains(c.Message, v1alpha1.LegName("lun-1", i)) {
			t.Fatalf("%+v, %v", c, err)
		}
		leg := f.leg(i)
		if !leg.Spec.Destroy || leg.DeletionTimestamp.IsZero() {
			t.Errorf("%+v", leg)
		}
		leg.Finalizers = nil
		if err := f.c.Update(t.Context(), leg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(lu)}); err != nil {
		t.Error(err)
	}
	if err := f.c.Get(t.Context(), client.ObjectKeyFromObject(lu), lu); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the volume is still there: %v", err)
	}

	f = striped(t)
	other := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.LegName("lun-1", 1)}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Leg: &v1alpha1.Leg{Of: "lun-1", UUID: uuidOfSource}}}
	if err := f.c.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	lu, _, err := f.look()
	if err != nil || condition(lu, "Ready") != "False Invalid" {
		t.Errorf("%+v, %v", lu.Status, err)
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Destroy = true })
	if lu, _, _ = f.look(); f.c.Delete(t.Context(), lu) != nil {
		t.Fatal("the volume cannot be deleted")
	}
	if _, err := f.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(lu)}); err != nil {
		t.Error(err)
	}
	if err := f.c.Get(t.Context(), client.ObjectKeyFromObject(lu), lu); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the leg of another volume keeps this one: %v", err)
	}
	if leg := f.leg(1); leg.Spec.Destroy || !leg.DeletionTimestamp.IsZero() {
		t.Errorf("the leg of another volume is destroyed: %+v", leg)
	}
}

// Homes alternate from the home of the volume on.
func TestHomesOfLegs(t *testing.T) {
	for home, want := range map[string]string{"": "aba", "a": "aba", "b": "bab"} {
		f := setup(t, func(lu *v1alpha1.LogicalUnit) {
			lu.Spec.Leg = &v1alpha1.Leg{Of: "volume", UUID: uuidOfSource, Striping: v1alpha1.Striping{LUNs: 3, StripeBytes: 64 << 10}}
		})
		volume := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "volume"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Striped: &v1alpha1.Striping{LUNs: 3, StripeBytes: 64 << 10},
			Placement: &v1alpha1.Placement{Pair: "p", Pool: "fast", Home: home, UUID: uuidOfSource}}}
		if err := f.c.Create(t.Context(), volume); err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range 3 {
			f.spec(func(lu *v1alpha1.LogicalUnit) {
				lu.Spec.Leg.Number, lu.Spec.Placement, lu.Finalizers = int32(i), nil, nil
			})
			f.look()
			var lu v1alpha1.LogicalUnit
			if err := f.c.Get(t.Context(), client.ObjectKey{Name: "lun-1"}, &lu); err != nil || lu.Spec.Placement == nil {
				t.Fatalf("%+v, %v", lu.Status, err)
			}
			if at := lu.Spec.Placement; at.Pair != "p" || at.Pool != "fast" || at.UUID != string(lu.UID) {
				t.Errorf("%+v", at)
			}
			got += lu.Spec.Placement.Home
		}
		if got != want {
			t.Errorf("home %q: %s", home, got)
		}
	}
	f := setup(t, func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.Leg = &v1alpha1.Leg{Of: "volume", UUID: uuidOfSource, Striping: v1alpha1.Striping{LUNs: 3, StripeBytes: 64 << 10}}
	})
	if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "False Invalid" || lu.Spec.Placement != nil {
		t.Errorf("without its volume: %+v, %v", lu, err)
	}
}
