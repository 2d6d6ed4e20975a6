package objects

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// A size that the pools of a volume's pairs may not promise is refused before it is in the spec,
// where it would stay; so is the capacity for a new volume.
func TestSizesThatMayNotBePromisedAreRefused(t *testing.T) {
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	pair := func(name, promised string) *v1alpha1.TargetPair {
		return &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TargetPairSpec{Cluster: "main"}, Status: v1alpha1.TargetPairStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True"}},
			Pools:      []v1alpha1.PoolStatus{{Name: "first", Capacity: q("10Gi"), Free: q("9Gi"), Promised: q(promised), Promisable: q("20Gi")}}}}
	}
	unit := func(name string, at *v1alpha1.Placement) *v1alpha1.LogicalUnit {
		lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
			Spec: v1alpha1.LogicalUnitSpec{Cluster: "main", Size: *q("4Gi"), Placement: at}}
		lu.Status.Size = q("4Gi")
		return lu
	}
	c := api(t, nil, pair("p", "16Gi"), pair("r", "19Gi"), unit("one", &v1alpha1.Placement{Pair: "p"}), unit("lost", &v1alpha1.Placement{Pair: "gone"}),
		unit("over", &v1alpha1.Placement{Pair: "p", Pool: "first", LegPairs: v1alpha1.LegPairsOf([]string{"p", "r"})}))
	b := New(c)
	for _, x := range []struct {
		id      string
		size    string
		refused string
	}{
		{"one", "9Gi", "pair p"}, {"one", "8Gi", ""}, {"one", "4Gi", ""}, {"one", "1Gi", ""}, {"lost", "40Gi", ""},
		{"over", "6Gi", ""}, {"over", "7Gi", "pair r"},
	} {
		lu := &v1alpha1.LogicalUnit{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: x.id}, lu); err != nil {
			t.Fatal(err)
		}
		err := b.promises(t.Context(), lu, q(x.size).Value())
		if (err != nil) != (x.refused != "") || err != nil && (!errors.Is(err, backend.ErrExhausted) || !strings.Contains(err.Error(), x.refused) || !strings.Contains(err.Error(), "overcommitPercent")) {
			t.Errorf("%s to %s: %v", x.id, x.size, err)
		}
	}
	if _, err := b.ExpandVolume(t.Context(), "one", q("9Gi").Value()); !errors.Is(err, backend.ErrExhausted) {
		t.Errorf("ExpandVolume: %v", err)
	}
	lu := &v1alpha1.LogicalUnit{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "one"}, lu); err != nil || lu.Spec.Size.String() != "4Gi" {
		t.Errorf("a size that was refused is in the spec: %s, %v", lu.Spec.Size.String(), err)
	}
	if got, err := b.Capacity(t.Context(), "main", "", nil); err != nil || got != q("4Gi").Value() {
		t.Errorf("capacity: %d, %v", got, err)
	}
}
