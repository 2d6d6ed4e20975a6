package groups

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/placement"
)

func finder(t *testing.T, objects ...client.Object) *Finder {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithIndex(&corev1.PersistentVolume{}, VolumeIndex, VolumeKeys).
		WithIndex(&v1alpha1.LogicalUnit{}, UnitIndex, UnitKeys).Build()
	return &Finder{Claims: c, Objects: c}
}

func claim(namespace, name, app string) client.Object {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name), Labels: map[string]string{"app": app}}}
}

func volume(name, namespace, claim, uid, driver, handle string) client.Object {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: claim, UID: types.UID(uid)}}}
	if driver != "" {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	}
	return pv
}

func unit(name, volume, namespace, claim string) client.Object {
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Volume: &v1alpha1.VolumeInfo{Name: volume, Namespace: namespace, PVC: claim}}}
}

func group(namespace, name, app string) *v1alpha1.ConsistencyGroup {
	g := &v1alpha1.ConsistencyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if app != "" {
		g.Spec.Selector.MatchLabels = map[string]string{"app": app}
	}
	return g
}

func TestClaimsOfAGroup(t *testing.T) {
	f := finder(t, claim("team", "d5", "db"), claim("team", "d0", "db"), claim("team", "d1", "db"), claim("team", "d2", "db"), claim("team", "d3", "db"), claim("team", "d4", "db"),
		claim("team", "web", "web"), claim("other", "d0", "db"),
		volume("pv0", "team", "d0", "uid-team-d0", v1alpha1.DriverName, "g-0"), unit("g-0", "pvc-x", "", ""), // bound, and the driver was told no claim
		unit("g-1", "pvc-uid-team-d1", "team", "d1"),    // requested, and not bound yet
		unit("g-0-old", "pvc-uid-before", "team", "d1"), // of a claim of the same name before it
		volume("pv2", "team", "d2", "uid-team-d2", "other.example.com", "g-0"),
		volume("pv3", "team", "d3", "uid-team-d3", "", ""),
		volume("pv4-old", "team", "d4", "uid-before", v1alpha1.DriverName, "g-0"), // kept, of a claim before it
		volume("pv5", "team", "d5", "uid-team-d5", v1alpha1.DriverName, "g-lost"))
	got, err := f.ClaimsOf(t.Context(), group("team", "g", "db"))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		name, lun, foreign string
		bound              bool
	}
	var rows []row
	for _, c := range got {
		x := row{c.Name, "", c.Foreign, c.Bound}
		if c.LUN != nil {
			x.lun = c.LUN.Name
		}
		rows = append(rows, x)
	}
	if want := []row{{"d0", "g-0", "", true}, {"d1", "g-1", "", false}, {"d2", "", "PersistentVolume pv2 of driver other.example.com", true}, {"d3", "", "PersistentVolume pv3", true},
		{"d4", "", "", false}, {"d5", "", "", true}}; !slices.Equal(rows, want) {
		t.Errorf("%+v", rows)
	}
}

func TestSelectorHasToSelectSomething(t *testing.T) {
	g := group("team", "g", "")
	if _, err := Selector(g); err == nil || !strings.Contains(err.Error(), "spec.selector is empty") {
		t.Error(err)
	}
	g.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Likes"}}
	if _, err := Selector(g); err == nil || !strings.Contains(err.Error(), "spec.selector: ") {
		t.Error(err)
	}
	if _, err := finder(t).ClaimsOf(t.Context(), g); err == nil {
		t.Error("an invalid selector selects claims")
	}
	g.Spec.Selector.MatchExpressions[0].Operator = metav1.LabelSelectorOpExists
	if _, err := Selector(g); err != nil {
		t.Error(err)
	}
}

