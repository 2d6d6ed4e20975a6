package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/kubectlgemel"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// claims are what a pair's disks leave in a namespace, with one StatefulSet that tells the
// addresses.
func (r *rig) claims() (namespace string) {
	r.Helper()
	namespace = envtest.Namespace(r.T, r.cfg)
	labels := map[string]string{v1alpha1.LabelCluster: operator.Cluster, v1alpha1.LabelPair: harness.PairName, v1alpha1.LabelNode: "a"}
	c, err := client.New(r.cfg, client.Options{Scheme: kubectlgemel.Scheme()})
	r.ok(err)
	r.ok(c.Create(r.ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pair.NodeName(harness.PairName, "a"), Labels: labels},
		Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "target", Image: "gemel:1", Args: []string{"--portal=a=127.0.0.1:3260", "--portal=b=127.0.0.1:3260"}}}}}}}))
	for _, n := range harness.Names {
		r.ok(r.c.Create(r.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pair.ClaimName(harness.PairName, n, 0), Labels: map[string]string{
				v1alpha1.LabelCluster: operator.Cluster, v1alpha1.LabelPair: harness.PairName, v1alpha1.LabelNode: n, v1alpha1.LabelPool: "default"}},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("disks"),
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}))
	}
	return namespace
}

// control reaches the target processes of the test.
func (r *rig) control(_ context.Context, _ *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, func(), error) {
	return r.pair.Client(slices.Index(harness.Names[:], node)), func() {}, nil
}

func (r *rig) importer(namespace string, apply bool) (string, error) {
	r.Helper()
	c, err := client.New(r.cfg, client.Options{Scheme: kubectlgemel.Scheme()})
	r.ok(err)
	var out bytes.Buffer
	i := &kubectlgemel.Importer{Client: c, Namespace: namespace, Control: r.control, Out: &out, Apply: apply, Patience: 20 * time.Second, Every: 100 * time.Millisecond}
	err = i.Run(r.ctx)
	return out.String(), err
}

// Every object is deleted by force, and made again from the disks with the same hosts. No host is
// fenced in between.
func TestImportMakesDeletedObjectsAgain(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	namespace := r.claims()
	one, two := r.create("pvc-one"), r.wish("pvc-two")
	two.Labels[v1alpha1.DiskLabelAccess], two.Labels[v1alpha1.DiskLabelFSType] = v1alpha1.AccessMulti, v1alpha1.FSTypeBlock
	two.PreferredNode, two.PinnedNode, two.WriteCache = "b", "b", "write-through"
	shared, err := r.b.CreateVolume(r.ctx, two)
	r.ok(err)
	r.ok(r.publish(one.ID, hostA))
	for _, h := range []string{hostA, hostB} {
		_, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: shared.ID, HostIQN: h, ReadOnly: h == hostB})
		r.ok(err)
	}
	snap, err := r.b.CreateSnapshot(r.ctx, r.b.SnapshotID("s"), "s", one.ID)
	r.ok(err)
	clone := r.wish("pvc-three")
	clone.SourceSnapshot = snap.ID
	restored, err := r.b.CreateVolume(r.ctx, clone)
	r.ok(err)
	_, err = r.pair.Client(0).CreateLUN(r.ctx, &targetv1.CreateLUNRequest{Uuid: "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", Name: "by hand", SizeBytes: mib})
	r.ok(err)

	ids := []string{one.ID, shared.ID, restored.ID}
	specs, mapped := map[string]v1alpha1.LogicalUnitSpec{}, map[string]string{}
	for _, id := range ids {
		specs[id] = r.unit(id).Spec
		mapped[id] = fmt.Sprint(r.lun(id).Mappings)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-one"}, Spec: corev1.PersistentVolumeSpec{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: one.ID}}}}
	r.ok(r.c.Create(r.ctx, pv))
	t.Cleanup(func() { _ = r.c.Delete(context.Background(), pv) })
	pv.Status.Phase = corev1.VolumeBound
	r.ok(r.c.Status().Update(r.ctx, pv))

	r.clean()
	for _, id := range ids {
		if err := r.c.Get(r.ctx, client.ObjectKey{Name: id}, &v1alpha1.LogicalUnit{}); !apierrors.IsNotFound(err) {
			t.Fatalf("LogicalUnit %s: %v", id, err)
		}
	}
	// A host that cannot be fenced is not reported as fenced.
	if err := r.b.Unpublish(r.ctx, one.ID, hostA); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "kubectl gemel import") {
		t.Errorf("unpublished without an object: %v", err)
	}

	out, err := r.importer(namespace, false)
	r.ok(err)
	var l v1alpha1.LogicalUnitList
	r.ok(r.c.List(r.ctx, &l))
	if len(l.Items) != 0 || !strings.Contains(out, "6 objects would be created, 0 exist, 1 on the disks belong to no object, 0 failed") {
		t.Fatalf("%d objects after a dry run:\n%s", len(l.Items), out)
	}
	if out, err = r.importer(namespace, true); err != nil || !strings.Contains(out, "6 objects created") || !strings.Contains(out, `(by hand) of p0: its labels name no Kubernetes object`) {
		t.Fatalf("%v\n%s", err, out)
	}
	r.ok(operator.AddPair(r.ctx, r.c, r.pair))
	for _, id := range ids {
		lu := r.until(id, "ready", func(lu *v1alpha1.LogicalUnit) bool {
			return lu.Status.WWID != "" && len(lu.Status.Hosts) == len(lu.Spec.Hosts)
		})
		if want := specs[id]; !equalJSON(t, lu.Spec, want) {
			t.Errorf("%s: %+v, was %+v", id, lu.Spec, want)
		}
		if got := fmt.Sprint(r.lun(id).Mappings); got != mapped[id] {
			t.Errorf("%s: hosts %s, were %s", id, got, mapped[id])
		}
	}
	// A second import leaves existing objects alone, and volumes are published and destroyed as
	// before.
	if out, err = r.importer(namespace, true); err != nil || !strings.Contains(out, "0 objects created, 6 exist") {
		t.Fatalf("%v\n%s", err, out)
	}
	r.ok(r.b.Unpublish(r.ctx, one.ID, hostA))
	r.ok(r.b.Unpublish(r.ctx, shared.ID, ""))
	for _, id := range ids {
		r.ok(r.b.DeleteVolume(r.ctx, id))
	}
	r.ok(r.b.DeleteSnapshot(r.ctx, snap.ID))
	if r.luns() != 1 || r.snapshots() != 0 {
		t.Errorf("%d LUNs, %d snapshots are left", r.luns(), r.snapshots())
	}
	if _, err := r.importer(metav1.NamespaceDefault, true); !errors.Is(err, kubectlgemel.ErrImport) || !strings.Contains(err.Error(), "--system-namespace") {
		t.Error(err)
	}
}

func equalJSON(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x, y)
}
