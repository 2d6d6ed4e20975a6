package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Apps is the namespace of the claims.
const Apps = "apps"

// Callers is how many calls the sidecars of the chart make at a time.
const Callers = 50

func workerName(i int) string { return fmt.Sprintf("worker-%04d", i) }

// HostIQN is the iSCSI name of a worker.
func HostIQN(i int) string { return "iqn.2026-11.storage.gemel.node:" + workerName(i) }

// Each calls f for 0 to n-1, so many at a time, says how far it is, and ends with the first error.
func Each(ctx context.Context, what string, n, callers int, f func(ctx context.Context, i int) error) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || ctx.Err() != nil {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(fmt.Errorf("%s %d: %w", what, i, err))
					return
				}
				if k := done.Add(1); k%2000 == 0 || int(k) == n {
					fmt.Printf("  %s %s: %d of %d\n", time.Now().Format(time.TimeOnly), what, k, n)
				}
			}
		})
	}
	all.Wait()
	return int(done.Load()), context.Cause(ctx)
}

// AddWorkers makes the Nodes and Hosts of the workers.
func (f *Fleet) AddWorkers(ctx context.Context) error {
	_, err := Each(ctx, "workers", f.Workers, 16, func(ctx context.Context, i int) error {
		name := workerName(i)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3)}}}
		if err := f.Client.Create(ctx, n); err != nil {
			return err
		}
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HostSpec{IQN: HostIQN(i), AttachMode: "Kernel"}}
		return f.Client.Create(ctx, h)
	})
	return err
}

// AddCluster makes a StorageCluster, and waits until its pairs are in sync.
func (f *Fleet) AddCluster(ctx context.Context, name string, pairs int32, overcommit int32) error {
	c := &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.StorageClusterSpec{Pairs: pairs, Scrub: v1alpha1.Scrub{Schedule: "0 2 1 1 *"},
		Pools: []v1alpha1.Pool{{Name: "main", StorageClassName: "disks", Size: *resource.NewQuantity(int64(f.Capacity), resource.BinarySI), OvercommitPercent: overcommit}}}}
	if err := f.Client.Create(ctx, c); err != nil {
		return err
	}
	return f.until(ctx, 10*time.Minute, "StorageCluster "+name, func(ctx context.Context) (bool, string, error) {
		err := f.Client.Get(ctx, client.ObjectKeyFromObject(c), c)
		upToDate := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionUpToDate)
		if upToDate == nil {
			return false, "no condition", err
		}
		return c.Status.ReadyPairs == pairs && upToDate.Status == metav1.ConditionTrue && upToDate.ObservedGeneration == c.Generation, fmt.Sprintf("%d of %d pairs are in sync; %s", c.Status.ReadyPairs, pairs, upToDate.Message), err
	})
}

func (f *Fleet) until(ctx context.Context, limit time.Duration, what string, ok func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	said := time.Now()
	for {
		is, state, err := ok(ctx)
		if is && err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %s, %v: %w", what, state, err, ctx.Err())
		}
		if time.Since(said) > 15*time.Second {
			said = time.Now()
			fmt.Printf("  %s: %.200s\n", what, state)
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}}
}

// Retried repeats a call as a sidecar does, until the context ends.
func Retried(ctx context.Context, f func(context.Context) error) error {
	wait := 500 * time.Millisecond
	for {
		call, cancel := context.WithTimeout(ctx, time.Minute)
		err := f(call)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait/2 + rand.N(wait)):
			wait = min(2*wait, 30*time.Second)
		}
	}
}

// Create makes a volume, once; its claim and its PersistentVolume exist afterwards.
func (f *Fleet) Create(ctx context.Context, cluster, name string, size int64) (id string, err error) {
	r, err := csi.NewControllerClient(f.CSI).CreateVolume(ctx, &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{capability()}, Parameters: map[string]string{v1alpha1.ParamCluster: cluster}})
	if err != nil {
		return "", err
	}
	id = r.Volume.VolumeId
	q := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
	class := "gemel"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: Apps, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: q}, StorageClassName: &class, VolumeName: id}}
	if err := f.Client.Create(ctx, claim); err != nil {
		return "", err
	}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: corev1.PersistentVolumeSpec{Capacity: q, AccessModes: claim.Spec.AccessModes, StorageClassName: class,
		ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: Apps, Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: id, VolumeAttributes: r.Volume.VolumeContext}}}}
	return id, f.Client.Create(ctx, v)
}

// Attach publishes a volume to a worker.
func (f *Fleet) Attach(ctx context.Context, id string, worker int) error {
	_, err := csi.NewControllerClient(f.CSI).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: HostIQN(worker), VolumeCapability: capability()})
	return err
}

// Detach ends that.
func (f *Fleet) Detach(ctx context.Context, id string, worker int) error {
	_, err := csi.NewControllerClient(f.CSI).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: HostIQN(worker)})
	return err
}

// unit is the LogicalUnit of a volume.
func (f *Fleet) unit(ctx context.Context, id string) *v1alpha1.LogicalUnit {
	lu := &v1alpha1.LogicalUnit{}
	if f.Client.Get(ctx, client.ObjectKey{Name: id}, lu) != nil {
		return nil
	}
	return lu
}

// On reports whether a volume is on a pair.
func (f *Fleet) On(ctx context.Context, id, pair string) bool {
	lu := f.unit(ctx, id)
	return lu != nil && lu.Spec.Placement.On(pair)
}

// WorkerOf is the worker that a volume is attached to, -1 if there is none.
func (f *Fleet) WorkerOf(ctx context.Context, id string) int {
	if lu := f.unit(ctx, id); lu != nil && len(lu.Spec.Hosts) > 0 {
		for i := range f.Workers {
			if HostIQN(i) == lu.Spec.Hosts[0].IQN {
				return i
			}
		}
	}
	return -1
}
