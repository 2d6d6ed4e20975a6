package pair

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// list is "NAME=QUANTITY …".
func list(t *testing.T, text string) corev1.ResourceList {
	t.Helper()
	var out corev1.ResourceList
	for _, x := range strings.Fields(text) {
		name, value, ok := strings.Cut(x, "=")
		if !ok {
			t.Fatalf("%q", x)
		}
		if out == nil {
			out = corev1.ResourceList{}
		}
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

func TestResourcesHaveDefaultsAndLimits(t *testing.T) {
	for _, x := range []struct{ requests, limits, wantRequests, wantLimits, goLimit, refused string }{
		{"", "", "cpu=250m memory=512Mi", "memory=4Gi", "3865470566", ""},
		{"cpu=2", "", "cpu=2 memory=512Mi", "memory=4Gi", "3865470566", ""},
		{"memory=1Gi", "", "cpu=250m memory=1Gi", "memory=4Gi", "3865470566", ""},
		{"memory=6Gi", "", "cpu=250m memory=6Gi", "memory=6Gi", "5798205849", ""},
		{"", "memory=1Gi", "cpu=250m memory=512Mi", "memory=1Gi", "966367641", ""},
		{"", "memory=512Mi", "cpu=250m memory=512Mi", "memory=512Mi", "483183820", ""},
		{"memory=2G", "memory=2G ephemeral-storage=1Gi", "cpu=250m memory=2G", "memory=2G ephemeral-storage=1Gi", "1800000000", ""},
		{"hugepages-2Mi=64Mi", "hugepages-2Mi=64Mi", "cpu=250m memory=512Mi hugepages-2Mi=64Mi", "memory=4Gi hugepages-2Mi=64Mi", "3865470566", ""},
		{"", "memory=511Mi", "", "", "", "spec.resources.limits.memory: 511Mi is less than the 512Mi"},
		{"", "memory=1", "", "", "", "spec.resources.limits.memory"},
		{"memory=2Gi", "memory=1Gi", "", "", "", "spec.resources.requests.memory: 2Gi is more than limits.memory, 1Gi"},
	} {
		c := &v1alpha1.StorageCluster{}
		c.Spec.Resources = corev1.ResourceRequirements{Requests: list(t, x.requests), Limits: list(t, x.limits)}
		before := c.DeepCopy()
		got, err := resources(c)
		if x.refused != "" {
			if err == nil || !strings.Contains(err.Error(), x.refused) {
				t.Errorf("%+v: %v", x, err)
			}
			continue
		}
		if !equality.Semantic.DeepEqual(c, before) {
			t.Errorf("%+v: the cluster was changed", x)
		}
		want := corev1.ResourceRequirements{Requests: list(t, x.wantRequests), Limits: list(t, x.wantLimits)}
		if err != nil || !equality.Semantic.DeepEqual(got, want) || goLimit(got) != x.goLimit {
			t.Errorf("%+v: %+v, GOMEMLIMIT %s, %v", x, got, goLimit(got), err)
		}
		if c.Spec.Resources = withoutDefaults(got); x.requests == "" && x.limits == "" && !equality.Semantic.DeepEqual(c.Spec.Resources, before.Spec.Resources) {
			t.Errorf("defaults are left: %+v", c.Spec.Resources)
		}
		if again, err := resources(c); err != nil || !equality.Semantic.DeepEqual(got, again) {
			t.Errorf("%+v: rebuilt %+v, not %+v: %v", x, again, got, err)
		}
	}
}

// Target pods are not the first victims of the OOM killer, and GOMEMLIMIT is below the memory limit
// of the container.
func TestPodsHaveResourcesAndPriority(t *testing.T) {
	w := newWorld(t, "resources")
	w.down["a"], w.down["b"] = true, true
	check := func(request, limit, goLimit string) {
		t.Helper()
		w.step()
		for _, n := range Nodes {
			spec := w.set(n).Spec.Template.Spec
			if spec.PriorityClassName != "system-node-critical" {
				t.Errorf("priority %s: the kubelet gives its containers no protection from the kernel", spec.PriorityClassName)
			}
			x := spec.Containers[0]
			if got := x.Resources.Requests.Memory().String(); got != request {
				t.Errorf("requests %s, not %s", got, request)
			}
			if got := x.Resources.Limits.Memory().String(); got != limit {
				t.Errorf("limit %s, not %s", got, limit)
			}
			if x.Resources.Requests.Cpu().IsZero() || !x.Resources.Limits.Cpu().IsZero() {
				t.Errorf("cpu: %+v", x.Resources)
			}
			i := slices.IndexFunc(x.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
			if i < 0 || x.Env[i].Value != goLimit {
				t.Errorf("GOMEMLIMIT is not %s: %+v", goLimit, x.Env)
			}
		}
	}
	check("512Mi", "4Gi", "3865470566")
	w.setResources(corev1.ResourceRequirements{Limits: list(t, "memory=1Gi")})
	check("512Mi", "1Gi", "966367641")
	w.setResources(corev1.ResourceRequirements{Requests: list(t, "memory=6Gi")})
	check("6Gi", "6Gi", "5798205849")

	// The API server rejects invalid resources.
	for text, bad := range map[string]corev1.ResourceRequirements{
		"resources.limits.memory: a target node needs 512Mi at least":       {Limits: list(t, "memory=64Mi")},
		"resources.requests.memory: it is more than limits.memory":          {Limits: list(t, "memory=1Gi"), Requests: list(t, "memory=2Gi")},
		"resources.limits.cpu: a target node that is throttled misses its ": {Limits: list(t, "cpu=4")},
	} {
		c := w.cluster()
		c.Spec.Resources = bad
		if err := w.c.Update(w.ctx, c); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v is not rejected with %q: %v", bad, text, err)
		}
	}
	// An object that is older than the rule keeps its pods, and the error names the field.
	c := w.cluster()
	c.Spec.Resources = corev1.ResourceRequirements{Limits: list(t, "memory=64Mi")}
	before := w.set("a").ResourceVersion
	err := w.r.ensureTargets(w.ctx, c, w.get(), nil)
	if x, ok := asWait(err); !ok || x.reason != v1alpha1.ReasonInvalid || !strings.Contains(x.message, "spec.resources.limits.memory") {
		t.Errorf("%v", err)
	}
	if w.set("a").ResourceVersion != before {
		t.Error("the node was changed")
	}
}

// Pods of a release without requests and limits are restarted one node at a time when the operator
// is upgraded, even if spec.image keeps their image.
func TestUpgradeRollsPodsWithoutResources(t *testing.T) {
	w := newWorld(t, "protect")
	w.run()
	w.step()
	for i, n := range Nodes {
		p := w.pod(n, []string{"worker-1", "worker-2"}[i])
		p.Annotations[annotationRevision] = "of-0.1.0"
		w.ok(w.c.Update(w.ctx, p))
	}
	var order []string
	for len(order) < 2 && w.ctx.Err() == nil {
		w.step()
		for _, n := range Nodes {
			if slices.Contains(order, n) || !w.gone(n) {
				continue
			}
			order = append(order, n)
			if len(order) == 1 && w.gone(Other(n)) {
				t.Fatalf("node %s was taken down with %s", Other(n), n)
			}
			w.ok(w.pair.Term(slices.Index(Nodes, n)))
			p := w.pod(n, "")
			if p.Spec.Containers[0].Resources.Limits.Memory().String() != "4Gi" {
				t.Fatalf("%+v", p.Spec.Containers[0].Resources)
			}
			w.step()
			if len(order) == 1 && w.gone(Other(n)) {
				t.Fatalf("node %s was taken down while %s was away", Other(n), n)
			}
			w.ok(w.pair.StartNode(slices.Index(Nodes, n)))
			w.ok(w.pair.WaitInSync(w.ctx))
		}
	}
	w.step()
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionTrue || len(order) != 2 {
		t.Errorf("%v %+v", order, c)
	}
}

func (w *world) cluster() *v1alpha1.StorageCluster {
	w.t.Helper()
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	return c
}

func (w *world) setResources(r corev1.ResourceRequirements) {
	w.t.Helper()
	c := w.cluster()
	c.Spec.Resources = r
	w.ok(w.c.Update(w.ctx, c))
}
