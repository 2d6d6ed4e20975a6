package pair

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// volumes changes those of the first pool.
func (w *world) volumes(list ...v1alpha1.PoolVolumes) {
	w.t.Helper()
	c := w.cluster()
	c.Spec.Pools[0].Volumes = list
	w.ok(w.c.Update(w.ctx, c))
}

// memberClass is a StorageClass of local volumes.
func (w *world) memberClass(name string) {
	w.t.Helper()
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: staticProvisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})))
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := &corev1.PersistentVolumeClaim{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: name}, c))
	return c
}

// until reconciles until a condition holds.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for {
		w.step()
		if ok() {
			return
		}
		if w.ctx.Err() != nil {
			w.t.Fatalf("%s: %+v", what, w.get().Status)
		}
	}
}

// restarted waits until a node's pod is deleted, and starts its process with other volumes.
func (w *world) restarted(node, worker string, args ...string) {
	w.t.Helper()
	i := slices.Index(Nodes, node)
	w.until("node "+node+" is restarted", func() bool { return w.gone(node) })
	w.ok(w.pair.Term(i))
	w.pod(node, worker)
	if w.step(); w.gone(Other(node)) {
		w.t.Fatal("both pods were deleted")
	}
	w.pair.PerNode[i] = args
	w.ok(w.pair.StartNode(i))
	w.ok(w.pair.WaitInSync(w.ctx))
}

