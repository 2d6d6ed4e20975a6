package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/envtest"
)

func TestMain(m *testing.M) { envtest.Main(m, "../../../config/crd/bases") }

// A real API server accepts the object of the largest group, its watch tells the driver when the
// operator has published it, and when it is gone.
func TestGroupSnapshotWithAnAPIServer(t *testing.T) {
	cfg := envtest.Config(t)
	cfg.QPS = -1 // as the driver has it
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var sources []string
	for i := range v1alpha1.MaxGroupMembers {
		lu := unitNamed(fmt.Sprint("lun-", i), "main")
		status := lu.Status
		if err := c.Create(ctx, lu); err != nil {
			t.Fatal(err)
		}
		lu.Status = status
		if err := c.Status().Update(ctx, lu); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, lu.Name)
	}
	b := New(c)
	id := b.GroupSnapshotID("groupsnapshot-1")
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { operate(ctx, t, c, id) })
	g, err := b.CreateGroupSnapshot(ctx, id, "groupsnapshot-1", sources)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range g.Snapshots {
		ids = append(ids, m.ID)
	}
	if len(ids) != len(sources) || !g.Created.Equal(takenAt.Time) {
		t.Errorf("%+v", g)
	}
	if again, err := b.CreateGroupSnapshot(ctx, id, "groupsnapshot-1", sources); err != nil || len(again.Snapshots) != len(ids) || again.Snapshots[0].ID != ids[0] {
		t.Errorf("%+v, %v", again, err)
	}
	if err := b.DeleteGroupSnapshot(ctx, id, ids); err != nil {
		t.Fatal(err)
	}
	if _, err := b.GetGroupSnapshot(ctx, id); !errors.Is(err, backend.ErrNotFound) {
		t.Error(err)
	}
	var left v1alpha1.LogicalUnitSnapshotList
	if err := c.List(ctx, &left); err != nil || len(left.Items) != 0 {
		t.Errorf("%d snapshots are left, %v", len(left.Items), err)
	}
}

// operate plays the operator for one group, until its object is gone.
func operate(ctx context.Context, t *testing.T, c client.Client, id string) {
	seen := false
	for ctx.Err() == nil {
		var g v1alpha1.LogicalUnitGroupSnapshot
		err := c.Get(ctx, client.ObjectKey{Name: id}, &g)
		switch {
		case apierrors.IsNotFound(err) && seen:
			return
		case apierrors.IsNotFound(err):
		case err != nil:
			t.Error(err)
			return
		case !g.DeletionTimestamp.IsZero():
			for _, m := range g.Spec.Members {
				if err := client.IgnoreNotFound(c.Delete(ctx, &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot}})); err != nil {
					t.Error(err)
				}
			}
			controllerutil.RemoveFinalizer(&g, finalizer)
			err = c.Update(ctx, &g)
		case !seen:
			seen = true
			err = publishLive(ctx, c, &g)
		}
		if err := client.IgnoreNotFound(err); err != nil && !apierrors.IsConflict(err) {
			t.Error(err)
			return
		}
		_ = sleep(ctx, conflictPause)
	}
}

// publishLive publishes a group before its members, the order in which the driver has to wait.
func publishLive(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) error {
	controllerutil.AddFinalizer(g, finalizer)
	if err := c.Update(ctx, g); err != nil {
		return err
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", ObservedGeneration: g.Generation}
	meta.SetStatusCondition(&g.Status.Conditions, ready)
	g.Status.TakenAt, g.Status.Attempt = &takenAt, 1
	if err := c.Status().Update(ctx, g); err != nil {
		return err
	}
	size := unitNamed("x", "main").Spec.Size
	for _, m := range g.Spec.Members {
		s := &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot}, Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: g.Spec.Cluster, Source: m.Source, Group: g.Name}}
		if err := c.Create(ctx, s); err != nil {
			return err
		}
		s.Status.Size, s.Status.TakenAt = &size, &takenAt
		meta.SetStatusCondition(&s.Status.Conditions, ready)
		if err := c.Status().Update(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
