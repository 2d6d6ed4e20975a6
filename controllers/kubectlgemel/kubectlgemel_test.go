package kubectlgemel

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func is(kind string, ok bool, message string) []metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Because", Message: message}
	if ok {
		c.Status = metav1.ConditionTrue
	}
	return []metav1.Condition{c}
}

// world is a healthy claim with all its objects.
func world() map[string]client.Object {
	pv := "pv-1"
	return map[string]client.Object{
		"claim": &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		"volume": &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "lun-1"}}}},
		"lun": &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1"}, Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: "main-p0"}},
			Status: v1alpha1.LogicalUnitStatus{Owner: "a", Conditions: append(is(v1alpha1.ConditionReady, true, ""), is(v1alpha1.ConditionPublished, true, "")...)}},
		"pair": &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "main-p0"}, Spec: v1alpha1.TargetPairSpec{Cluster: "main"}, Status: v1alpha1.TargetPairStatus{
			Conditions: is(v1alpha1.ConditionReady, true, ""), Nodes: []v1alpha1.NodeStatus{{Name: "a", Phase: "Alone"}, {Name: "b", Phase: "Unknown", Reason: "its pod waits"}}}},
		"attachment": &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "worker-1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}, Status: storagev1.VolumeAttachmentStatus{Attached: true}},
		"host":    &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}, Status: v1alpha1.HostStatus{Conditions: is(v1alpha1.ConditionReady, true, "")}},
		"cluster": &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "main"}, Status: v1alpha1.StorageClusterStatus{Pairs: 1, Conditions: is(v1alpha1.ConditionReady, false, "it is too cold")}},
	}
}

func clientOf(w map[string]client.Object) client.Client {
	b := fake.NewClientBuilder().WithScheme(Scheme())
	for _, o := range w {
		b = b.WithObjects(o)
	}
	return b.Build()
}

// The output ends with the first problem and its remedy.
func TestWhyStopsAtTheFirstProblem(t *testing.T) {
	for want, spoil := range map[string]func(map[string]client.Object){
		"no problem found": func(map[string]client.Object) {},
		"BROKEN  claim data               the claim does not exist": func(w map[string]client.Object) { delete(w, "claim") },
		"BROKEN  claim data               Pending": func(w map[string]client.Object) {
			w["claim"].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimPending
		},
		"the volume is not of Gemel": func(w map[string]client.Object) { w["volume"].(*corev1.PersistentVolume).Spec.CSI.Driver = "other" },
		"BROKEN  LogicalUnit":        func(w map[string]client.Object) { delete(w, "lun") },
		"BROKEN  LUN lun-1                Because no room": func(w map[string]client.Object) {
			w["lun"].(*v1alpha1.LogicalUnit).Status.Conditions = is(v1alpha1.ConditionReady, false, "no room")
		},
		"BROKEN  pair main-p0             Because both away": func(w map[string]client.Object) {
			w["pair"].(*v1alpha1.TargetPair).Status.Conditions = is(v1alpha1.ConditionReady, false, "both away")
		},
		"BROKEN  worker worker-1          not attached": func(w map[string]client.Object) {
			w["attachment"].(*storagev1.VolumeAttachment).Status.Attached = false
		},
		"paths of worker-1        Because node b has no session": func(w map[string]client.Object) {
			h := w["host"].(*v1alpha1.Host)
			h.Status.Conditions = append(h.Status.Conditions, is(v1alpha1.ConditionPathsComplete, false, "node b has no session")...)
		},
		"owner                    node a, held until 2999-01-01T00:00:00Z by a person's transfer": func(w map[string]client.Object) {
			w["lun"].(*v1alpha1.LogicalUnit).Status.HeldUntil = &metav1.Time{Time: time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)}
		},
		"moved                    from node b to node a 2026-11-25T12:00:00Z, OwnerGone: node b was not a member of the pair any more (derived by the operator)": func(w map[string]client.Object) {
			w["lun"].(*v1alpha1.LogicalUnit).Status.Moves = []v1alpha1.LogicalUnitMove{{From: "b", To: "a", Reason: "OwnerGone", Message: "node b was not a member of the pair any more", Derived: true, Time: metav1.NewTime(time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC))}}
		},
		"redundancy               one node only: node b: the node has no pod": func(w map[string]client.Object) {
			p := w["pair"].(*v1alpha1.TargetPair)
			p.Status.Conditions = append(p.Status.Conditions, is(v1alpha1.ConditionInSync, false, "node b: the node has no pod")...)
		},
		"sessions of worker-1     node b: 1; it owns 2 LUNs of the worker and is the home of 3; target port groups last requested: never": func(w map[string]client.Object) {
			w["host"].(*v1alpha1.Host).Status.Targets = []v1alpha1.HostSessions{{Target: "other", Pair: "main-p1", Nodes: []v1alpha1.HostSession{{Node: "a"}}},
				{Target: "t", Pair: "main-p0", Nodes: []v1alpha1.HostSession{{Node: "a", Error: "refused"}, {Node: "b", Sessions: 1, Owned: 2, Home: 3}}}}
		},
		"BROKEN  host worker-1            no node plugin": func(w map[string]client.Object) { delete(w, "host") },
	} {
		w := world()
		spoil(w)
		var out bytes.Buffer
		err := Why(t.Context(), clientOf(w), "app", "data", &out)
		if !strings.Contains(out.String(), want) || strings.Count(out.String(), "BROKEN") > 1 {
			t.Errorf("%q is not in:\n%s", want, &out)
		}
		if broken := strings.Contains(out.String(), "BROKEN"); broken != errors.Is(err, ErrBroken) {
			t.Errorf("%q: %v", want, err)
		}
	}
	var out bytes.Buffer
	if err := Why(t.Context(), clientOf(world()), "app", "data", &out); err != nil || !strings.Contains(out.String(), "node b") || !strings.Contains(out.String(), "its pod waits") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// What was preferred for the LUN, what has decided, and the home, which may have changed since.
