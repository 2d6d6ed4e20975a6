package pair

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/pki"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Everything that two nodes need is created, with pinned addresses, and another reconcile changes
// nothing.
func TestCreatesWhatTargetsNeed(t *testing.T) {
	w := newWorld(t, "makes")
	w.down["a"], w.down["b"] = true, true
	w.step()
	p := w.get()
	for _, n := range p.Spec.Nodes {
		s := &corev1.Service{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: NodeName(p.Name, n.Name)}, s))
		if n.Address == "" || s.Spec.ClusterIP != n.Address || !s.Spec.PublishNotReadyAddresses {
			t.Errorf("node %s has address %q, its service %q", n.Name, n.Address, s.Spec.ClusterIP)
		}
		args := strings.Join(w.set(n.Name).Spec.Template.Spec.Containers[0].Args, " ")
		for _, want := range []string{"--arbiter=lease:" + w.r.Namespace + "/gemel-makes", "--node=" + n.Name, "--portal=a=" + p.Spec.Nodes[0].Address + ":3260", "--portal=b=" + p.Spec.Nodes[1].Address + ":3260"} {
			if !strings.Contains(args, want) {
				t.Errorf("node %s: %s lacks %s", n.Name, args, want)
			}
		}
	}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: "gemel-target-" + Base(p.Name)}, &rbacv1.RoleBinding{}))
	for _, o := range []client.Object{&coordinationv1.Lease{}, &policyv1.PodDisruptionBudget{}, &corev1.ServiceAccount{}} {
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: Base(p.Name)}, o))
	}
	if c := w.condition(v1alpha1.ConditionReady); c.Status != metav1.ConditionFalse || c.Message == "" {
		t.Errorf("%+v", c)
	}
	claim := &corev1.PersistentVolumeClaim{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: ClaimName(p.Name, "a", 0)}, claim))
	for _, o := range append(w.parts(), claim) {
		w.ok(w.c.Get(w.ctx, client.ObjectKeyFromObject(o), o))
		if len(o.GetOwnerReferences()) != 0 {
			t.Errorf("%T %s is collected with its TargetPair: a TargetPair that is deleted by force would take the targets down", o, o.GetName())
		}
	}
	// A target has no more capabilities than it needs: IPC_LOCK for decision 0033, and never
	// SYS_RESOURCE.
	if add := w.set("a").Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add; !slices.Equal(add, []corev1.Capability{"DAC_OVERRIDE", "FOWNER", "IPC_LOCK"}) {
		t.Errorf("capabilities %v", add)
	}
	// A deleted Service is created again with its address: sessions use it.
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.r.Namespace, Name: NodeName(p.Name, "a")}}
	w.ok(w.c.Delete(w.ctx, s))
	before := w.set("a").ResourceVersion
	w.step()
	w.ok(w.c.Get(w.ctx, client.ObjectKeyFromObject(s), s))
	if s.Spec.ClusterIP != p.Spec.Nodes[0].Address {
		t.Errorf("the service came back as %s, not %s", s.Spec.ClusterIP, p.Spec.Nodes[0].Address)
	}
	if after := w.set("a").ResourceVersion; after != before {
		t.Error("applying unchanged objects writes")
	}
}

func TestCertificatesAreRenewedWhenDue(t *testing.T) {
	w := newWorld(t, "certs")
	w.down["a"], w.down["b"] = true, true
	w.step()
	read := func(name string) *corev1.Secret {
		s := &corev1.Secret{}
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: name}, s))
		return s
	}
	node, ca := read(NodeName("certs", "a")), read(AuthoritySecret("certs"))
	w.step()
	if read(node.Name).ResourceVersion != node.ResourceVersion {
		t.Error("a certificate that is not due was renewed")
	}
	w.r.Now = func() time.Time { return time.Now().Add(pki.LeafValidity * 7 / 10) }
	w.step()
	if string(read(node.Name).Data[corev1.TLSCertKey]) == string(node.Data[corev1.TLSCertKey]) {
		t.Error("a certificate that is due was not renewed")
	}
	if read(ca.Name).ResourceVersion != ca.ResourceVersion {
		t.Error("the authority was created again")
	}
	if string(read(node.Name).Data[pairconn.KeyCA]) != string(ca.Data[corev1.TLSCertKey]) || read(ControlSecret("certs")).Data[corev1.TLSPrivateKeyKey] == nil {
		t.Error("the certificates lack their authority")
	}
}

