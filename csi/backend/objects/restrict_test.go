package objects

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// world is a cluster with an unrestricted first pool, and pools for zones; classes, claims of them,
// and workers in zones. An operator makes every LUN at once.
func world(t *testing.T, fail func(client.Object) error) client.WithWatch {
	t.Helper()
	cluster := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "main"}, Spec: v1alpha1.StorageClusterSpec{Pools: []v1alpha1.Pool{
		{Name: "first"}, {Name: "ab", AccessibleFrom: termsOf("zone=a|zone=b")}, {Name: "rack", AccessibleFrom: termsOf("rack=1")}, {Name: "nobody", AccessibleFrom: termsOf("row=x")}}}}
	class := func(name string, allowed ...string) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: v1alpha1.DriverName}
		for _, a := range allowed {
			c.AllowedTopologies = append(c.AllowedTopologies, selector(a))
		}
		return c
	}
	claimIn := func(name, class, worker string) *corev1.PersistentVolumeClaim {
		c := claim(name, worker)
		c.Spec.StorageClassName = &class
		return c
	}
	old := claimIn("beta", "open", "")
	old.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "bc"}
	worker := func(name string, labels string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: termsOf(labels)[0].Labels()}}
	}
	placed := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-source", Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: "main", Size: resource.MustParse("1Mi"), Placement: &v1alpha1.Placement{Pair: "main-p0", Pool: "ab"}}}
	placed.Status.Size = &placed.Spec.Size
	snap := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1", Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: "main", Placement: &v1alpha1.SnapshotPlacement{Pair: "main-p0", Pool: "ab"}}}
	snap.Status.Size, snap.Status.TakenAt = &placed.Spec.Size, new(metav1.Now())
	free := resource.MustParse("5Gi")
	pair := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: "main-p0"}, Spec: v1alpha1.TargetPairSpec{Cluster: "main"}, Status: v1alpha1.TargetPairStatus{
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True"}}, Pools: []v1alpha1.PoolStatus{{Name: "first", Capacity: &free, Free: &free}, {Name: "ab", Capacity: &free, Free: &free}}}}
	base := api(t, nil, cluster, class("open"), class("bc", "zone=b/c"), class("c", "zone=c"), class("racks", "zone=a,rack=1/2"),
		claimIn("open", "open", ""), claimIn("open-w1", "open", "w1"), claimIn("open-w3", "open", "w3"), claimIn("open-w4", "open", "w4"), claimIn("open-w9", "open", "w9"),
		claimIn("bc", "bc", ""), claimIn("bc-w2", "bc", "w2"), claimIn("bc-w3", "bc", "w3"), claimIn("c", "c", ""), claimIn("racks", "racks", ""), claimIn("gone", "gone", ""), old, claim("none", ""),
		worker("w1", "zone=a,rack=1"), worker("w2", "zone=b"), worker("w3", "zone=c,rack=1"), worker("w4", "other=x"), placed, snap, pair)
	return interceptor.NewClient(base, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if lu, ok := o.(*v1alpha1.LogicalUnit); ok {
				if lu.Annotations == nil {
					lu.Annotations = map[string]string{}
				}
				lu.Annotations[v1alpha1.AnnotationMade], lu.Status.Size = "true", &lu.Spec.Size
			}
			return c.Create(ctx, o, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if fail != nil {
				if err := fail(o); err != nil {
					return err
				}
			}
			return c.Get(ctx, key, o, opts...)
		}})
}

// asked is a request for a claim in a pool, with the segments that the provisioner names.
func asked(pool, claim, segments string) backend.CreateVolume {
	req := requestOf(claim)
	req.Pool, req.Requisite = pool, segmentsOf(segments)
	return req
}