func TestGroupOfALUN(t *testing.T) {
	now := metav1.Now()
	deleted := group("team", "z", "db")
	deleted.DeletionTimestamp, deleted.Finalizers = &now, []string{"example.com/x"}
	f := finder(t, claim("team", "d0", "db"), claim("team", "web", "web"), claim("team", "lone", "x"), claim("other", "d0", "db"),
		group("team", "db", "db"), deleted, group("team", "empty", ""), group("team", "web", "web"), group("team", "web2", "web"),
		volume("pv", "team", "d0", "uid-team-d0", v1alpha1.DriverName, "g-0"))
	lun := func(name, namespace, claim string) *v1alpha1.LogicalUnit {
		return unit(name, "", namespace, claim).(*v1alpha1.LogicalUnit)
	}
	for name, c := range map[string]struct {
		lun      *v1alpha1.LogicalUnit
		group    string
		conflict bool
	}{
		"bound":               {lun("g-0", "", ""), "db", false},
		"bound elsewhere now": {lun("g-0", "team", "lone"), "db", false},
		"requested":           {lun("g-1", "team", "d0"), "db", false},
		"no group":            {lun("g-1", "team", "lone"), "", false},
		"other namespace":     {lun("g-1", "other", "d0"), "", false},
		"no such claim":       {lun("g-1", "team", "d9"), "", false},
		"no claim known":      {lun("g-1", "", ""), "", false},
		"no volume":           {&v1alpha1.LogicalUnit{}, "", false},
		"two groups":          {lun("g-1", "team", "web"), "", true},
	} {
		ns, claim, err := f.ClaimOf(t.Context(), c.lun)
		if err != nil {
			t.Fatal(err)
		}
		g, err := f.Of(t.Context(), ns, claim)
		if errors.Is(err, ErrConflict) != c.conflict || !c.conflict && err != nil || (g == nil) != (c.group == "") || g != nil && g.Name != c.group {
			t.Errorf("%s: %v, %v", name, g, err)
		}
		if c.conflict && !strings.Contains(err.Error(), "team/web: web and web2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMemberOf(t *testing.T) {
	now := time.Unix(1e9, 0)
	until := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	for name, c := range map[string]struct {
		change func(*v1alpha1.LogicalUnit)
		home   string
		fixed  string
	}{
		"placed":                  {func(lu *v1alpha1.LogicalUnit) { lu.Status = v1alpha1.LogicalUnitStatus{} }, "a", ""},
		"as the pair says":        {nil, "b", ""},
		"preferredNode":           {func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "a" }, "a", "preferredNode of the LUN is node a"},
		"pin":                     {func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode, lu.Spec.PreferredNode = "a", "b" }, "a", "pinned to node a"},
		"pin that is ending":      {func(lu *v1alpha1.LogicalUnit) { lu.Status.PinnedNode = "a" }, "a", "pinned to node a"},
		"transfer by a person":    {func(lu *v1alpha1.LogicalUnit) { lu.Status.HeldUntil = until(time.Minute) }, "b", "holds the LUN at node b until 2001-09-09T01:47:40Z"},
		"transfer that has ended": {func(lu *v1alpha1.LogicalUnit) { lu.Status.HeldUntil = until(-time.Minute) }, "b", ""},
	} {
		lu := &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: "p", Home: "a"}}, Status: v1alpha1.LogicalUnitStatus{Owner: "b", PreferredNode: "b"}}
		if c.change != nil {
			c.change(lu)
		}
		m := MemberOf("d0", lu, now)
		if m.Name != "d0" || m.Pair != "p" || m.Home != c.home || (m.Fixed == "") != (c.fixed == "") || !strings.Contains(m.Fixed, c.fixed) || m.Owner != lu.Status.Owner {
			t.Errorf("%s: %+v", name, m)
		}
	}
	striped := &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Striped: &v1alpha1.Striping{LUNs: 2}, Placement: &v1alpha1.Placement{Pair: "p", Home: "a"}}}
	if m := MemberOf("d0", striped, now); m.Home+m.Owner != "" || !strings.Contains(m.Fixed, "striped") {
		t.Errorf("a striped volume counts at a node: %+v", m)
	}
	placed := &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: "p", Home: "b"}}}
	got := Members([]Claim{{Name: "d0"}, {Name: "d1", LUN: &v1alpha1.LogicalUnit{}}, {Name: "d2", LUN: placed}}, now)
	if !reflect.DeepEqual(got, []placement.Member{{Name: "d2", Pair: "p", Home: "b"}}) {
		t.Errorf("%+v", got)
	}
}

// Of what is not read nothing is kept in memory.
func TestCacheKeepsLittle(t *testing.T) {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "d0", UID: "u", Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"x": "y"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}}}
	got, err := strip(m)
	if x := got.(*metav1.PartialObjectMetadata); err != nil || x.Annotations != nil || x.ManagedFields != nil || x.Labels["app"] != "db" || x.UID != "u" {
		t.Errorf("%+v, %v", x, err)
	}
	if other, err := strip("x"); err != nil || other != "x" {
		t.Errorf("%v, %v", other, err)
	}
}
