package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// worker with labels "key=value" and the keys of taints "!key".
func worker(name string, marks ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, m := range marks {
		if key, ok := strings.CutPrefix(m, "!"); ok {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
			continue
		}
		k, v, _ := strings.Cut(m, "=")
		n.Labels[k] = v
	}
	return n
}

func TestShortageNamesTheFields(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	host := v1alpha1.StorageClusterSpec{Pairs: 1, FailureDomainKey: corev1.LabelHostname}
	zones := v1alpha1.StorageClusterSpec{Pairs: 1, FailureDomainKey: zone}
	storage := v1alpha1.StorageClusterSpec{Pairs: 1, FailureDomainKey: corev1.LabelHostname, NodeSelector: map[string]string{"role": "storage"}}
	tolerant := host
	tolerant.Tolerations = []corev1.Toleration{{Key: "storage", Operator: corev1.TolerationOpExists}}
	for _, x := range []struct {
		name  string
		spec  v1alpha1.StorageClusterSpec
		nodes []corev1.Node
		says  []string // nothing: enough
	}{
		{"two workers", host, []corev1.Node{worker("w1"), worker("w2")}, nil},
		{"one worker", host, []corev1.Node{worker("w1")}, []string{"spec.pairs", "spec.failureDomainKey", `the value "w1"`, "add or label workers"}},
		{"none", host, nil, []string{"none of 0 workers"}},
		{"control plane", host, []corev1.Node{worker("w1"), worker("cp", "!node-role.kubernetes.io/control-plane")},
			[]string{`the value "w1"`, "1 have the taint node-role.kubernetes.io/control-plane", "spec.tolerations"}},
		{"tolerated", tolerant, []corev1.Node{worker("w1", "!storage"), worker("w2", "!storage")}, nil},
		{"an unreachable worker", host, []corev1.Node{worker("w1"), worker("w2", "!node.kubernetes.io/unreachable")}, nil},
		{"a cordoned worker", host, []corev1.Node{worker("w1"), worker("w2", "!node.kubernetes.io/unschedulable")}, nil},
		{"one zone", zones, []corev1.Node{worker("w1", zone+"=x"), worker("w2", zone+"=x")}, []string{zone + " (spec.failureDomainKey)", `the value "x"`}},
		{"no zones", zones, []corev1.Node{worker("w1"), worker("w2")}, []string{"none of 2 workers", "2 lack the label " + zone}},
		{"two zones", zones, []corev1.Node{worker("w1", zone+"=x"), worker("w2", zone+"=x"), worker("w3", zone+"=y")}, nil},
		{"selector", storage, []corev1.Node{worker("w1", "role=storage"), worker("w2")}, []string{"1 do not match spec.nodeSelector"}},
	} {
		got := shortage(&x.spec, couple{}, x.nodes)
		if len(x.says) == 0 && got != "" {
			t.Errorf("%s: %s", x.name, got)
		}
		for _, s := range x.says {
			if !strings.Contains(got, s) {
				t.Errorf("%s: %q lacks %q", x.name, got, s)
			}
		}
	}
}

// A couple of spec.domains needs workers of both values; one that lacks them does not hold up
// others.
func TestShortageOfACouple(t *testing.T) {
	s := &v1alpha1.StorageClusterSpec{FailureDomainKey: "zone", NodeSelector: map[string]string{"role": "storage"}}
	nodes := []corev1.Node{worker("w1", "zone=a", "role=storage"), worker("w2", "zone=b", "role=storage"), worker("w3", "zone=c"), worker("w4", "role=storage")}
	ab, bc := couple{"a", "b"}, couple{"b", "c"}
	out, short := possible(s, []newPair{{0, bc}, {1, ab}, {2, bc}, {3, couple{}}}, nodes)
	if len(out) != 2 || out[0].number != 1 || out[1].number != 3 {
		t.Errorf("%+v", out)
	}
	if short == nil || short.Reason != v1alpha1.ReasonTooFewNodes || strings.Count(short.Message, "spec.domains: a pair between b and c") != 1 {
		t.Fatalf("%+v", short)
	}
	for _, want := range []string{`no worker that can run target nodes has the value "c"`, "label zone (spec.failureDomainKey)", "1 do not match spec.nodeSelector", "1 lack the label zone", "add or label workers"} {
		if !strings.Contains(short.Message, want) {
			t.Errorf("%q lacks %q", short.Message, want)
		}
	}
	if out, short := possible(s, []newPair{{0, ab}}, nodes); len(out) != 1 || short != nil {
		t.Errorf("%v %+v", out, short)
	}
}

// A cluster with too few workers creates no pair, and its condition names the fields to change;
// with enough workers it creates the pairs. Existing pairs stay, whatever happens to workers.
func TestTooFewWorkersCreateNoPair(t *testing.T) {
	w := newWorld(t, "lone", 1)
	c := w.get()
	c.Spec.NodeSelector = map[string]string{"test": "lone"}
	w.ok(w.c.Update(w.ctx, c))
	add := func(i int) *corev1.Node {
		n := worker(fmt.Sprintf("lone-%d", i), "test=lone")
		w.ok(w.c.Create(w.ctx, &n))
		return &n
	}
	add(1)
	for range 2 {
		w.step()
	}
	x := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionReady)
	if x.Status != metav1.ConditionFalse || x.Reason != v1alpha1.ReasonTooFewNodes || !strings.Contains(x.Message, "spec.pairs") {
		t.Errorf("%+v", x)
	}
	if got := w.there(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if n := w.count("TooFewNodes spec.pairs"); n != 1 {
		t.Errorf("%d events", n)
	}
	second := add(2)
	w.step()
	if got := w.there(); len(got) != 1 {
		t.Fatalf("%v", got)
	}
	w.pair(0, 0, true)
	w.ok(w.c.Delete(w.ctx, second))
	w.step()
	if x := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionReady); x.Status != metav1.ConditionTrue {
		t.Errorf("%+v", x)
	}
	if got := w.there(); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
