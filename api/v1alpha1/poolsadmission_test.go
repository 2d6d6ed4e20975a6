package v1alpha1_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func pool(name, class string) v1alpha1.Pool {
	return v1alpha1.Pool{Name: name, StorageClassName: class, Size: resource.MustParse("10Gi")}
}

// Pools are added, and stay what they are.
func TestPoolsOfACluster(t *testing.T) {
	c := newClient(t)
	x := cluster("pools")
	x.Spec.Pools = []v1alpha1.Pool{pool("main", "disks"), pool("fast", "flash")}
	if err := c.Create(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		name  string
		pools []v1alpha1.Pool
		says  string // nothing: it is taken
	}{
		{"removed", []v1alpha1.Pool{pool("main", "disks")}, "pools: a pool cannot be taken away or renamed"},
		{"the first one removed", []v1alpha1.Pool{pool("fast", "flash")}, "pools: a pool cannot be taken away or renamed"},
		{"renamed", []v1alpha1.Pool{pool("main", "disks"), pool("quick", "flash")}, "pools: a pool cannot be taken away or renamed"},
		{"another class", []v1alpha1.Pool{pool("main", "disks"), pool("fast", "disks")}, "storageClassName: a pool's class cannot be changed"},
		{"another first one", []v1alpha1.Pool{pool("fast", "flash"), pool("main", "disks")}, "pools: the first one holds the metadata"},
		{"before the first one", []v1alpha1.Pool{pool("new", "flash"), pool("main", "disks"), pool("fast", "flash")}, "pools: the first one holds the metadata"},
		{"default", []v1alpha1.Pool{pool("main", "disks"), pool("fast", "flash"), pool("default", "flash")}, "pools: only the first one may be called default"},
		{"a name", []v1alpha1.Pool{pool("main", "disks"), pool("fast", "flash"), pool("Cold_", "flash")}, "spec.pools[2].name"},
		{"too many", append([]v1alpha1.Pool{pool("main", "disks"), pool("fast", "flash")}, pool("c", "x"), pool("d", "x"), pool("e", "x"), pool("f", "x"),
			pool("g", "x"), pool("h", "x"), pool("i", "x")), "spec.pools"},
		{"added", []v1alpha1.Pool{pool("main", "disks"), pool("cold", "rust"), pool("fast", "flash")}, ""},
		{"in another order", []v1alpha1.Pool{pool("main", "disks"), pool("fast", "flash"), pool("cold", "rust")}, ""},
	} {
		next := x.DeepCopy()
		next.Spec.Pools = q.pools
		switch err := c.Update(t.Context(), next); {
		case q.says == "" && err != nil, q.says != "" && (err == nil || !strings.Contains(err.Error(), q.says)):
			t.Errorf("%s: %v", q.name, err)
		case err == nil:
			x = next
		}
	}
	l := lun("pool")
	l.Spec.Pool = "fast"
	if err := c.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"cold", ""} {
		l.Spec.Pool = to
		if err := c.Update(t.Context(), l); err == nil || !strings.Contains(err.Error(), "pool: a LUN stays in its pool") {
			t.Errorf("%q: %v", to, err)
		}
	}
}