// An unfit StorageClass is rejected in a condition and an event that name the field, before any
// claim is created.
func TestRejectsUnfitStorageClasses(t *testing.T) {
	w := newWorld(t, "classes")
	w.down["a"], w.down["b"] = true, true
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "at-once"}, Provisioner: "example.org/disk"})))
	w.ok(client.IgnoreAlreadyExists(w.c.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Provisioner: v1alpha1.DriverName})))
	for class, want := range map[string]string{"own": "StorageClass of Gemel", "none": "does not exist", "at-once": "WaitForFirstConsumer"} {
		c := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: "classes-" + class}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1,
			Pools: []v1alpha1.Pool{{Name: "default", StorageClassName: class, Size: resource.MustParse("10Gi")}}}}
		w.ok(w.c.Create(w.ctx, c))
		w.name = c.Name
		w.ok(w.c.Create(w.ctx, &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: v1alpha1.TargetPairSpec{Cluster: c.Name,
			Nodes: []v1alpha1.PairNode{{Name: "a"}, {Name: "b"}}}}))
		w.step()
		if x := w.condition(v1alpha1.ConditionReady); x.Reason != v1alpha1.ReasonInvalid || !strings.Contains(x.Message, want) || !strings.Contains(x.Message, "storageClassName") {
			t.Errorf("%s: %+v", class, x)
		}
		w.step()
		if got := w.events(); len(got) != 2 || !strings.Contains(strings.Join(got, "|"), "Warning Invalid spec.pools[default].storageClassName") { // the other event: the pair is not in sync
			t.Errorf("%s: %q", class, got)
		}
		err := w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: ClaimName(w.name, "a", 0)}, &corev1.PersistentVolumeClaim{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s: there is a claim: %v", class, err)
		}
	}
}

// A volume that is not local is rejected before a target uses it; a local volume is retained when
// its claim is deleted.
func TestRejectsNetworkVolumes(t *testing.T) {
	w := newWorld(t, "network")
	w.down["a"], w.down["b"] = true, true
	volume := func(name, node string, affine bool) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{StorageClassName: "disks",
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.org", VolumeHandle: name}}}}
		if affine {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"w1"}}}}}}}
		}
		w.ok(w.c.Create(w.ctx, v))
		w.ok(w.c.Create(w.ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.r.Namespace, Name: ClaimName(w.name, node, 0)},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("disks"), VolumeName: name, AccessModes: v.Spec.AccessModes,
				Resources: corev1.VolumeResourceRequirements{Requests: v.Spec.Capacity}}}))
		return v
	}
	local := volume("network-local", "a", true)
	volume("network-far", "b", false)
	w.step()
	if x := w.condition(v1alpha1.ConditionReady); x.Reason != v1alpha1.ReasonInvalid || !strings.Contains(x.Message, "network-far has no node affinity") {
		t.Errorf("%+v", x)
	}
	if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: NodeName(w.name, "a")}, &appsv1.StatefulSet{}); !apierrors.IsNotFound(err) {
		t.Errorf("a target uses the volume: %v", err)
	}
	w.ok(w.c.Get(w.ctx, client.ObjectKeyFromObject(local), local))
	if local.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Error("the local volume would be deleted with its claim")
	}
}

// If a node cannot be scheduled, the condition names the fields of the StorageCluster.
func TestUnschedulableNodeNamesTheFields(t *testing.T) {
	w := newWorld(t, "homeless")
	w.down["a"], w.down["b"] = true, true
	w.step()
	w.pod("a", "worker-1")
	pod := w.pod("b", "")
	for said, want := range map[string][]string{
		"0/3 nodes are available: 1 node(s) didn't find available persistent volumes to bind.":      {v1alpha1.ReasonNoStorage, "spec.pools[default].size", "10Gi", "storageClassName"},
		"0/3 nodes are available: 3 node(s) did not have enough free storage.":                      {v1alpha1.ReasonNoStorage, "spec.pools[default].size"},
		"0/3 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 2 were cordoned.": {v1alpha1.ReasonTooFewNodes, "spec.failureDomainKey", "spec.nodeSelector"},
	} {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: said}}
		w.ok(w.c.Status().Update(w.ctx, pod))
		w.step()
		c := w.condition(v1alpha1.ConditionReady)
		if c.Reason != want[0] || !strings.Contains(c.Message, said) {
			t.Errorf("%s: %+v", said, c)
		}
		for _, s := range want[1:] {
			if !strings.Contains(c.Message, s) {
				t.Errorf("%q lacks %q", c.Message, s)
			}
		}
	}
	if n := len(slices.DeleteFunc(w.events(), func(e string) bool {
		return !strings.Contains(e, "cannot be scheduled") || strings.Contains(e, "Degraded")
	})); n == 0 || n > 3 {
		t.Errorf("%d events", n)
	}
}

