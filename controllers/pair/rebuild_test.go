package pair

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The objects made for a pair suffice to rebuild StorageCluster and TargetPair without a restart of
// any target.
func TestRebuildRestartsNoTarget(t *testing.T) {
	w := newWorld(t, "again")
	w.down["a"], w.down["b"] = true, true
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: "again"}, c))
	c.Spec.NodeSelector = map[string]string{"disk": "fast"}
	c.Spec.Tolerations = []corev1.Toleration{{Key: "storage", Operator: corev1.TolerationOpExists}}
	c.Spec.FailureDomainKey, c.Spec.Image, c.Spec.Security.CHAP = "rack", "gemel:2", v1alpha1.CHAPNone
	c.Spec.Scrub = v1alpha1.Scrub{Schedule: "30 1 * * *", Suspend: true, Repair: new(false), BytesPerSecond: new(resource.MustParse("128Mi")), Parallel: 3}
	c.Spec.Balancing = &v1alpha1.Balancing{CPUs: new(resource.MustParse("1500m"))}
	c.Spec.Domains = []v1alpha1.Domains{{Between: []string{"r2", "r1"}, Pairs: 1}}
	w.ok(w.c.Update(w.ctx, c))
	laid := w.get()
	laid.Spec.Nodes[0].Domain, laid.Spec.Nodes[1].Domain = "r1", "r2"
	w.ok(w.c.Update(w.ctx, laid))
	w.step()
	w.pod("a", "w1")
	w.pod("b", "w2")
	w.step()
	w.step()
	p, was := w.get(), w.set("a").Spec.Template.Annotations

	r, err := Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	if len(r.Clusters) != 1 || len(r.Pairs) != 1 || len(r.Notes) != 0 {
		t.Fatalf("%+v", r)
	}
	c.Spec.Balancing.Mode, c.Spec.Balancing.FailBackDelay = "", nil // the API server's defaults
	if !equality.Semantic.DeepEqual(r.Clusters[0].Spec, c.Spec) {
		t.Errorf("cluster %+v, was %+v", r.Clusters[0].Spec, c.Spec)
	}
	if got := r.Pairs[0]; got.Name != p.Name || !equality.Semantic.DeepEqual(got.Spec.Nodes, p.Spec.Nodes) || got.Spec.Cluster != p.Spec.Cluster {
		t.Errorf("pair %+v, was %+v", got.Spec, p.Spec)
	}

	// Deleted by force and created again: the targets stay unchanged.
	w.ok(w.c.Get(w.ctx, client.ObjectKeyFromObject(c), c))
	for _, o := range []client.Object{p, c} {
		o.SetFinalizers(nil)
		w.ok(w.c.Update(w.ctx, o))
		w.ok(client.IgnoreNotFound(w.c.Delete(w.ctx, o)))
	}
	w.step()
	before := w.set("a")
	w.ok(w.c.Create(w.ctx, &r.Clusters[0]))
	w.ok(w.c.Create(w.ctx, &r.Pairs[0]))
	w.step()
	if s := w.set("a"); s.UID != before.UID || s.Generation != before.Generation || s.Spec.Template.Annotations["gemel.storage/revision"] != was["gemel.storage/revision"] {
		t.Errorf("the target would be restarted: %v, was %v", s.Spec.Template, before.Spec.Template)
	}

	// Only the claims are left.
	for _, o := range w.parts() {
		w.ok(w.c.Delete(w.ctx, o))
	}
	r, err = Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	if len(r.Pairs) != 1 || len(r.Clusters[0].Spec.Pools) != 1 || r.Clusters[0].Spec.Pools[0].StorageClassName != "disks" || len(r.Notes) != 3 {
		t.Errorf("%+v", r)
	}
	if x := r.Clusters[0].Spec; x.FailureDomainKey != "rack" || len(x.Domains) != 1 || x.Domains[0].Pairs != 1 || r.Pairs[0].Spec.Nodes[0].Domain != "r1" || r.Pairs[0].Spec.Nodes[1].Domain != "r2" {
		t.Errorf("domains %+v, pair %+v", x, r.Pairs[0].Spec)
	}
	if r, err := Rebuild(w.ctx, w.c, metav1.NamespaceDefault); err != nil || len(r.Pairs) != 0 {
		t.Errorf("%+v %v", r, err)
	}
}
