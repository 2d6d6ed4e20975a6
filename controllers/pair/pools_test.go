package pair

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// addPool adds a pool to the cluster.
func (w *world) addPool(name, class string) {
	w.t.Helper()
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	c.Spec.Pools = append(c.Spec.Pools, v1alpha1.Pool{Name: name, StorageClassName: class, Size: resource.MustParse("5Gi")})
	w.ok(w.c.Update(w.ctx, c))
}

func (w *world) worker(name string) {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	w.ok(w.c.Create(w.ctx, n))
	w.t.Cleanup(func() { _ = w.c.Delete(w.ctx, n) })
}

// disk creates a local volume, as an administrator does.
func (w *world) disk(name, worker, class, size string) *corev1.PersistentVolume {
	w.t.Helper()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{StorageClassName: class,
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/disks/" + name}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{worker}}}}}}}}}
	w.ok(w.c.Create(w.ctx, v))
	v.Status.Phase = corev1.VolumeAvailable
	w.ok(w.c.Status().Update(w.ctx, v))
	return v
}

// bind acts as the scheduler: it binds the claim of a pod to its volume.
func (w *world) bind(claim string, v *corev1.PersistentVolume) {
	w.t.Helper()
	c := &corev1.PersistentVolumeClaim{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: claim}, c))
	c.Spec.VolumeName = v.Name
	w.ok(w.c.Update(w.ctx, c))
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
	w.ok(w.c.Update(w.ctx, v))
}

func (w *world) args(node string) string {
	return strings.Join(w.set(node).Spec.Template.Spec.Containers[0].Args, " ")
}

