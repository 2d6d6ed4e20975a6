package objects

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// withPool describes a cluster with two pools, and gives the nodes the second one, one after the
// other.
func (r *rig) withPool() {
	r.Helper()
	c := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: operator.Cluster}, Spec: v1alpha1.StorageClusterSpec{Pairs: 1, Pools: []v1alpha1.Pool{
		{Name: "default", StorageClassName: "disks", Size: resource.MustParse("1Gi")}, {Name: "fast", StorageClassName: "flash", Size: resource.MustParse("1Gi")}}}}
	r.ok(client.IgnoreNotFound(r.c.Delete(r.ctx, c.DeepCopy()))) // another test's
	r.ok(r.c.Create(r.ctx, c))
	r.Cleanup(func() { _ = r.c.Delete(context.Background(), c) })
	for i := range harness.Names {
		r.pair.PerNode[i] = []string{"--backing-volume=fast=" + r.TempDir(), "--shared-filesystem"}
		r.ok(r.pair.Term(i))
		r.ok(r.pair.StartNode(i))
		r.ok(r.pair.WaitInSync(r.ctx))
	}
	r.ok(operator.AddPair(r.ctx, r.c, r.pair))
}

// A volume lies in the pool that its class names, and its copies with it; another one is refused
// with the reason, and the disks bring the pool back.
func TestVolumesInAPool(t *testing.T) {
	r := start(t, 2*time.Minute)
	r.operate()
	old := r.create("pvc-old") // before there were pools
	in := func(name, pool string, change func(*backend.CreateVolume)) (backend.Volume, error) {
		req := r.wish(name)
		req.Pool = pool
		if change != nil {
			change(&req)
		}
		return r.b.CreateVolume(r.ctx, req)
	}
	hurry := func(name, pool string, change func(*backend.CreateVolume)) error {
		t.Helper()
		_, err := in(name, pool, change)
		return err
	}
	r.withPool()
	v, err := in("pvc-fast", "fast", nil)
	r.ok(err)
	if v.Pool != "fast" || r.lun(v.ID).Volume != "fast" || r.unit(v.ID).Spec.Placement.Pool != "fast" {
		t.Errorf("%+v, %v", v, r.lun(v.ID))
	}
	if again, err := in("pvc-fast", "fast", nil); err != nil || again.ID != v.ID {
		t.Errorf("%+v, %v", again, err)
	}
	if err := hurry("pvc-fast", "default", nil); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "pool fast") {
		t.Errorf("%v", err)
	}
	first, err := in("pvc-first", "", nil)
	r.ok(err)
	if first.Pool != "default" || r.lun(first.ID).Volume != "default" || r.lun(old.ID).Volume != "default" {
		t.Errorf("%+v", first)
	}
	if err := hurry("pvc-slow", "slow", nil); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "has no pool slow; its pools are default, fast") {
		t.Errorf("%v", err)
	}
	if n, err := r.b.Capacity(r.ctx, operator.Cluster, "fast", nil); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}

	snap, err := r.b.CreateSnapshot(r.ctx, r.b.SnapshotID("s"), "s", v.ID)
	r.ok(err)
	var o v1alpha1.LogicalUnitSnapshot
	r.ok(r.c.Get(r.ctx, client.ObjectKey{Name: snap.ID}, &o))
	if o.Spec.Placement.Pool != "fast" {
		t.Errorf("%+v", o.Spec.Placement)
	}
	restore := func(req *backend.CreateVolume) { req.SourceSnapshot = snap.ID }
	clone := func(req *backend.CreateVolume) { req.SourceVolume = v.ID }
	for name, change := range map[string]func(*backend.CreateVolume){"restored": restore, "cloned": clone} {
		if err := hurry(name, "default", change); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "which is fast, not default") {
			t.Errorf("%s: %v", name, err)
		}
		c, err := in(name, "", change)
		r.ok(err)
		if c.Pool != "fast" || r.lun(c.ID).Volume != "fast" {
			t.Errorf("%s: %+v", name, c)
		}
	}

	specs := map[string]v1alpha1.LogicalUnitSpec{old.ID: r.unit(old.ID).Spec, v.ID: r.unit(v.ID).Spec, first.ID: r.unit(first.ID).Spec}
	namespace := r.claims()
	for _, n := range harness.Names {
		r.ok(r.c.Create(r.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pair.PoolClaim(harness.PairName, n, 0, "fast"), Labels: map[string]string{
				v1alpha1.LabelCluster: operator.Cluster, v1alpha1.LabelPair: harness.PairName, v1alpha1.LabelNode: n, v1alpha1.LabelPool: "fast"}},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To("flash"),
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}))
	}
	r.clean()
	r.ok(r.c.Delete(r.ctx, &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: operator.Cluster}}))
	if out, err := r.importer(namespace, true); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for id, want := range specs {
		if got := r.unit(id).Spec; !equalJSON(t, got, want) {
			t.Errorf("%+v, was %+v", got, want)
		}
	}
	var c v1alpha1.StorageCluster
	r.ok(r.c.Get(r.ctx, client.ObjectKey{Name: operator.Cluster}, &c))
	if c.Spec.PoolNames() != "default, fast" || c.Spec.Pools[1].StorageClassName != "flash" {
		t.Errorf("%+v", c.Spec.Pools)
	}
	r.ok(operator.AddPair(r.ctx, r.c, r.pair))
	for _, id := range []string{r.b.VolumeID("restored"), r.b.VolumeID("cloned"), v.ID, first.ID, old.ID} {
		r.until(id, "ready", func(lu *v1alpha1.LogicalUnit) bool { return lu.Status.WWID != "" })
		r.ok(r.b.DeleteVolume(r.ctx, id))
	}
}
