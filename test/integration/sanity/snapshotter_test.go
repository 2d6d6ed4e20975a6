package sanity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/kubectlgemel"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/csi/controller"
	"github.com/gemel-storage/gemel/csi/identity"
	"github.com/gemel-storage/gemel/csi/server"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

const groupGate = "--feature-gates=CSIVolumeGroupSnapshot=true"

// snapshotCRDs is the folder of those that the snapshotter's module has.
func snapshotCRDs(t *testing.T) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8")
	list.Dir = harness.Root()
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "config", "crd")
}

// groupCluster is an API server with the driver's controller service, and no operator.
func groupCluster(t *testing.T) (*env, client.WithWatch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", dirPrefix) // short: a socket's address has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &env{t: t, ctx: ctx, dir: dir}
	api := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join(harness.Root(), "config", "crd", "bases"), snapshotCRDs(t)}, ErrorIfCRDPathMissing: true}
	cfg, err := api.Start()
	t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			t.Errorf("stop of the API server: %v", err)
		}
	})
	e.ok(err)
	user, err := api.AddUser(envtest.User{Name: "driver", Groups: []string{"system:masters"}}, nil)
	e.ok(err)
	file, err := user.KubeConfig()
	e.ok(err)
	e.ok(os.WriteFile(filepath.Join(dir, "kubeconfig"), file, 0o600))
	cfg.QPS = -1
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: kubectlgemel.Scheme()})
	e.ok(err)

	b := objects.New(c)
	service := controller.New(b, slog.New(slog.DiscardHandler))
	s, err := server.Listen(filepath.Join(dir, "csi.sock"), server.Services{Identity: &identity.Server{Controller: true, Groups: b.GroupSnapshots()}, Controller: service, GroupController: service},
		prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	e.ok(err)
	served, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(served); err != nil {
			t.Errorf("the driver: %v", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return e, c
}

// boundClaim is a claim with its volume and LUN.
func (e *env) boundClaim(c client.Client, name string) {
	e.t.Helper()
	size := resource.MustParse("1Gi")
	lu := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-" + name, Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}}, Spec: v1alpha1.LogicalUnitSpec{Cluster: "main", Size: size}}
	e.ok(c.Create(e.ctx, lu))
	lu.Status.Size = &size
	e.ok(c.Status().Update(e.ctx, lu))
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	e.ok(c.Create(e.ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{AccessModes: modes, StorageClassName: "gemel",
		Capacity: corev1.ResourceList{corev1.ResourceStorage: size}, ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: lu.Name}}}}))
	p := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"group": "db"}}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: ptr.To("gemel"), VolumeName: "pv-" + name, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}}}}
	e.ok(c.Create(e.ctx, p))
	p.Status.Phase = corev1.ClaimBound
	e.ok(c.Status().Update(e.ctx, p))
}

// coordinate plays the operator for all groups: it publishes each one, and removes its snapshots
// when it is deleted.
func (e *env) coordinate(ctx context.Context, c client.Client) {
	for ctx.Err() == nil {
		var list v1alpha1.LogicalUnitGroupSnapshotList
		err := c.List(ctx, &list)
		for i := range list.Items {
			if err == nil {
				err = e.coordinateOne(ctx, c, &list.Items[i])
			}
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			e.t.Errorf("the operator's part: %v", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (e *env) coordinateOne(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) error {
	const finalizer = "gemel.storage/test"
	if !g.DeletionTimestamp.IsZero() {
		for _, m := range g.Spec.Members {
			if err := client.IgnoreNotFound(c.Delete(ctx, &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot}})); err != nil {
				return err
			}
		}
		controllerutil.RemoveFinalizer(g, finalizer)
		return c.Update(ctx, g)
	}
	if g.Status.TakenAt != nil {
		return nil
	}
	if controllerutil.AddFinalizer(g, finalizer) {
		if err := c.Update(ctx, g); err != nil {
			return err
		}
	}
	now, size := metav1.Now().Rfc3339Copy(), resource.MustParse("1Gi")
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", ObservedGeneration: g.Generation}
	for _, m := range g.Spec.Members {
		s := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: g.Spec.Cluster, Source: m.Source, Group: g.Name}}
		if err := c.Create(ctx, s); err != nil {
			return err
		}
		s.Status.Size, s.Status.TakenAt = &size, &now
		meta.SetStatusCondition(&s.Status.Conditions, ready)
		if err := c.Status().Update(ctx, s); err != nil {
			return err
		}
	}
	g.Status.TakenAt = &now
	meta.SetStatusCondition(&g.Status.Conditions, ready)
	return c.Status().Update(ctx, g)
}

