package kubectlgemel

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func zoneTerm(zone string) []v1alpha1.TopologyTerm {
	return []v1alpha1.TopologyTerm{{MatchLabels: map[string]v1alpha1.TopologyValue{corev1.LabelTopologyZone: v1alpha1.TopologyValue(zone)}}}
}

// A bound claim names what its volume is restricted to, and by what.
func TestWhyShowsTheRestriction(t *testing.T) {
	for name, c := range map[string]struct {
		by   string
		want string
	}{
		"pool":     {"pool fast of StorageCluster main (spec.pools[].accessibleFrom)", "restricted               to workers with topology.kubernetes.io/zone=a, by pool fast of StorageCluster main (spec.pools[].accessibleFrom)\n"},
		"imported": {"", "restricted               to workers with topology.kubernetes.io/zone=a, by pool or StorageClass\n"},
	} {
		w := world()
		lu := w["lun"].(*v1alpha1.LogicalUnit)
		lu.Spec.AccessibleFrom, lu.Annotations = zoneTerm("a"), map[string]string{v1alpha1.AnnotationRestricted: c.by, v1alpha1.AnnotationPlaced: "pair main-p0 was chosen"}
		var out bytes.Buffer
		if err := Why(t.Context(), clientOf(w), "app", "data", &out); err != nil || !strings.Contains(out.String(), c.want) || !strings.Contains(out.String(), "near all workers that may use it") {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
	var out bytes.Buffer
	if err := Why(t.Context(), clientOf(world()), "app", "data", &out); err != nil || strings.Contains(out.String(), "restricted") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// A claim that waits says which workers its pod can be scheduled to, and what keeps it from all of
// them.
func TestWhyShowsWhereAClaimCanBeProvisioned(t *testing.T) {
	allowed := func(key string, values ...string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: values}}}}
	}
	for name, c := range map[string]struct {
		pool    []v1alpha1.TopologyTerm
		class   []corev1.TopologySelectorTerm
		change  func(map[string]client.Object)
		want    string // nothing: no line
		remedy  string
		keys    []string // that the node plugin reports
		another bool     // driver
	}{
		"neither": {},
		"pool":    {pool: zoneTerm("a"), want: "ok      restricted               pool fast of StorageCluster main is for workers with topology.kubernetes.io/zone=a: 1 of 2 workers, for example w1\n"},
		"class":   {class: allowed(corev1.LabelTopologyZone, "a", "b"), want: "ok      restricted               StorageClass gemel (allowedTopologies) is for workers with topology.kubernetes.io/zone=a/b: 2 of 2 workers, for example w1\n"},
		"both":    {pool: zoneTerm("b"), class: allowed(corev1.LabelTopologyZone, "a", "b"), want: "zone=b; StorageClass gemel (allowedTopologies) is for workers with topology.kubernetes.io/zone=a/b: 1 of 2 workers, for example w2\n"},
		"nobody": {pool: zoneTerm("c"), want: "BROKEN  restricted               pool fast of StorageCluster main is for workers with topology.kubernetes.io/zone=c, and no worker with the node plugin is\n",
			remedy: "label the workers"},
		"nothing in common":  {pool: zoneTerm("a"), class: allowed(corev1.LabelTopologyZone, "b"), want: "and no worker with the node plugin is\n"},
		"without the plugin": {pool: zoneTerm("a"), change: func(w map[string]client.Object) { delete(w, "w1") }, want: "and no worker with the node plugin is\n"},
		"not reported": {pool: zoneTerm("a"), keys: []string{"csi.gemel.storage/reach"}, want: "BROKEN  restricted               pool fast of StorageCluster main is for workers with topology.kubernetes.io/zone=a, " +
			"but the node plugin does not report the label topology.kubernetes.io/zone, for example on worker w1\n", remedy: "node.topologyKeys"},
		"another driver": {pool: zoneTerm("a"), another: true},
		"no class":       {pool: zoneTerm("a"), change: func(w map[string]client.Object) { delete(w, "class") }},
		"no cluster":     {pool: zoneTerm("a"), change: func(w map[string]client.Object) { delete(w, "cluster") }},
		"class of an annotation": {pool: zoneTerm("a"), change: func(w map[string]client.Object) {
			pvc := w["claim"].(*corev1.PersistentVolumeClaim)
			pvc.Annotations, pvc.Spec.StorageClassName = map[string]string{corev1.BetaStorageClassAnnotation: "gemel"}, nil
		}, want: "1 of 2 workers"},
	} {
		w := world()
		keys := c.keys
		if keys == nil {
			keys = []string{"csi.gemel.storage/reach", corev1.LabelTopologyZone}
		}
		driver := v1alpha1.DriverName
		if c.another {
			driver = "example.org/disk"
		}
		for worker, zone := range map[string]string{"w1": "a", "w2": "b"} {
			w["node "+worker] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: worker, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
			w[worker] = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: worker}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: v1alpha1.DriverName, NodeID: worker, TopologyKeys: keys}}}}
		}
		w["cluster"].(*v1alpha1.StorageCluster).Spec.Pools = []v1alpha1.Pool{{Name: "first"}, {Name: "fast", AccessibleFrom: c.pool}}
		w["class"] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gemel"}, Provisioner: driver, Parameters: map[string]string{"cluster": "main", "pool": "fast"}, AllowedTopologies: c.class}
		pvc := w["claim"].(*corev1.PersistentVolumeClaim)
		pvc.Status.Phase, pvc.Spec.StorageClassName = corev1.ClaimPending, new("gemel")
		if c.change != nil {
			c.change(w)
		}
		var out bytes.Buffer
		if err := Why(t.Context(), clientOf(w), "app", "data", &out); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
		if (c.want == "") == strings.Contains(out.String(), "restricted") || !strings.Contains(out.String(), c.want) || !strings.Contains(out.String(), c.remedy) {
			t.Errorf("%s:\n%s", name, &out)
		}
	}
}