// A pool is added to a running pair: a node gets the pool when its worker has a volume, one node at
// a time, and nothing waits for a node without one. The first pool stays unchanged.
func TestPoolIsAddedOneNodeAtATime(t *testing.T) {
	w := newWorld(t, "addpool")
	w.run()
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "flash"}, Provisioner: staticProvisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})))
	workers := map[string]string{"a": "pool-w1", "b": "pool-w2"}
	w.step()
	for _, n := range Nodes {
		w.worker(workers[n])
		w.pod(n, workers[n])
	}
	w.step()
	w.step()
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionTrue {
		t.Fatalf("%+v", c)
	}
	one := w.get().Status
	if len(one.Pools) != 1 || one.Pools[0].Name != "default" || one.Pools[0].Capacity.Cmp(*one.Capacity) != 0 || one.Pools[0].Free == nil {
		t.Fatalf("%+v", one.Pools)
	}
	before := w.set("a")
	w.events()

	w.addPool("fast", "flash")
	for range 3 {
		w.step()
	}
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonNoStorage || !strings.Contains(c.Message, "spec.pools[fast]: worker pool-w1 of node a") ||
		!strings.Contains(c.Message, "5Gi") || !strings.Contains(c.Message, "flash") {
		t.Fatalf("%+v", c)
	}
	if c := w.condition(v1alpha1.ConditionInSync); c.Status != metav1.ConditionTrue {
		t.Fatalf("%+v", c)
	}
	if s := w.set("a"); s.Generation != before.Generation || strings.Contains(w.args("a"), "backing-volume") {
		t.Fatalf("the StatefulSet was changed although the node cannot mount the pool: %s", w.args("a"))
	}
	for _, n := range Nodes {
		c := &corev1.PersistentVolumeClaim{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: "gemel-addpool-" + n + "-d0.fast"}, c))
		if *c.Spec.StorageClassName != "flash" || c.Labels[v1alpha1.LabelPool] != "fast" || len(c.OwnerReferences) > 0 {
			t.Errorf("%+v", c)
		}
	}
	// Volumes that do not fit do not count.
	w.disk("pool-small", "pool-w1", "flash", "1Gi")
	w.disk("pool-slow", "pool-w1", "disks", "10Gi")
	w.step()
	if w.gone("a") || w.gone("b") {
		t.Fatal("a pod was deleted")
	}

	restarted := func(node string, v *corev1.PersistentVolume) {
		t.Helper()
		i := slices.Index(Nodes, node)
		for !w.gone(node) {
			if w.ctx.Err() != nil {
				t.Fatalf("%+v", w.get().Status)
			}
			w.step()
		}
		if a := w.args(node); !strings.Contains(a, "--backing-volume=fast=/volumes/fast/gemel") || !strings.Contains(a, "--state-dir=/data/gemel") {
			t.Errorf("%s", a)
		}
		spec := w.set(node).Spec.Template.Spec
		if !slices.ContainsFunc(spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "pool-fast" && m.MountPath == "/volumes/fast" }) ||
			!slices.ContainsFunc(spec.Volumes, func(x corev1.Volume) bool {
				return x.Name == "pool-fast" && x.PersistentVolumeClaim.ClaimName == "gemel-addpool-"+node+"-d0.fast"
			}) || spec.Volumes[0].PersistentVolumeClaim.ClaimName != "gemel-addpool-"+node+"-d0" {
			t.Errorf("%+v", spec.Volumes)
		}
		w.ok(w.pair.Term(i))
		w.pod(node, workers[node])
		w.bind("gemel-addpool-"+node+"-d0.fast", v)
		w.step()
		if w.gone(Other(node)) {
			t.Fatalf("both pods were deleted")
		}
		w.pair.PerNode[i] = []string{"--backing-volume=fast=" + t.TempDir(), "--shared-filesystem"}
		w.ok(w.pair.StartNode(i))
		w.ok(w.pair.WaitInSync(w.ctx))
		w.step()
		w.ok(w.c.Get(w.ctx, client.ObjectKeyFromObject(v), v))
		if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			t.Error("the volume would be deleted with its claim")
		}
	}
	restarted("a", w.disk("pool-1", "pool-w1", "flash", "5Gi"))
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonNoStorage || !strings.Contains(c.Message, "worker pool-w2 of node b") {
		t.Fatalf("%+v", c)
	}
	if s := w.get().Status; len(s.Pools) != 1 {
		t.Errorf("a LUN could be created where node b has no volume: %+v", s.Pools)
	}
	// Other changes proceed while a pool waits.
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	w.ok(w.c.Update(w.ctx, c))
	for !w.gone("a") && !w.gone("b") {
		w.step()
	}
	for i, n := range Nodes {
		for !w.gone(n) {
			w.step()
		}
		w.ok(w.pair.Term(i))
		w.pod(n, workers[n])
		w.ok(w.pair.StartNode(i))
		w.ok(w.pair.WaitInSync(w.ctx))
	}

	restarted("b", w.disk("pool-2", "pool-w2", "flash", "6Gi"))
	w.step()
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	s := w.get().Status
	if len(s.Pools) != 2 || s.Pools[0].Name != "default" || s.Pools[1].Name != "fast" || s.Pools[1].Free.Value() == 0 || s.Capacity.Value() != s.Pools[0].Capacity.Value()+s.Pools[1].Capacity.Value() {
		t.Errorf("%+v", s)
	}
	r, err := Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	if got := r.Clusters[0].Spec.Pools; len(got) != 2 || got[0].Name != "default" || got[1].Name != "fast" || got[1].StorageClassName != "flash" || got[1].Size.Cmp(c.Spec.Pools[1].Size) != 0 {
		t.Errorf("%+v", got)
	}
}

// An unusable pool blocks only itself, and the condition says why.
func TestUnusablePoolBlocksOnlyItself(t *testing.T) {
	w := newWorld(t, "nopool")
	w.down["a"], w.down["b"] = true, true
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Provisioner: v1alpha1.DriverName})))
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "at-once"}, Provisioner: "example.org/disk"})))
	w.step()
	for pool, x := range map[string]struct{ class, says string }{"own": {"own", "StorageClass of Gemel"}, "early": {"at-once", "WaitForFirstConsumer"}, "none": {"nowhere", "does not exist"}} {
		c := &v1alpha1.StorageCluster{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
		base := *c.DeepCopy()
		base.Spec.Pools = append(base.Spec.Pools, v1alpha1.Pool{Name: pool, StorageClassName: x.class, Size: resource.MustParse("5Gi")})
		w.ok(w.r.ensureTargets(w.ctx, c, w.get(), nil))
		m, later, err := w.r.ensurePools(w.ctx, &base, w.get())
		w.ok(err)
		if later == nil || !strings.Contains(later.Error(), "spec.pools["+pool+"].storageClassName") || !strings.Contains(later.Error(), x.says) || len(m) != 0 {
			t.Errorf("%s: %v, %v", pool, later, m)
		}
	}
	w.addPool("own", "own")
	w.step()
	w.set("a")
	w.set("b")
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionFalse {
		t.Errorf("%+v", c)
	}
}

