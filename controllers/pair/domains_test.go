package pair

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// lay gives the cluster spec.domains, and the nodes of the pair the domains that the reconciler of
// clusters would.
func (w *world) lay(key, a, b string) {
	w.t.Helper()
	c := w.cluster()
	c.Spec.FailureDomainKey, c.Spec.Domains = key, []v1alpha1.Domains{{Between: []string{"x", "y"}, Pairs: 1}}
	w.ok(w.c.Update(w.ctx, c))
	p := w.get()
	p.Spec.Nodes[0].Domain, p.Spec.Nodes[1].Domain = a, b
	w.ok(w.c.Update(w.ctx, p))
}

// required is what a node's pod asks of its worker.
func (w *world) required(node string) []corev1.NodeSelectorTerm {
	w.t.Helper()
	a := w.set(node).Spec.Template.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// Each node is scheduled in its failure domain, and from then on where its disk is. The condition
// of one that cannot be scheduled names the domain.
func TestNodesAreScheduledInTheirDomains(t *testing.T) {
	w := newWorld(t, "zoned")
	w.down["a"], w.down["b"] = true, true
	w.lay("rack", "r1", "r2")
	w.step()
	for i, n := range Nodes {
		want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{[]string{"r1", "r2"}[i]}}}}}
		if got := w.required(n); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("node %s: %+v", n, got)
		}
		claim := &corev1.PersistentVolumeClaim{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: ClaimName(w.name, n, 0)}, claim))
		if got := claim.Annotations[annotationDomain]; got != []string{"rack=r1", "rack=r2"}[i] {
			t.Errorf("claim of node %s: %q", n, got)
		}
	}
	revision := w.set("a").Spec.Template.Annotations[annotationRevision]
	w.pod("a", "w1")
	pod := w.pod("b", "")
	said := "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: said}}
	w.ok(w.c.Status().Update(w.ctx, pod))
	w.step()
	c := w.condition(v1alpha1.ConditionReady)
	for _, s := range []string{said, `has the value "r2" of rack (spec.domains`, "add or label workers", "change spec.domains and delete the TargetPair"} {
		if !strings.Contains(c.Message, s) {
			t.Errorf("%q lacks %q", c.Message, s)
		}
	}
	w.step()
	want := []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"w1"}}}}}
	if got := w.required("a"); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("a node with a disk is bound to more than its worker: %+v", got)
	}
	if got := w.set("a").Spec.Template.Annotations[annotationRevision]; got != revision {
		t.Error("the node would be restarted")
	}
}

// A pair without domains does not notice that its cluster gets some: no pod is restarted or bound.
func TestDomainsLeaveOlderPairsAlone(t *testing.T) {
	w := newWorld(t, "unzoned")
	w.down["a"], w.down["b"] = true, true
	w.step()
	before := w.set("a").Spec.Template
	if w.required("a") != nil || w.set("a").Annotations[annotationDomains] != "" {
		t.Errorf("%+v", before.Spec.Affinity)
	}
	c := w.cluster()
	c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"x", "y"}, Pairs: 1}}
	w.ok(w.c.Update(w.ctx, c))
	w.step()
	if now := w.set("a"); !equality.Semantic.DeepEqual(now.Spec.Template, before) || now.Annotations[annotationDomains] == "" {
		t.Errorf("%+v", now)
	}
}

// A node that is replaced stays in its domain, unless an administrator names a worker elsewhere.
func TestReplacementStaysInItsDomain(t *testing.T) {
	w := newWorld(t, "rezoned")
	w.run()
	for name, rack := range map[string]string{"rezoned-1": "r1", "rezoned-2": "r2", "rezoned-3": "r3"} {
		w.ok(w.c.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}))
	}
	w.lay("rack", "r1", "r2")
	w.step()
	w.pod("a", "rezoned-1")
	w.pod("b", "rezoned-2")
	w.step()
	w.step()
	replace := func(worker string) {
		t.Helper()
		p := w.get()
		p.Spec.Replace = &v1alpha1.Replace{Node: "b", Worker: worker}
		w.ok(w.c.Update(w.ctx, p))
		w.step()
	}
	w.ok(w.c.Delete(w.ctx, w.pod("b", ""), client.GracePeriodSeconds(0))) // with its worker
	replace("")
	if n := w.get().Spec.Nodes[1]; n.Domain != "r2" || n.Disk != 1 || n.Worker != "" {
		t.Fatalf("%+v", n)
	}
	if got := w.required("b"); len(got) != 1 || len(got[0].MatchExpressions) != 1 || got[0].MatchExpressions[0].Values[0] != "r2" {
		t.Errorf("%+v", got)
	}
	replace("rezoned-3")
	if n := w.get().Spec.Nodes[1]; n.Domain != "r3" || n.Disk != 2 || n.Worker != "rezoned-3" {
		t.Fatalf("%+v", n)
	}
	claim := &corev1.PersistentVolumeClaim{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: ClaimName(w.name, "b", 2)}, claim))
	if got := claim.Annotations[annotationDomain]; got != "rack=r3" {
		t.Errorf("%q", got)
	}
	replace("gone")
	if n := w.get().Spec.Nodes[1]; n.Domain != "r3" || n.Worker != "gone" {
		t.Errorf("%+v", n)
	}
}
