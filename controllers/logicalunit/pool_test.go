package logicalunit

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// pools adds pools to the cluster and to the pair.
func (f *fixture) pools(names ...string) {
	f.Helper()
	c := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	for i, n := range names {
		c.Spec.Pools = append(c.Spec.Pools, v1alpha1.Pool{Name: n})
		if i == 0 {
			n = "default"
		}
		f.volumes = append(f.volumes, &targetv1.BackingVolume{Name: n, FreeBytes: 1 << 30, Nodes: []string{"a", "b"}})
	}
	if err := f.c.Create(f.Context(), c); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) add(o client.Object) {
	f.Helper()
	if err := f.c.Create(f.Context(), o); err != nil {
		f.Fatal(err)
	}
}

func TestPoolOfNewLUNsAndCopies(t *testing.T) {
	made := map[string]string{v1alpha1.AnnotationMade: "true"}
	for name, x := range map[string]struct {
		ask    string
		source *v1alpha1.Source
		lacks  bool // node b, of the pool fast
		pool   string
		volume string
		ready  string
		says   string
	}{
		"none named":        {"", nil, false, "main", "", "True Ready", ""},
		"first":             {"main", nil, false, "main", "", "True Ready", ""},
		"another one":       {"fast", nil, false, "fast", "fast", "True Ready", ""},
		"unknown":           {"slow", nil, false, "", "", "False Invalid", "spec.pool: StorageCluster c has no pool slow; its pools are main, fast"},
		"not on both yet":   {"fast", nil, true, "", "", "False PairDown", "its nodes do not both have a backing volume of pool fast yet"},
		"copy":              {"", &v1alpha1.Source{LogicalUnit: "src"}, false, "fast", "", "True Ready", ""},
		"copy, named":       {"fast", &v1alpha1.Source{Snapshot: "snap"}, false, "fast", "", "True Ready", ""},
		"copy, elsewhere":   {"main", &v1alpha1.Source{Snapshot: "snap"}, false, "", "", "False Invalid", "must be in the pool of the source, which is fast, not main"},
		"copy of an old":    {"", &v1alpha1.Source{LogicalUnit: "old"}, false, "main", "", "True Ready", ""},
		"copy of an old, b": {"main", &v1alpha1.Source{LogicalUnit: "old"}, false, "main", "", "True Ready", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Pool, lu.Spec.Source = x.ask, x.source })
			f.pools("main", "fast")
			if x.lacks {
				f.volumes[1].Lacks, f.volumes[1].Nodes = []string{"b"}, []string{"a"}
			}
			f.add(&v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "src", Annotations: made}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c",
				Placement: &v1alpha1.Placement{Pair: "p", Pool: "fast", UUID: "u1"}}})
			f.add(&v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "old", Annotations: made}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "c",
				Placement: &v1alpha1.Placement{Pair: "p", UUID: "u2"}}})
			f.add(&v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap", Annotations: made}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "c",
				Placement: &v1alpha1.SnapshotPlacement{Pair: "p", Pool: "fast", UUID: "u3"}}})
			lu, _, _ := f.look()
			if got := condition(lu, "Ready"); got != x.ready {
				t.Fatalf("%s: %+v", got, lu.Status)
			}
			if c := meta.FindStatusCondition(lu.Status.Conditions, "Ready"); !strings.Contains(c.Message, x.says) {
				t.Errorf("%s", c.Message)
			}
			switch {
			case x.pool == "" && (lu.Spec.Placement != nil || f.asked != nil):
				t.Errorf("%+v, %v", lu.Spec.Placement, f.asked)
			case x.pool != "" && (lu.Spec.Placement.Pool != x.pool || f.asked.Volume != x.volume || f.asked.Labels[v1alpha1.LabelPool] != x.pool):
				t.Errorf("%+v, %v", lu.Spec.Placement, f.asked)
			}
		})
	}
}

// Targets with one volume only, and a missing StorageCluster, work as before.
func TestFirstPoolWithEarlierTargetsOrWithoutCluster(t *testing.T) {
	f := setup(t, nil)
	f.pools("main", "fast")
	f.volumes = nil
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Pool != "main" || f.asked.Volume != "" {
		t.Errorf("%v, %+v", err, lu)
	}
	f = setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Pool = "fast" })
	f.pools("main", "fast")
	f.volumes = nil
	if lu, _, _ := f.look(); condition(lu, "Ready") != "False PairDown" {
		t.Errorf("%+v", lu)
	}
	f = setup(t, nil)
	if lu, _, err := f.look(); err != nil || lu.Spec.Placement.Pool != "" || f.asked.Volume != "" {
		t.Errorf("%v, %+v", err, lu)
	}
	f = setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Pool = "fast" })
	if lu, _, _ := f.look(); condition(lu, "Ready") != "False Invalid" {
		t.Errorf("%+v", lu)
	}
}

// The object is restored from the disks.
func TestPoolIsRestoredFromDisk(t *testing.T) {
	for _, x := range []struct{ volume, label, pool, asked string }{
		{"", "", "", ""}, {"default", "", "", ""}, {"default", "main", "main", ""}, {"fast", "fast", "fast", "fast"}, {"fast", "", "fast", "fast"},
	} {
		l := &targetv1.LUN{Uuid: "u", Volume: x.volume, Labels: map[string]string{LabelObject: "o", LabelCluster: "c"}}
		if x.label != "" {
			l.Labels[v1alpha1.LabelPool] = x.label
		}
		lu, err := FromDisk("p", l)
		if err != nil || lu.Spec.Placement.Pool != x.pool || lu.Spec.Pool != x.asked {
			t.Errorf("%+v: %+v, %v", x, lu, err)
		}
	}
}