func TestPoolStatusNamesPoolsThatBothNodesHave(t *testing.T) {
	c := &v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{Pools: []v1alpha1.Pool{{Name: "main"}, {Name: "fast"}}}}
	old := poolStatus(c, &targetv1.Status{CapacityBytes: 100, FreeBytes: 50}, nil)
	if len(old) != 1 || old[0].Name != "main" || old[0].Capacity.Value() != 100 || old[0].Free.Value() != 50 {
		t.Errorf("a target of an earlier release: %+v", old)
	}
	now := poolStatus(c, &targetv1.Status{Volumes: []*targetv1.BackingVolume{{Name: "default", CapacityBytes: 100_000, FreeBytes: 99_950},
		{Name: "fast", CapacityBytes: 10, FreeBytes: 5}, {Name: "cold", CapacityBytes: 10, Lacks: []string{"b"}}}},
		[]v1alpha1.PoolStatus{{Name: "main", Free: resource.NewQuantity(100_000, resource.BinarySI)}})
	if len(now) != 2 || now[0].Free.Value() != 100_000 || now[1].Name != "fast" || now[1].Free.Value() != 5 {
		t.Errorf("%+v", now)
	}
}

func TestVolumeIsBindable(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{"host": "w1", "slots": "3"}}}
	on := func(match ...corev1.NodeSelectorRequirement) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: match}}}}
	}
	req := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	here := req("host", corev1.NodeSelectorOpIn, "w0", "w1")
	for name, x := range map[string]struct {
		change func(*corev1.PersistentVolume)
		want   bool
	}{
		"free": {func(*corev1.PersistentVolume) {}, true},
		"meant for it": {func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "mine"}
		}, true},
		"another's": {func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "other"}
		}, false},
		"released":       {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }, false},
		"another class":  {func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "slow" }, false},
		"small":          {func(v *corev1.PersistentVolume) { v.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi") }, false},
		"block":          {func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, false},
		"no worker's":    {func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil }, false},
		"another worker": {func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = on(req("host", corev1.NodeSelectorOpIn, "w2")) }, false},
		"both, one fails": {func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = on(here, req("host", corev1.NodeSelectorOpNotIn, "w1"))
		}, false},
		"both": {func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = on(here, req("slots", corev1.NodeSelectorOpGt, "2"))
		}, true},
		"absent label": {func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = on(req("zone", corev1.NodeSelectorOpDoesNotExist))
		}, true},
		"nonsense": {func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = on(req("host", "Like", "w1")) }, false},
		"by name": {func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity.Required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}, {MatchFields: []corev1.NodeSelectorRequirement{req("metadata.name", corev1.NodeSelectorOpIn, "w1")}}}
		}, true},
	} {
		v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{StorageClassName: "flash", NodeAffinity: on(here),
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}}
		x.change(v)
		if got := bindable(v, claim, node, "flash", resource.MustParse("5Gi")); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestUnreachableNodeNamesTheLastMessage(t *testing.T) {
	n := &nodeView{name: "a", pod: &corev1.Pod{Spec: corev1.PodSpec{NodeName: "w"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "starting\ngemel-target: backing volume fast: no\n"}}}}}}}
	if got := unreachable(n); got != "the pod is waiting: CrashLoopBackOff back-off; the last message of the process: gemel-target: backing volume fast: no" {
		t.Error(got)
	}
}