// A pool gets two more volumes on each node, and gives one back: its data moves away first, and its
// claim is kept. A drain ends when the spec has the volume again.
func TestMemberComesAndGoes(t *testing.T) {
	w := newWorld(t, "members")
	w.run()
	w.memberClass("member-disks")
	workers := map[string]string{"a": "member-w1", "b": "member-w2"}
	w.step()
	for _, n := range Nodes {
		w.worker(workers[n])
		w.pod(n, workers[n])
	}
	w.until("the pair is up to date", func() bool { return w.condition(v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue })
	w.step() // both workers are recorded
	before := w.set("a")

	more := v1alpha1.PoolVolumes{Name: "more", StorageClassName: "member-disks", Size: resource.MustParse("2Gi"), Count: 2}
	w.volumes(more)
	w.step()
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonNoStorage || !strings.Contains(c.Message, "spec.pools[default].volumes[more]: worker member-w1 of node a") ||
		!strings.Contains(c.Message, "the pool does without it") {
		t.Fatalf("%+v", c)
	}
	if s := w.set("a"); s.Generation != before.Generation {
		t.Fatal("the StatefulSet was changed although the node cannot mount the volume")
	}
	names := []string{"more-0", "more-1"}
	dirs := map[string][]string{}
	flags := func(node string, count int) (args []string) {
		for i := range count {
			args = append(args, "--backing-volume=default/"+names[i]+"="+dirs[node][i])
		}
		return append(args, "--shared-filesystem")
	}
	for _, n := range Nodes {
		for _, name := range names {
			v := w.disk("member-"+n+"-"+name, workers[n], "member-disks", "2Gi")
			w.bind("gemel-members-"+n+"-d0.default."+name, v)
			dirs[n] = append(dirs[n], t.TempDir())
		}
	}
	first := "a"
	w.until("a node is restarted", func() bool { return w.gone("a") || w.gone("b") })
	if w.gone("b") {
		first = "b"
	}
	for _, n := range []string{first, Other(first)} {
		w.restarted(n, workers[n], flags(n, 2)...)
		if a := w.args(n); !strings.Contains(a, "--backing-volume=default/more-0=/volumes/default.more-0/gemel --backing-volume=default/more-1=/volumes/default.more-1/gemel") {
			t.Errorf("%s", a)
		}
		spec := w.set(n).Spec.Template.Spec
		if !slices.ContainsFunc(spec.Volumes, func(x corev1.Volume) bool {
			return x.Name == "member-1" && x.PersistentVolumeClaim.ClaimName == "gemel-members-"+n+"-d0.default.more-1"
		}) || !slices.ContainsFunc(spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == "member-1" && m.MountPath == "/volumes/default.more-1"
		}) {
			t.Errorf("%+v", spec.Volumes)
		}
	}
	w.until("the pair is up to date", func() bool { return w.condition(v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue })
	members := func(node string) []v1alpha1.MemberStatus {
		s := w.get().Status
		return s.Nodes[slices.Index(Nodes, node)].Members
	}
	for _, n := range Nodes {
		if m := members(n); len(m) != 3 || m[0].Name != "home" || m[2].Name != "more-1" || m[2].Pool != "default" || m[2].Tier != v1alpha1.TierCapacity || m[2].Free.Value() == 0 {
			t.Errorf("%+v", m)
		}
	}
	id := uuid.NewString()
	_, err := w.pair.Client(0).CreateLUN(w.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun", SizeBytes: 64 << 20})
	w.ok(err)

	// One too few, and at once as many as before.
	w.events()
	fewer := more
	fewer.Count = 1
	w.volumes(fewer)
	w.until("a drain has begun", func() bool {
		return slices.ContainsFunc(w.events(), func(s string) bool { return strings.Contains(s, "moves data away from member more-1") })
	})
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonMember || !strings.Contains(c.Message, "spec.pools[default].volumes") {
		t.Errorf("%+v", c)
	}
	r, err := Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	if got := r.Clusters[0].Spec.Pools[0].Volumes; len(got) != 1 || got[0].Name != "more" || got[0].Count != 2 || got[0].StorageClassName != "member-disks" || got[0].Size.Cmp(more.Size) != 0 {
		t.Errorf("%+v", got)
	}
	w.volumes(more)
	w.until("no member is drained", func() bool {
		return w.condition(v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue &&
			!slices.ContainsFunc(append(members("a"), members("b")...), func(m v1alpha1.MemberStatus) bool { return m.Draining })
	})
	if w.gone("a") || w.gone("b") {
		t.Error("a node was restarted for nothing")
	}

	w.volumes(fewer)
	w.until("a node is restarted without the member", func() bool { return w.gone("a") || w.gone("b") })
	first = "a"
	if w.gone("b") {
		first = "b"
	}
	for _, n := range []string{first, Other(first)} {
		if c := w.claim("gemel-members-" + n + "-d0.default.more-1"); c.Annotations[annotationEmpty] != "true" {
			w.until("the other node's member is empty", func() bool { return w.claim(c.Name).Annotations[annotationEmpty] == "true" })
		}
		w.restarted(n, workers[n], flags(n, 1)...) // which the node refuses if the member had data
		if a := w.args(n); strings.Contains(a, "more-1") || !strings.Contains(a, "more-0") {
			t.Errorf("%s", a)
		}
	}
	w.until("the pair is up to date", func() bool { return w.condition(v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue })
	if m := members("a"); len(m) != 2 {
		t.Errorf("%+v", m)
	}
	r, err = Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	if got := r.Clusters[0].Spec.Pools[0].Volumes; len(got) != 1 || got[0].Count != 1 {
		t.Errorf("%+v", got)
	}
	if l, err := w.pair.Client(0).GetLUN(w.ctx, &targetv1.GetLUNRequest{Uuid: id}); err != nil || l.SizeBytes != 64<<20 {
		t.Errorf("%v, %v", l, err)
	}
}

// What a node gets of tiers, and of volumes that it cannot have.
func TestMembersOfTiers(t *testing.T) {
	w := newWorld(t, "memtiers")
	w.down["a"], w.down["b"] = true, true
	w.memberClass("member-nvme")
	c := w.cluster()
	c.Spec.Tiering = &v1alpha1.Tiering{Mode: v1alpha1.TieringObserve}
	c.Spec.Pools[0].Tier = v1alpha1.TierFast
	c.Spec.Pools[0].Volumes = []v1alpha1.PoolVolumes{
		{Name: "hdd", StorageClassName: "member-nvme", Size: resource.MustParse("4Gi")},
		{Name: "nvme", StorageClassName: "member-nvme", Size: resource.MustParse("2Gi"), Tier: v1alpha1.TierFast},
		{Name: "none", StorageClassName: "member-nowhere", Size: resource.MustParse("2Gi")},
		{Name: "small", StorageClassName: "member-nvme", Size: resource.MustParse("1Mi")},
	}
	w.ok(w.c.Update(w.ctx, c))
	w.step()
	a := w.args("a")
	for _, want := range []string{"--backing-volume=default/hdd-0=", "--backing-volume=default/nvme-0=", "--tier=default/nvme-0=fast", "--tier=default/home=fast", "--tiering=observe"} {
		if !strings.Contains(a, want) {
			t.Errorf("%s is not in %s", want, a)
		}
	}
	for _, no := range []string{"none", "small", "hdd-0=fast"} {
		if strings.Contains(a, no) {
			t.Errorf("%s is in %s", no, a)
		}
	}
	if a := tierArgs(w.cluster(), mount{}); slices.Contains(a, "--tier=default/home=fast") {
		t.Errorf("the only place for data is fast: %v", a)
	}
	m, later, err := w.r.ensurePools(w.ctx, w.cluster(), w.get())
	w.ok(err)
	if later == nil || !strings.Contains(later.Error(), `spec.pools[default].volumes[none].storageClassName: StorageClass "member-nowhere" does not exist`) || len(m["a"].members) != 2 {
		t.Errorf("%v, %+v", later, m)
	}
	c = w.cluster()
	c.Spec.Pools[0].Volumes = c.Spec.Pools[0].Volumes[3:]
	_, later, err = w.r.ensurePools(w.ctx, c, w.get())
	w.ok(err)
	if later == nil || !strings.Contains(later.Error(), "spec.pools[default].volumes[small].size: 1Mi is less than 1Gi") {
		t.Error(later)
	}
	r, err := Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	x := r.Clusters[0].Spec
	if x.Tiering == nil || x.Tiering.Mode != v1alpha1.TieringObserve || x.Pools[0].Tier != v1alpha1.TierFast || len(x.Pools[0].Volumes) != 2 || x.Pools[0].Volumes[1].Tier != v1alpha1.TierFast {
		t.Errorf("%+v", x)
	}
	// A member that the spec does not have any more is empty when its node says so.
	at := &targetv1.Place{Volume: "default", Member: "hdd-0", Draining: true, ExtentsLeft: 5, SecondsLeft: 90}
	v := &view{nodes: [2]nodeView{{name: "a", status: &targetv1.Status{Places: []*targetv1.Place{at}}}, {name: "b"}}}
	claim := "gemel-memtiers-a-d0.default.hdd-0"
	left := mounts{"a": {members: []member{{pool: "default", of: "default", name: "hdd-0", claim: claim, left: true}}}}
	later = w.r.drainMembers(w.ctx, w.cluster(), w.get(), left, v)
	if later == nil || !strings.Contains(later.Error(), "5 extents of 4 MiB are left, for about 1m30s") || w.claim(claim).Annotations[annotationEmpty] != "" {
		t.Errorf("%v, %v", later, w.claim(claim).Annotations)
	}
	at.ExtentsLeft = 0
	later = w.r.drainMembers(w.ctx, w.cluster(), w.get(), left, v)
	if later == nil || !strings.Contains(later.Error(), "is empty") || w.claim(claim).Annotations[annotationEmpty] != "true" {
		t.Errorf("%v, %v", later, w.claim(claim).Annotations)
	}
	c = w.cluster()
	c.Spec.Pools[0].Volumes = c.Spec.Pools[0].Volumes[1:2]
	if err := w.c.Update(w.ctx, c); err == nil || !strings.Contains(err.Error(), "has one tier") {
		t.Errorf("a pool of fast volumes only: %v", err)
	}
	c = w.cluster()
	c.Spec.Pools[0].Volumes[0].StorageClassName = "disks"
	if err := w.c.Update(w.ctx, c); err == nil || !strings.Contains(err.Error(), "storageClassName") {
		t.Errorf("another class: %v", err)
	}
}

// The disk of one member is lost: it gets another claim, and its node the id of what is lost.
// Nothing else of the node changes.
func TestLostMemberIsReplaced(t *testing.T) {
	w := newWorld(t, "lostmember")
	w.run()
	w.memberClass("member-lost")
	c := w.cluster()
	c.Spec.Pools[0].Volumes = []v1alpha1.PoolVolumes{{Name: "more", StorageClassName: "member-lost", Size: resource.MustParse("2Gi")}}
	w.ok(w.c.Update(w.ctx, c))
	workers := map[string]string{"a": "lost-w1", "b": "lost-w2"}
	for i, n := range Nodes {
		w.worker(workers[n])
		w.ok(w.pair.Term(i))
		w.pair.PerNode[i] = []string{"--shared-filesystem", "--backing-volume=default/more-0=" + t.TempDir()}
		w.ok(w.pair.StartNode(i))
		w.ok(w.pair.WaitInSync(w.ctx))
	}
	w.step()
	for _, n := range Nodes {
		w.bind("gemel-lostmember-"+n+"-d0.default.more-0", w.disk("lost-"+n, workers[n], "member-lost", "2Gi"))
	}
	w.step()
	for _, n := range Nodes {
		w.pod(n, workers[n])
	}
	claim := "gemel-lostmember-a-d0.default.more-0"
	w.until("the id of the member is known", func() bool { return w.claim(claim).Annotations[annotationVolume] != "" })
	w.until("the pair is up to date", func() bool { return w.condition(v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue })
	id := uuid.NewString()
	_, err := w.pair.Client(0).CreateLUN(w.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun", SizeBytes: 64 << 20})
	w.ok(err)

	replace := func(x *v1alpha1.Replace) error {
		p := w.get()
		p.Spec.Replace = x
		return w.c.Update(w.ctx, p)
	}
	if err := replace(&v1alpha1.Replace{Node: "a", Member: "default/more-0", Worker: "lost-w2"}); err == nil || !strings.Contains(err.Error(), "leave worker out") {
		t.Errorf("a member on another worker: %v", err)
	}
	w.ok(replace(&v1alpha1.Replace{Node: "a", Member: "default/none-0"}))
	w.until("a member that is not there is named", func() bool {
		return strings.Contains(w.condition(v1alpha1.ConditionUpToDate).Message, "node a has no member default/none-0")
	})
	w.ok(replace(&v1alpha1.Replace{Node: "a", Member: "default/more-0"}))
	w.step()
	w.disk("lost-a2", workers["a"], "member-lost", "2Gi")
	lost := w.claim(claim).Annotations[annotationVolume]
	next := w.claim(claim + ".r1")
	if next.Annotations[annotationReplaces] != lost || next.Labels[v1alpha1.LabelMember] != "more-0" || *next.Spec.StorageClassName != "member-lost" || w.claim(claim).Annotations[annotationEmpty] != replacedMark {
		t.Fatalf("%+v", next)
	}
	w.restarted("a", workers["a"], "--shared-filesystem", "--backing-volume=default/more-0="+t.TempDir(), "--lost-volume="+lost)
	if a := w.args("a"); !strings.Contains(a, "--lost-volume="+lost) || strings.Contains(w.args("b"), "lost-volume") {
		t.Errorf("%s", a)
	}
	if !slices.ContainsFunc(w.set("a").Spec.Template.Spec.Volumes, func(x corev1.Volume) bool {
		return x.PersistentVolumeClaim != nil && x.PersistentVolumeClaim.ClaimName == claim+".r1"
	}) {
		t.Errorf("%+v", w.set("a").Spec.Template.Spec.Volumes)
	}
	w.until("the id of the new one is known", func() bool {
		now := w.claim(claim + ".r1").Annotations[annotationVolume]
		return now != "" && now != lost
	})
	w.ok(replace(nil))
	w.until("the pair is up to date", func() bool { return w.condition(v1alpha1.ConditionUpToDate).Status == metav1.ConditionTrue })
	r, err := Rebuild(w.ctx, w.c, w.r.Namespace)
	w.ok(err)
	if got := r.Clusters[0].Spec.Pools[0].Volumes; len(got) != 1 || got[0].Count != 1 {
		t.Errorf("%+v", got)
	}
}