func TestVolumesAreRestricted(t *testing.T) {
	const workers = "zone=a|zone=b|zone=c|*"
	copied := func(req backend.CreateVolume, volume, snapshot string) backend.CreateVolume {
		req.SourceVolume, req.SourceSnapshot = volume, snapshot
		return req
	}
	unclaimed := asked("ab", "open", workers)
	unclaimed.Labels = map[string]string{v1alpha1.DiskLabelAccess: v1alpha1.AccessSingle}
	elsewhere := unclaimed
	elsewhere.Requisite = segmentsOf("zone=c")
	for name, c := range map[string]struct {
		req  backend.CreateVolume
		want string
		says string // part of the error, or of what restricts
	}{
		"neither":                         {asked("first", "open", workers), "", ""},
		"neither, the first by default":   {asked("", "open-w1", workers), "", ""},
		"pool":                            {asked("ab", "open", workers), "zone=a|zone=b", "pool ab of StorageCluster main (spec.pools[].accessibleFrom)"},
		"pool, its worker":                {asked("ab", "open-w1", workers), "zone=a|zone=b", "pool ab"},
		"pool, a worker elsewhere":        {asked("ab", "open-w3", workers), "none", "worker w3 does not have the labels zone=a or zone=b, which pool ab"},
		"pool, a worker without labels":   {asked("ab", "open-w4", "*"), "none", "worker w4 does not have the labels"},
		"pool, a worker that is gone":     {asked("ab", "open-w9", workers), "none", "worker w9 does not exist"},
		"pool, no worker there":           {asked("ab", "open", "zone=c|zone=d"), "none", "no segment of accessibility_requirements.requisite has the labels zone=a or zone=b"},
		"pool, keys of a lesser worker":   {asked("ab", "open", "*"), "zone=a|zone=b", "pool ab"},
		"pool, keys that are no segment":  {asked("rack", "open", workers), "rack=1", "pool rack"},
		"pool, keys that no worker has":   {asked("nobody", "open", workers), "none", "no worker has the labels row=x, which pool nobody"},
		"class":                           {asked("first", "bc", "zone=b|zone=c"), "zone=b|zone=c", "StorageClass bc (allowedTopologies)"},
		"class, its worker":               {asked("", "bc-w2", "zone=b|zone=c"), "zone=b|zone=c", "StorageClass bc (allowedTopologies)"},
		"class, of an annotation":         {asked("", "beta", "zone=b|zone=c"), "zone=b|zone=c", "StorageClass bc"},
		"class, combinations":             {asked("", "racks", "zone=a,rack=1|zone=a,rack=2"), "zone=a,rack=1|zone=a,rack=2", "StorageClass racks"},
		"class, not topology":             {func() backend.CreateVolume { r := requestOf("bc"); return r }(), "", ""}, // the provisioner has no topology
		"class that is gone":              {asked("first", "gone", "zone=b"), "retry", "StorageClass gone of claim team/gone does not exist"},
		"no class":                        {asked("first", "none", workers), "", ""},
		"no claim":                        {unclaimed, "zone=a|zone=b", "pool ab"},
		"no claim, elsewhere":             {elsewhere, "none", "no segment of accessibility_requirements.requisite"},
		"both":                            {asked("ab", "bc", "zone=b|zone=c"), "zone=b", "pool ab of StorageCluster main (spec.pools[].accessibleFrom) and StorageClass bc (allowedTopologies)"},
		"both, combined":                  {asked("rack", "bc", "zone=b|zone=c"), "zone=b,rack=1|zone=c,rack=1", "pool rack of StorageCluster main"},
		"both, their worker":              {asked("rack", "bc-w3", "zone=b|zone=c"), "zone=b,rack=1|zone=c,rack=1", "pool rack of StorageCluster main"},
		"both, the worker of one":         {asked("ab", "bc-w3", "zone=b|zone=c"), "none", "worker w3 does not have the labels zone=b"},
		"both, nothing in common":         {asked("ab", "c", "zone=c"), "none", "pool ab of StorageCluster main (spec.pools[].accessibleFrom) and StorageClass c (allowedTopologies) have no workers in common"},
		"no such pool":                    {asked("later", "open", workers), "", ""}, // the operator refuses it
		"copy of a volume":                {copied(asked("", "open", workers), "lun-source", ""), "zone=a|zone=b", "pool ab"},
		"copy of a volume, its class too": {copied(asked("", "bc", "zone=b|zone=c"), "lun-source", ""), "zone=b", "and StorageClass bc"},
		"copy of a snapshot":              {copied(asked("", "open", workers), "", "snap-1"), "zone=a|zone=b", "pool ab"},
		"copy of a snapshot, elsewhere":   {copied(asked("", "open-w3", workers), "", "snap-1"), "none", "worker w3"},
	} {
		c.req.Size = 1 << 20
		k := world(t, nil)
		b := New(k)
		v, err := b.CreateVolume(t.Context(), c.req)
		lu := &v1alpha1.LogicalUnit{}
		exists := client.IgnoreNotFound(k.Get(t.Context(), client.ObjectKey{Name: c.req.ID}, lu)) == nil && lu.Name != ""
		if want := map[string]error{"none": backend.ErrUnreachable, "retry": backend.ErrUnavailable}[c.want]; want != nil {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), c.says) || exists {
				t.Errorf("%s: %v, an object: %v", name, err, exists)
			}
			continue
		}
		if err != nil || !equal(lu.Spec.AccessibleFrom, termsOf(c.want)) || !strings.HasPrefix(lu.Annotations[v1alpha1.AnnotationRestricted], c.says) && !strings.HasSuffix(lu.Annotations[v1alpha1.AnnotationRestricted], c.says+" (allowedTopologies)") {
			t.Errorf("%s: %+v by %q, %v", name, lu.Spec.AccessibleFrom, lu.Annotations[v1alpha1.AnnotationRestricted], err)
		}
		same := len(v.AccessibleFrom) == len(lu.Spec.AccessibleFrom)
		for i := range v.AccessibleFrom {
			same = same && maps.Equal(v.AccessibleFrom[i], lu.Spec.AccessibleFrom[i].Labels())
		}
		if !same || (c.want == "") != (v.AccessibleFrom == nil) {
			t.Errorf("%s: the volume says %v", name, v.AccessibleFrom)
		}
	}
}