func TestWhyShowsThePlacement(t *testing.T) {
	lu := func(w map[string]client.Object) *v1alpha1.LogicalUnit { return w["lun"].(*v1alpha1.LogicalUnit) }
	placed := func(w map[string]client.Object) {
		lu(w).Annotations = map[string]string{v1alpha1.AnnotationPlaced: "pair main-p0 has a node in zone z1"}
		lu(w).Status.PreferredNode = "b"
	}
	for name, c := range map[string]struct {
		change func(map[string]client.Object)
		want   []string
		not    []string
	}{
		"an earlier release": {func(map[string]client.Object) {}, nil, []string{"preferred", "placed", "home"}},
		"no consumer": {placed, []string{"ok      preferred                nothing was preferred, because no worker was known\n",
			"ok      placed                   pair main-p0 has a node in zone z1\n", "ok      home                     node b\n"}, nil},
		"consumer": {func(w map[string]client.Object) {
			placed(w)
			lu(w).Spec.Consumer = &v1alpha1.Consumer{Worker: "w7", Topology: map[string]v1alpha1.TopologyValue{corev1.LabelTopologyZone: "z1", corev1.LabelTopologyRegion: "r1"}}
		}, []string{"preferred                near worker w7 (topology.kubernetes.io/region=r1, topology.kubernetes.io/zone=z1)\n"}, nil},
		"consumer without labels": {func(w map[string]client.Object) {
			placed(w)
			lu(w).Spec.Consumer = &v1alpha1.Consumer{Worker: "w7"}
		}, []string{"preferred                near worker w7\n"}, nil},
	} {
		w := world()
		c.change(w)
		var out bytes.Buffer
		if err := Why(t.Context(), clientOf(w), "app", "data", &out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range c.want {
			if !strings.Contains(out.String(), s) {
				t.Errorf("%s: %q is not in:\n%s", name, s, &out)
			}
		}
		for _, s := range c.not {
			if strings.Contains(out.String(), s) {
				t.Errorf("%s: %q is in:\n%s", name, s, &out)
			}
		}
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func TestStatusShowsClustersPairsAndWorkers(t *testing.T) {
	var out bytes.Buffer
	if err := Status(t.Context(), clientOf(world()), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cluster main: 1 pairs", "not Ready (Because): it is too cold", "pair main-p0", "node b on no worker yet: Unknown, owns 0: its pod waits", "worker worker-1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "pool ") {
		t.Errorf("a single pool is printed twice:\n%s", &out)
	}
	w := world()
	pools := []v1alpha1.PoolStatus{{Name: "default", Free: quantity("7Gi"), Capacity: quantity("10Gi")}, {Name: "fast", Free: quantity("1Gi"), Capacity: quantity("2Gi")}}
	c, p := w["cluster"].(*v1alpha1.StorageCluster), w["pair"].(*v1alpha1.TargetPair)
	c.Spec.Pools, c.Status.Pools, p.Spec.Cluster, p.Status.Pools = []v1alpha1.Pool{{Name: "default"}, {Name: "fast"}}, pools, "main", pools[:1]
	c.Status.Domains = []v1alpha1.DomainsStatus{{Between: []string{"z1", "z2"}, Pairs: 2, ReadyPairs: 1}}
	out.Reset()
	if err := Status(t.Context(), clientOf(w), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  between z1 and z2: 2 pairs, 1 InSync\n", "  pool default: 7Gi free of 10Gi\n", "  pool fast: 1Gi free of 2Gi\n", "0 LUNs, 7Gi free in default\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, &out)
		}
	}
	g := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "group-1"}, Status: v1alpha1.LogicalUnitGroupSnapshotStatus{Attempt: 3,
		Conditions: []metav1.Condition{{Type: "Ready", Status: "False", Reason: "PairDown", Message: "pair q: check it"}}}}
	ready := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "group-2"}, Status: v1alpha1.LogicalUnitGroupSnapshotStatus{
		Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready"}}}}
	w["group"], w["ready group"] = g, ready
	out.Reset()
	if err := Status(t.Context(), clientOf(w), &out); err != nil || !strings.Contains(out.String(), "group snapshot group-1: 0 members, attempt 3\n  not Ready (PairDown): pair q: check it\n") || strings.Contains(out.String(), "group-2") {
		t.Errorf("%v %s", err, &out)
	}
	noMatch := &meta.NoKindMatchError{GroupKind: v1alpha1.GroupVersion.WithKind("LogicalUnitGroupSnapshot").GroupKind()}
	if withoutGroups(&v1alpha1.LogicalUnitGroupSnapshotList{}, noMatch) != nil || withoutGroups(&v1alpha1.HostList{}, noMatch) == nil {
		t.Error("CRDs of an earlier release are an error, or missing ones are none")
	}
	out.Reset()
	if err := Status(t.Context(), clientOf(nil), &out); err != nil || !strings.Contains(out.String(), "there is no StorageCluster") {
		t.Errorf("%v %s", err, &out)
	}
}
