package objects

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/logicalunit"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// The workers that a volume is for are those of its pool at its creation: in the object, in every
// later answer, and on the disks, from which the object can be made again. A copy has those that
// the pool has by then.
func TestRestrictionIsOnTheDisks(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	var most []v1alpha1.TopologyTerm // that a pool takes, with keys of a usual length
	for i := range 16 {
		most = append(most, v1alpha1.TopologyTerm{MatchLabels: map[string]v1alpha1.TopologyValue{}})
		for k := range 16 {
			most[i].MatchLabels[fmt.Sprintf("topology.example.com/%s-%d", strings.Repeat("k", 20), k)] = v1alpha1.TopologyValue(fmt.Sprintf("%020d", i))
		}
	}
	c := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: operator.Cluster}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1, Pools: []v1alpha1.Pool{
		{Name: "default", StorageClassName: "disks", Size: resource.MustParse("1Gi"), AccessibleFrom: most}}}}
	r.ok(client.IgnoreNotFound(r.c.Delete(r.ctx, c.DeepCopy()))) // another test's
	r.ok(r.c.Create(r.ctx, c))
	t.Cleanup(func() { _ = r.c.Delete(context.Background(), c) })
	source := r.create("pvc-source")

	zone := []v1alpha1.TopologyTerm{{MatchLabels: map[string]v1alpha1.TopologyValue{"topology.kubernetes.io/zone": "a"}}}
	c.Spec.Pools[0].AccessibleFrom = zone
	r.ok(r.c.Update(r.ctx, c))
	clone := r.wish("pvc-clone")
	clone.SourceVolume = source.ID
	copied, err := r.b.CreateVolume(r.ctx, clone)
	r.ok(err)
	c.Spec.Pools[0].AccessibleFrom = nil
	r.ok(r.c.Update(r.ctx, c))
	open := r.create("pvc-open")

	r.b = objects.New(r.c) // restarted
	for id, want := range map[string][]v1alpha1.TopologyTerm{source.ID: most, copied.ID: zone, open.ID: nil} {
		v, err := r.b.GetVolume(r.ctx, id)
		r.ok(err)
		if len(v.AccessibleFrom) != len(want) {
			t.Errorf("%s: %v", id, v.AccessibleFrom)
		}
		lu := r.unit(id)
		disk, err := logicalunit.FromDisk(harness.PairName, r.lun(id))
		if err != nil || !equality.Semantic.DeepEqual(lu.Spec.AccessibleFrom, want) || !equality.Semantic.DeepEqual(disk.Spec.AccessibleFrom, want) {
			t.Errorf("%s: object %+v, disks %+v, %v", id, lu.Spec.AccessibleFrom, disk, err)
		}
	}
	again, err := r.b.CreateVolume(r.ctx, r.wish("pvc-source"))
	if err != nil || len(again.AccessibleFrom) != len(most) {
		t.Errorf("repeated: %+v, %v", again, err)
	}
}

// With the rights that the driver has in a cluster it reads what restricts a volume: claim, class,
// pool, and the labels of workers.
func TestDriverMayReadWhatRestricts(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	const zone = corev1.LabelTopologyZone
	namespace := envtest.Namespace(t, r.cfg)
	envtest.Install(t, r.cfg, namespace, "../../../config/rbac/csi-controller.yaml")
	k, err := operator.Client(envtest.As(r.cfg, namespace, "gemel-csi-controller"))
	r.ok(err)
	driver := objects.New(k)
	create := func(o client.Object) {
		t.Helper()
		r.ok(r.c.Create(r.ctx, o))
		t.Cleanup(func() { _ = r.c.Delete(context.Background(), o) })
	}
	old := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: operator.Cluster}}
	r.ok(client.IgnoreNotFound(r.c.Delete(r.ctx, old))) // another test's
	create(&v1alpha1.StorageCluster{ObjectMeta: old.ObjectMeta, Spec: v1alpha1.StorageClusterSpec{Pairs: 1, Pools: []v1alpha1.Pool{
		{Name: "default", StorageClassName: "disks", Size: resource.MustParse("1Gi"), AccessibleFrom: []v1alpha1.TopologyTerm{{MatchLabels: map[string]v1alpha1.TopologyValue{"example.com/rack": v1alpha1.TopologyValue(namespace)}}}}}}})
	create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Provisioner: v1alpha1.DriverName,
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: []string{"a", "b"}}}}}})
	create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{zone: "b", "example.com/rack": namespace}}})
	for name, worker := range map[string]string{"immediate": "", "later": namespace} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &namespace,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}}}}
		if worker != "" {
			claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": worker}
		}
		create(claim)
		req := r.wish("pvc-" + name)
		req.Labels[v1alpha1.DiskLabelNamespace], req.Labels[v1alpha1.DiskLabelPVC] = namespace, name
		req.Requisite = []map[string]string{{zone: "a"}, {zone: "b"}}
		r.ok(harness.Wait(r.ctx, "the volume "+name+" is made", func() (bool, string) { // the authorizer hears of roles a moment later
			v, err := driver.CreateVolume(r.ctx, req)
			if err == nil && len(v.AccessibleFrom) != 2 {
				t.Errorf("%s: %v", name, v.AccessibleFrom)
			}
			return err == nil, fmt.Sprint(err)
		}))
		if n, err := driver.Capacity(r.ctx, operator.Cluster, "", map[string]string{zone: "a"}); err != nil || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := driver.Capacity(r.ctx, operator.Cluster, "", map[string]string{zone: "a", "example.com/rack": namespace}); err != nil || n == 0 {
			t.Errorf("%d, %v", n, err)
		}
	}
}