// The real csi-snapshotter and snapshot-controller: a VolumeGroupSnapshot of three claims becomes
// one group snapshot of the driver and three VolumeSnapshots, which the plugin restores together,
// and its deletion deletes all of them.
func TestRealSnapshotter(t *testing.T) {
	if os.Getenv(sidecarsVariable) == "" {
		t.Skipf("%s is not set: a folder with csi-snapshotter and snapshot-controller; `make test` builds them", sidecarsVariable)
	}
	needAPIServer(t)
	e, c := groupCluster(t)
	claims := []string{"data", "log", "index"}
	for _, name := range claims {
		e.boundClaim(c, name)
	}
	coordinating, stop := context.WithCancel(e.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { e.coordinate(coordinating, c) })
	defer wg.Wait()
	defer stop()
	e.sidecar("csi-snapshotter", "--timeout=60s", groupGate)
	e.controller("snapshot-controller", groupGate)

	e.ok(c.Create(e.ctx, &groupsnapshotv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "gemel"}, Driver: v1alpha1.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete}))
	group := &groupsnapshotv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nightly"}, Spec: groupsnapshotv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: ptr.To("gemel"),
		Source: groupsnapshotv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": "db"}}}}}
	e.ok(c.Create(e.ctx, group))
	var members snapshotv1.VolumeSnapshotList
	e.ok(harness.Wait(e.ctx, "the group and its snapshots are ready", func() (bool, string) {
		err := errors.Join(c.Get(e.ctx, client.ObjectKeyFromObject(group), group), c.List(e.ctx, &members))
		ready := 0
		for _, s := range members.Items {
			if s.Status != nil && ptr.Deref(s.Status.ReadyToUse, false) && ptr.Deref(s.Status.VolumeGroupSnapshotName, "") == "nightly" {
				ready++
			}
		}
		return err == nil && group.Status != nil && ptr.Deref(group.Status.ReadyToUse, false) && ready == len(claims), fmt.Sprintf("%d ready, %+v, %v", ready, group.Status, err)
	}))
	var groups v1alpha1.LogicalUnitGroupSnapshotList
	e.ok(c.List(e.ctx, &groups))
	if len(groups.Items) != 1 || len(groups.Items[0].Spec.Members) != len(claims) {
		t.Fatalf("%+v", groups.Items)
	}
	var contents snapshotv1.VolumeSnapshotContentList
	e.ok(c.List(e.ctx, &contents))
	for _, s := range contents.Items {
		if ptr.Deref(s.Status.VolumeGroupSnapshotHandle, "") != groups.Items[0].Name || !strings.HasPrefix(ptr.Deref(s.Status.SnapshotHandle, ""), groups.Items[0].Name+"-") {
			t.Errorf("%+v", s.Status)
		}
	}

	var out bytes.Buffer
	restore := kubectlgemel.GroupRestore{Client: c, Namespace: "default", Out: &out, Suffix: "-restored"}
	e.ok(restore.Run(e.ctx, "nightly"))
	for _, name := range claims {
		p := &corev1.PersistentVolumeClaim{}
		e.ok(c.Get(e.ctx, client.ObjectKey{Namespace: "default", Name: name + "-restored"}, p))
		if !strings.Contains(out.String(), "claim default/"+p.Name+": 1Gi, ") {
			t.Errorf("%s is not in:\n%s", p.Name, &out)
		}
		p.Status.Phase = corev1.ClaimBound // a group is not deleted while a claim of it waits for its volume
		e.ok(c.Status().Update(e.ctx, p))
	}

	e.ok(c.Delete(e.ctx, group))
	e.ok(harness.Wait(e.ctx, "nothing is left", func() (bool, string) {
		left := 0
		for _, list := range []client.ObjectList{&groupsnapshotv1.VolumeGroupSnapshotList{}, &groupsnapshotv1.VolumeGroupSnapshotContentList{}, &snapshotv1.VolumeSnapshotList{},
			&snapshotv1.VolumeSnapshotContentList{}, &v1alpha1.LogicalUnitGroupSnapshotList{}, &v1alpha1.LogicalUnitSnapshotList{}} {
			if err := c.List(e.ctx, list); err != nil {
				return false, err.Error()
			}
			left += meta.LenList(list)
		}
		return left == 0, fmt.Sprint(left, " objects")
	}))
}
