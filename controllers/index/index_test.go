package index

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A LogicalUnit is found by every host of its spec and its status, whatever case the name is
// written in, by its pair, and as one without a placement.
func TestObjectsAreFoundByTheirIndexes(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	unit := func(name string, at *v1alpha1.Placement, spec, status []string) *v1alpha1.LogicalUnit {
		lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c", Placement: at}}
		for _, iqn := range spec {
			lu.Spec.Hosts = append(lu.Spec.Hosts, v1alpha1.HostAccess{IQN: iqn})
		}
		for _, iqn := range status {
			lu.Status.Hosts = append(lu.Status.Hosts, v1alpha1.HostMapping{IQN: iqn})
		}
		return lu
	}
	b := fake.NewClientBuilder().WithScheme(s).WithObjects(
		unit("mapped", &v1alpha1.Placement{Pair: "p"}, []string{"IQN.h"}, []string{"iqn.h"}),
		unit("fenced", &v1alpha1.Placement{Pair: "p"}, nil, []string{"iqn.h"}),
		unit("wanted", &v1alpha1.Placement{Pair: "q"}, []string{"iqn.h", "iqn.g"}, nil),
		unit("new", nil, nil, nil),
		&v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v1alpha1.HostSpec{IQN: "IQN.h"}})
	Each(func(o client.Object, name string, keys client.IndexerFunc) { b = b.WithIndex(o, name, keys) })
	c := b.Build()
	for _, x := range []struct {
		name, value string
		want        []string
	}{{UnitHost, "iqn.h", []string{"fenced", "mapped", "wanted"}}, {UnitHost, "iqn.g", []string{"wanted"}}, {UnitHost, "iqn.x", nil},
		{UnitPair, "p", []string{"fenced", "mapped"}}, {UnitUnplaced, "c", []string{"new"}}, {UnitUnplaced, "d", nil}} {
		list, err := Units(t.Context(), c, x.name, x.value)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range list {
			got = append(got, list[i].Name)
		}
		if slices.Sort(got); !slices.Equal(got, x.want) {
			t.Errorf("%s %s: %v, want %v", x.name, x.value, got, x.want)
		}
	}
	for iqn, want := range map[string]int{"iqn.H": 1, "iqn.x": 0} {
		if list, err := Hosts(t.Context(), c, iqn); err != nil || len(list) != want {
			t.Errorf("%s: %d hosts, %v", iqn, len(list), err)
		}
	}
}