// The persistent volume may have been made of the first answer, so that each later one is the same:
// after a restart, a change of the pool, and whatever worker the claim names. A list has it too.
func TestRestrictionStays(t *testing.T) {
	k := world(t, nil)
	req := asked("ab", "open-w1", "zone=a|zone=b|zone=c")
	req.Size = 1 << 20
	first, err := New(k).CreateVolume(t.Context(), req)
	if err != nil || len(first.AccessibleFrom) != 2 {
		t.Fatal(first, err)
	}
	cluster := &v1alpha1.StorageCluster{}
	for _, to := range []string{"zone=c", "", "zone=a"} {
		if err := k.Get(t.Context(), client.ObjectKey{Name: "main"}, cluster); err != nil {
			t.Fatal(err)
		}
		cluster.Spec.Pools[1].AccessibleFrom = termsOf(to)
		if err := k.Update(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		b := New(k)
		for _, claim := range []string{"open-w1", "open-w3", "open-w9", "open"} {
			again := req
			again.Labels = maps.Clone(req.Labels)
			again.Labels[v1alpha1.DiskLabelPVC] = claim
			if v, err := b.CreateVolume(t.Context(), again); err != nil || !equal(v.AccessibleFrom, first.AccessibleFrom) {
				t.Errorf("pool %q, %s: %v, %v", to, claim, v.AccessibleFrom, err)
			}
		}
		v, err := b.GetVolume(t.Context(), req.ID)
		list, _, err2 := b.ListVolumes(t.Context(), backend.Page{})
		if errors.Join(err, err2) != nil || !equal(v.AccessibleFrom, first.AccessibleFrom) || len(list) != 2 || !equal(list[0].AccessibleFrom, first.AccessibleFrom) {
			t.Errorf("%v, %+v, %v, %v", v, list, err, err2)
		}
	}
	// An object that is being deleted is no volume of an earlier call: the new one is refused.
	lu := &v1alpha1.LogicalUnit{}
	if err := k.Get(t.Context(), client.ObjectKey{Name: req.ID}, lu); err != nil {
		t.Fatal(err)
	}
	lu.Spec.Destroy = true
	if err := k.Update(t.Context(), lu); err != nil {
		t.Fatal(err)
	}
	req.Labels[v1alpha1.DiskLabelPVC] = "open-w3"
	if _, err := New(k).CreateVolume(t.Context(), req); !errors.Is(err, backend.ErrUnreachable) {
		t.Error(err)
	}
}

// A node affinity can be neither added nor removed later: a volume is not created while it is
// unknown whether it is restricted.
func TestUnknownRestrictionsAreRetried(t *testing.T) {
	for name, kind := range map[string]func(client.Object) bool{
		"cluster": func(o client.Object) bool { _, ok := o.(*v1alpha1.StorageCluster); return ok },
		"class":   func(o client.Object) bool { _, ok := o.(*storagev1.StorageClass); return ok },
		"claim":   func(o client.Object) bool { _, ok := o.(*corev1.PersistentVolumeClaim); return ok },
		"node":    func(o client.Object) bool { _, ok := o.(*corev1.Node); return ok },
	} {
		down := true
		k := world(t, func(o client.Object) error {
			if down && kind(o) {
				return apierrors.NewInternalError(errors.New("injected by the test"))
			}
			return nil
		})
		req := asked("ab", "bc-w2", "zone=b|zone=c")
		req.Size = 1 << 20
		if _, err := New(k).CreateVolume(t.Context(), req); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "injected") {
			t.Errorf("%s: %v", name, err)
		}
		down = false
		if v, err := New(k).CreateVolume(t.Context(), req); err != nil || len(v.AccessibleFrom) != 1 {
			t.Errorf("%s: %v, %v", name, v.AccessibleFrom, err)
		}
	}
}

func TestCapacityOfARestrictedPool(t *testing.T) {
	const all = 5 << 30
	b := New(world(t, nil))
	for _, c := range []struct {
		cluster, pool, segment string
		want                   int64
	}{
		{"main", "first", "zone=c", all}, {"main", "", "zone=c", all}, {"main", "", "reach=all", all},
		{"main", "ab", "zone=a", all}, {"main", "ab", "zone=b,reach=all", all}, {"main", "ab", "zone=c", 0},
		{"main", "ab", "reach=all", 0}, // a worker without a zone
		{"main", "ab", "*", all},       // nobody asks for a place
		{"", "ab", "zone=c", all},      // nor of which cluster
		{"main", "rack", "zone=a", 0}, {"main", "none", "zone=a", 0}, {"other", "ab", "zone=a", 0},
	} {
		if got, err := b.Capacity(t.Context(), c.cluster, c.pool, segmentsOf(c.segment)[0]); err != nil || got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	down := New(world(t, func(o client.Object) error {
		if _, ok := o.(*v1alpha1.StorageCluster); ok {
			return apierrors.NewInternalError(errors.New("injected by the test"))
		}
		return nil
	}))
	if _, err := down.Capacity(t.Context(), "main", "ab", map[string]string{"zone": "a"}); !errors.Is(err, backend.ErrUnavailable) {
		t.Error(err)
	}
}