// A new image is rolled out one node at a time: ownership moves away first, and the next node waits
// until both are in sync.
func TestRollsOneNodeAtATime(t *testing.T) {
	w := newWorld(t, "rolls")
	w.run()
	id := uuid.NewString()
	_, err := w.pair.Client(0).CreateLUN(w.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 1 << 20, PreferredNode: "a"})
	w.ok(err)
	w.step()
	w.pod("a", "worker-1")
	w.pod("b", "worker-2")
	w.step()
	p := w.get()
	if p.Spec.Nodes[0].Worker != "worker-1" || p.Spec.Nodes[1].Worker != "worker-2" {
		t.Fatalf("the workers that the scheduler chose are not recorded: %+v", p.Spec.Nodes)
	}
	w.step()
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionInSync, v1alpha1.ConditionReachable} {
		if c := w.condition(kind); c.Status != metav1.ConditionTrue {
			t.Fatalf("%+v", c)
		}
	}
	if s := w.get().Status; !slices.Equal(s.Orphans, []string{id}) {
		t.Fatalf("a LUN without an object is not named: %v", s.Orphans)
	}
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "rolls"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "rolls", Size: resource.MustParse("1Mi"),
		Placement: &v1alpha1.Placement{Pair: w.name, UUID: id}}}
	w.ok(w.c.Create(w.ctx, lu))
	w.step()
	if s := w.get().Status; len(s.Orphans) != 0 {
		t.Fatalf("%v", s.Orphans)
	}
	if s := w.get().Status; s.LogicalUnits != 1 || s.Epoch != 1 || len(s.Members) != 2 || s.Nodes[0].Owned+s.Nodes[1].Owned != 1 || s.Free == nil {
		t.Fatalf("%+v", s)
	}
	// Recording a worker changes the template, which must not restart a pod.
	if got := w.events(); slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "restarted") }) {
		t.Fatalf("%q", got)
	}
	c := &v1alpha1.StorageCluster{}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, c))
	c.Spec.Image = "gemel:2"
	w.ok(w.c.Update(w.ctx, c))
	var order []string
	for len(order) < 2 {
		w.step()
		for _, n := range Nodes {
			if slices.Contains(order, n) || !w.gone(n) {
				continue
			}
			// While it is down nothing happens to the other node.
			owner, err := w.pair.Client(1-slices.Index(Nodes, n)).GetLUN(w.ctx, &targetv1.GetLUNRequest{Uuid: id})
			w.ok(err)
			if owner.Owner == n {
				t.Fatalf("node %s was taken down while it owned a LUN", n)
			}
			order = append(order, n)
			w.ok(w.pair.Term(slices.Index(Nodes, n)))
			w.step()
			w.pod(n, "")
			w.step()
			if len(order) == 1 && w.gone(Other(n)) {
				t.Fatalf("node %s was taken down while %s was away", Other(n), n)
			}
			w.ok(w.pair.StartNode(slices.Index(Nodes, n)))
			w.ok(w.pair.WaitInSync(w.ctx))
		}
		if w.ctx.Err() != nil {
			t.Fatalf("restarted: %v; %+v", order, w.get().Status)
		}
	}
	if order[0] != "b" {
		t.Errorf("the owner went first: %v", order)
	}
	w.step()
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionTrue || images(w) != "gemel:2 gemel:2" {
		t.Errorf("%+v, %s", c, images(w))
	}
}

