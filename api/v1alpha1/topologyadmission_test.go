package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const zone = "topology.kubernetes.io/zone"

// terms makes one term of each list of keys and values.
func terms(list ...[]string) (out []v1alpha1.TopologyTerm) {
	for _, kv := range list {
		t := v1alpha1.TopologyTerm{MatchLabels: map[string]v1alpha1.TopologyValue{}}
		for i := 0; i < len(kv); i += 2 {
			t.MatchLabels[kv[i]] = v1alpha1.TopologyValue(kv[i+1])
		}
		out = append(out, t)
	}
	return out
}

// many are that many terms, one with that many labels.
func many(n, labels int) (out []v1alpha1.TopologyTerm) {
	for i := range n {
		t := v1alpha1.TopologyTerm{MatchLabels: map[string]v1alpha1.TopologyValue{}}
		for k := range labels {
			t.MatchLabels[fmt.Sprintf("example.com/%s-%d", strings.Repeat("k", 50), k)] = v1alpha1.TopologyValue(fmt.Sprint("v", i))
		}
		out = append(out, t)
	}
	return out
}

// The workers that reach a pool are labels that workers report, and can be changed.
func TestWorkersOfAPool(t *testing.T) {
	c := newClient(t)
	x := cluster("restricted")
	x.Spec.Pools[0].AccessibleFrom = terms([]string{zone, "a"})
	if err := c.Create(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		name string
		from []v1alpha1.TopologyTerm
		says string // nothing: it is taken
	}{
		{"loosened", terms([]string{zone, "a"}, []string{zone, "b", "example.com/rack", "1"}), ""},
		{"tightened", terms([]string{zone, "b", "rack", "Rack_1.x"}), ""},
		{"the most", many(16, 16), ""},
		{"none", nil, ""},
		{"again", terms([]string{zone, "a"}), ""},
		{"too many terms", many(17, 1), "accessibleFrom: Too many"},
		{"too many labels", many(1, 17), "matchLabels: Too many"},
		{"an empty term", terms(nil), "matchLabels"},
		{"the worker's name", terms([]string{"kubernetes.io/hostname", "w1"}), "accessibleFrom: workers report neither kubernetes.io/hostname"},
		{"the driver's key", terms([]string{"csi.gemel.storage/reach", "all"}), "accessibleFrom: workers report neither"},
		{"a key", terms([]string{"a b", "x"}), "accessibleFrom: a key is not that of a label"},
		{"a long key", terms([]string{"example.com/" + strings.Repeat("k", 400), "x"}), "accessibleFrom: a key is not that of a label"},
		{"no value", terms([]string{zone, ""}), "accessibleFrom: a value is empty"},
		{"a value", terms([]string{zone, "a b"}), "accessibleFrom: a value is empty, or is not that of a label"},
		{"a long value", terms([]string{zone, strings.Repeat("z", 64)}), "accessibleFrom[0].matchLabels"},
	} {
		next := x.DeepCopy()
		next.Spec.Pools[0].AccessibleFrom = q.from
		switch err := c.Update(t.Context(), next); {
		case q.says == "" && err != nil, q.says != "" && (err == nil || !strings.Contains(err.Error(), q.says)):
			t.Errorf("%s: %v", q.name, err)
		case err == nil:
			x = next
		}
	}
}

// What a LUN is restricted to is the node affinity of its volume: it is never changed.
func TestWorkersOfALogicalUnit(t *testing.T) {
	c := newClient(t)
	for name, q := range map[string]struct{ from, to []v1alpha1.TopologyTerm }{
		"changed":   {terms([]string{zone, "a"}), terms([]string{zone, "b"})},
		"loosened":  {terms([]string{zone, "a"}), terms([]string{zone, "a"}, []string{zone, "b"})},
		"taken":     {terms([]string{zone, "a"}), nil},
		"given":     {nil, terms([]string{zone, "a"})},
		"the-most":  {many(64, 16), many(63, 16)},
		"of-labels": {many(2, 2), many(2, 1)},
	} {
		l := lun("terms-" + name)
		l.Spec.AccessibleFrom = q.from
		if err := c.Create(t.Context(), l); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		l.Spec.PreferredNode = "a"
		if err := c.Update(t.Context(), l); err != nil {
			t.Errorf("%s: another field: %v", name, err)
		}
		l.Spec.AccessibleFrom = q.to
		if err := c.Update(t.Context(), l); err == nil || !strings.Contains(err.Error(), "accessibleFrom: it is the node affinity of the PersistentVolume") {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := lun("terms-refused")
	l.Spec.AccessibleFrom = many(65, 1)
	if err := c.Create(t.Context(), l); err == nil || !strings.Contains(err.Error(), "spec.accessibleFrom: Too many") {
		t.Error(err)
	}
}
