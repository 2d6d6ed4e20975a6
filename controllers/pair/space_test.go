package pair

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/tally"
)

// The condition is that of the pool with the least space, and says what to do.
func TestSpaceCondition(t *testing.T) {
	pool := func(name, free, promised string) v1alpha1.PoolStatus {
		q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
		return v1alpha1.PoolStatus{Name: name, Capacity: q("100Gi"), Free: q(free), Promised: q(promised), Promisable: q("200Gi")}
	}
	p := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "space-p0"}, Spec: v1alpha1.TargetPairSpec{Cluster: "space"}}
	if setSpaceCondition(p); len(p.Status.Conditions) > 0 {
		t.Errorf("nothing is known: %+v", p.Status.Conditions)
	}
	for _, x := range []struct {
		pools  []v1alpha1.PoolStatus
		reason string
		says   string
	}{
		{[]v1alpha1.PoolStatus{pool("main", "50Gi", "10Gi"), pool("fast", "20Gi", "10Gi")}, v1alpha1.ReasonReady, "every pool has free space"},
		{[]v1alpha1.PoolStatus{pool("main", "50Gi", "195Gi"), pool("fast", "20Gi", "10Gi")}, v1alpha1.ReasonOvercommitted, "195Gi of pool main are promised to LUNs, of at most 200Gi"},
		{[]v1alpha1.PoolStatus{pool("main", "50Gi", "195Gi"), pool("fast", "9Gi", "10Gi")}, v1alpha1.ReasonNearFull, "9Gi of 100Gi are free in pool fast"},
		{[]v1alpha1.PoolStatus{pool("main", "50Gi", "195Gi"), pool("fast", "10.5Gi", "10Gi")}, v1alpha1.ReasonNearFull, "free in pool fast"}, // it does not come and go
		{[]v1alpha1.PoolStatus{pool("main", "1Mi", "195Gi"), pool("fast", "9Gi", "10Gi")}, v1alpha1.ReasonFull, "1Mi of 100Gi are free in pool main"},
		{[]v1alpha1.PoolStatus{pool("main", "50Gi", "10Gi")}, v1alpha1.ReasonReady, ""},
	} {
		p.Status.Pools = x.pools
		before := p.Status.DeepCopy()
		setSpaceCondition(p)
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionSpaceAvailable)
		if c.Reason != x.reason || !strings.Contains(c.Message, x.says) || (c.Status == metav1.ConditionTrue) != (x.reason == v1alpha1.ReasonReady) {
			t.Errorf("%+v", c)
		}
		old := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionSpaceAvailable)
		if want := old != nil && old.Reason != c.Reason; needsEvent(old, c) != want {
			t.Errorf("an event of %s after %+v: %v", c.Reason, old, !want)
		}
	}
	if c := (&metav1.Condition{Type: v1alpha1.ConditionSpaceAvailable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFull}); !needsEvent(nil, c) {
		t.Error("a pair that is full when it is first seen needs an event")
	}

	setPoolMetrics(p, nil)
	if got := testutil.ToFloat64(poolBytes["promised"].WithLabelValues("space", "space-p0", "main")); got != 10<<30 {
		t.Errorf("promised: %v", got)
	}
	before := p.Status.Pools
	p.Status.Pools = nil
	setPoolMetrics(p, before)
	for kind, g := range poolBytes {
		if n := g.DeletePartialMatch(map[string]string{"pair": "space-p0"}); n != 0 {
			t.Errorf("%s: %d metrics of a pool that is gone", kind, n)
		}
	}
}

// What is promised of a pool is in the status, also where earlier releases did not name the pool.
func TestPromisedIsInTheStatus(t *testing.T) {
	c := &v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{Pools: []v1alpha1.Pool{{Name: "main", OvercommitPercent: 150}, {Name: "fast"}}}}
	var counts tally.Tally
	for name, at := range map[string]*v1alpha1.Placement{"1": {Pair: "p"}, "2": {Pair: "p", Pool: "main"}, "3": {Pair: "p", Pool: "fast"}, "4": {Pair: "q"}} {
		lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.LogicalUnitSpec{Size: resource.MustParse("2Gi"), Placement: at}}
		lu.UID = types.UID(name)
		counts.Set(lu)
	}
	pools := []v1alpha1.PoolStatus{{Name: "main", Capacity: ptr.To(resource.MustParse("10Gi"))}, {Name: "fast", Capacity: ptr.To(resource.MustParse("1Gi"))}}
	(&Reconciler{Tally: &counts}).setPromised(t.Context(), c, "p", pools, nil)
	got := ""
	for _, x := range pools {
		got += x.Name + " " + x.Promised.String() + "/" + x.Promisable.String() + " "
	}
	if got != "main 4Gi/15Gi fast 2Gi/20Gi " {
		t.Error(got)
	}
}

// Claims get the size of the spec where their class expands volumes, and the pair says so until the
// storage has done it.
func TestClaimsGrow(t *testing.T) {
	w := newWorld(t, "grows")
	w.down["a"], w.down["b"] = true, true
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "growing"}, Provisioner: "example.com/lvm", AllowVolumeExpansion: ptr.To(true),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})))
	w.addPool("more", "growing")
	w.step()
	main, more := ClaimName(w.name, "a", 0), PoolClaim(w.name, "a", 0, "more")
	claim := func(name string) *corev1.PersistentVolumeClaim {
		t.Helper()
		x := &corev1.PersistentVolumeClaim{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: name}, x))
		return x
	}
	size := func(q resource.Quantity) {
		t.Helper()
		x := &v1alpha1.StorageCluster{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, x))
		for i := range x.Spec.Pools {
			x.Spec.Pools[i].Size = q
		}
		w.ok(w.c.Update(w.ctx, x))
	}
	had := claim(more).Spec.Resources.Requests[corev1.ResourceStorage]
	size(resource.MustParse("40Gi"))
	w.step()
	if got := claim(more).Spec.Resources.Requests[corev1.ResourceStorage]; got.Cmp(had) != 0 {
		t.Errorf("a claim that is not bound requests %s", got.String())
	}
	for _, name := range []string{main, more} {
		x := claim(name)
		x.Spec.VolumeName = "pv-of-" + w.name + "-" + name
		w.ok(w.c.Create(w.ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: x.Spec.VolumeName}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: had}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: *x.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{"w1"}}}}}}}}}))
		w.ok(w.c.Update(w.ctx, x))
		x.Status.Phase, x.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: had}
		w.ok(w.c.Status().Update(w.ctx, x))
	}
	w.step()
	if got := claim(more).Spec.Resources.Requests[corev1.ResourceStorage]; got.String() != "40Gi" {
		t.Errorf("a claim whose class expands volumes requests %s", got.String())
	}
	if got := claim(main).Spec.Resources.Requests[corev1.ResourceStorage]; got.String() == "40Gi" {
		t.Errorf("a claim whose class does not requests %s", got.String())
	}
	later := func() string {
		t.Helper()
		x := &v1alpha1.StorageCluster{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, x))
		if err := w.r.growClaims(w.ctx, x, w.get()); err != nil {
			return err.Error()
		}
		return ""
	}
	x := claim(more)
	x.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, Message: "waiting for the filesystem"}}
	w.ok(w.c.Status().Update(w.ctx, x))
	if got := later(); !strings.Contains(got, "spec.pools[more].size: claim "+more+" is being expanded from "+had.String()+" to 40Gi: waiting for the filesystem") {
		t.Error(got)
	}
	x = claim(more)
	x.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("40Gi")
	w.ok(w.c.Status().Update(w.ctx, x))
	if got := later(); got != "" {
		t.Error(got)
	}
}