// spec.replace gives a lost node another disk and keeps the former claim, but not while the other
// node does not serve.
func TestReplaceGivesANodeAnotherDisk(t *testing.T) {
	w := newWorld(t, "replace")
	w.run()
	w.step()
	w.pod("a", "worker-1")
	w.pod("b", "worker-2")
	w.step()
	w.step()
	w.ok(w.pair.Kill(1))
	w.ok(harness.Wait(w.ctx, "node a is alone", func() (bool, string) {
		w.step()
		return w.get().Status.Nodes[0].Phase == "Alone", w.get().Status.Nodes[0].Phase
	}))
	if c := w.condition(v1alpha1.ConditionInSync); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "node b") {
		t.Errorf("%+v", c)
	}
	p := w.get()
	p.Spec.Replace = &v1alpha1.Replace{Node: "a"}
	w.ok(w.c.Update(w.ctx, p))
	w.step()
	if got := w.get(); got.Spec.Nodes[0].Disk != 0 {
		t.Fatal("the only node with the data was replaced")
	}
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonInUse {
		t.Fatalf("%+v", c)
	}
	p = w.get()
	p.Spec.Replace = &v1alpha1.Replace{Node: "b", Worker: "worker-3"}
	w.ok(w.c.Update(w.ctx, p))
	for range 3 {
		w.step()
	}
	p = w.get()
	if n := p.Spec.Nodes[1]; n.Disk != 1 || n.Worker != "worker-3" || p.Status.Replaced == nil {
		t.Fatalf("%+v", p)
	}
	for _, disk := range []int32{0, 1} {
		w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: ClaimName(p.Name, "b", disk)}, &corev1.PersistentVolumeClaim{}))
	}
	if !w.gone("b") {
		t.Fatal("the old pod still exists")
	}
	if v := w.pod("b", "worker-3").Spec.Volumes[0].PersistentVolumeClaim.ClaimName; v != ClaimName(p.Name, "b", 1) {
		t.Fatalf("the new pod uses %s", v)
	}
}

// The Lease of a started pair is not created again: an empty Lease would fence both nodes.
func TestLostLeaseIsNotCreatedAgain(t *testing.T) {
	w := newWorld(t, "lost-lease")
	w.run()
	w.step()
	w.pod("a", "worker-1")
	w.pod("b", "worker-2")
	w.step()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.r.Namespace, Name: Base(w.name)}}
	w.ok(w.c.Delete(w.ctx, lease))
	w.step()
	if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(lease), lease); !apierrors.IsNotFound(err) {
		t.Fatalf("%v", err)
	}
	if c := w.condition(v1alpha1.ConditionUpToDate); c.Reason != v1alpha1.ReasonMissing || !strings.Contains(c.Message, "Lease") {
		t.Fatalf("%+v", c)
	}
	if c := w.condition(v1alpha1.ConditionReady); c.Status != metav1.ConditionTrue {
		t.Fatalf("%+v", c)
	}
}

// A pair with a LUN is not removed; an empty pair is, and its disks stay.
func TestDeletionWaitsForLUNsAndKeepsDisks(t *testing.T) {
	w := newWorld(t, "deletion")
	w.run()
	id := uuid.NewString()
	_, err := w.pair.Client(0).CreateLUN(w.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 1 << 20})
	w.ok(err)
	w.step()
	w.step()
	w.ok(w.c.Delete(w.ctx, w.get()))
	w.step()
	if got := w.events(); !slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "the pair has 1 LUNs") }) {
		t.Errorf("%q", got)
	}
	w.down["a"], w.down["b"] = true, true
	w.step()
	if len(w.get().Finalizers) == 0 {
		t.Fatal("a pair that does not answer was removed")
	}
	w.down = map[string]bool{}
	_, err = w.pair.Client(0).DeleteLUN(w.ctx, &targetv1.DeleteLUNRequest{Uuid: id})
	w.ok(err)
	w.step()
	if err := w.c.Get(w.ctx, client.ObjectKey{Name: w.name}, &v1alpha1.TargetPair{}); !apierrors.IsNotFound(err) {
		t.Fatalf("%v", err)
	}
	w.ok(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.r.Namespace, Name: ClaimName(w.name, "a", 0)}, &corev1.PersistentVolumeClaim{}))
	for _, o := range w.parts() {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s stays: %v", o, o.GetName(), err)
		}
	}
}
