package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

const finalizer = "gemel.storage/test"

// unitNamed is a LUN that was created.
func unitNamed(name, cluster string) *v1alpha1.LogicalUnit {
	size := resource.MustParse("1Gi")
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: cluster, Size: size}, Status: v1alpha1.LogicalUnitStatus{Size: &size}}
}

// coordinator plays the operator: it sees each group when it is created, and when it is deleted.
type coordinator struct {
	t      *testing.T
	take   func(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot)
	made   int
	remove bool // it removes the finalizer when the object is deleted
}

// server is an API server with this operator.
func (o *coordinator) server(objs ...client.Object) client.WithWatch {
	o.t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		o.t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objs...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			g, ok := obj.(*v1alpha1.LogicalUnitGroupSnapshot)
			if ok {
				g.Finalizers = append(g.Finalizers, finalizer)
			}
			if err := c.Create(ctx, obj, opts...); err != nil || !ok {
				return err
			}
			o.made++
			if o.take != nil {
				o.take(ctx, c, g.DeepCopy())
			}
			return nil
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := c.Delete(ctx, obj, opts...); err != nil || !o.remove {
				return err
			}
			var g v1alpha1.LogicalUnitGroupSnapshot
			if err := c.Get(ctx, client.ObjectKeyFromObject(obj), &g); err != nil {
				return client.IgnoreNotFound(err)
			}
			if !g.Spec.Destroy {
				o.t.Error("deleted without spec.destroy: the operator would keep the data for ever")
			}
			for _, m := range g.Spec.Members {
				if err := client.IgnoreNotFound(c.Delete(ctx, &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot}})); err != nil {
					o.t.Error(err)
				}
			}
			g.Finalizers = nil
			return c.Update(ctx, &g)
		},
	}).Build()
}

var takenAt = metav1.NewTime(time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC))

func (o *coordinator) ok(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Error(err)
	}
}

// members creates the snapshots of a group, Ready.
func (o *coordinator) members(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) {
	size := resource.MustParse("1Gi")
	for _, m := range g.Spec.Members {
		o.ok(c.Create(ctx, &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: m.Snapshot},
			Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: g.Spec.Cluster, Source: m.Source, Group: g.Name},
			Status: v1alpha1.LogicalUnitSnapshotStatus{Size: &size, TakenAt: &takenAt, Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}}}}))
	}
}

// condition sets the group's.
func (o *coordinator) condition(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot, status metav1.ConditionStatus, reason string) {
	meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "pair main-p0: why", ObservedGeneration: g.Generation})
	if status == metav1.ConditionTrue {
		g.Status.TakenAt = &takenAt
	}
	o.ok(c.Update(ctx, g))
}

func (o *coordinator) publish(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) {
	o.members(ctx, c, g)
	o.condition(ctx, c, g, metav1.ConditionTrue, "Ready")
}

// IDs must never change: a repeated create would not find its group, nor the group its snapshots.
func TestGroupIDsAreStable(t *testing.T) {
	b := New(nil)
	if got := b.GroupSnapshotID("groupsnapshot-1"); got != "group-a735c73ed9ad50327f0b283114067185" || !validName.MatchString(got) {
		t.Error(got)
	}
	want := []v1alpha1.GroupSnapshotMember{{Source: "a", Snapshot: "g-0"}, {Source: "b", Snapshot: "g-1"}, {Source: "c", Snapshot: "g-2"}}
	for _, sources := range [][]string{{"a", "b", "c"}, {"c", "a", "b"}} {
		if got := membersOf("g", sources); !equal(got, want) {
			t.Errorf("%v: %v", sources, got)
		}
	}
}

// The object names its members once; a repeated call, in any order, finds it, and another list of
// volumes is refused.
func TestGroupSnapshotIsOneObject(t *testing.T) {
	o := &coordinator{t: t}
	o.take = o.publish
	c := o.server(unitNamed("lun-b", "main"), unitNamed("lun-a", "main"), unitNamed("lun-c", "main"))
	b := New(c)
	for _, sources := range [][]string{{"lun-b", "lun-a"}, {"lun-a", "lun-b"}} {
		g, err := b.CreateGroupSnapshot(t.Context(), "group-1", "g", sources)
		if err != nil {
			t.Fatal(err)
		}
		if g.ID != "group-1" || g.Name != "g" || !g.Created.Equal(takenAt.Time) || len(g.Snapshots) != 2 {
			t.Errorf("%+v", g)
		}
		for i, s := range g.Snapshots {
			if s.ID != fmt.Sprint("group-1-", i) || s.Group != "group-1" || s.SourceVolume != []string{"lun-a", "lun-b"}[i] || s.Size != 1<<30 {
				t.Errorf("%+v", s)
			}
		}
	}
	if o.made != 1 {
		t.Errorf("%d objects were made", o.made)
	}
	var g v1alpha1.LogicalUnitGroupSnapshot
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &g); err != nil || g.Spec.Cluster != "main" || g.Labels[v1alpha1.LabelCluster] != "main" || g.Spec.Destroy {
		t.Errorf("%+v, %v", g, err)
	}
	for _, other := range [][]string{{"lun-a"}, {"lun-a", "lun-c"}, {"lun-a", "lun-b", "lun-c"}} {
		if _, err := b.CreateGroupSnapshot(t.Context(), "group-1", "g", other); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "lun-a, lun-b") {
			t.Errorf("%v: %v", other, err)
		}
	}
	if _, err := b.CreateGroupSnapshot(t.Context(), "group-1", "other", []string{"lun-a", "lun-b"}); !errors.Is(err, backend.ErrExists) {
		t.Error(err)
	}
	if got, err := b.GetGroupSnapshot(t.Context(), "group-1"); err != nil || len(got.Snapshots) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// What cannot be taken together is refused with the field, and no object is made.
func TestGroupSnapshotNeedsItsSources(t *testing.T) {
	growing, dying, unplaced := unitNamed("growing", "main"), unitNamed("dying", "main"), unitNamed("unplaced", "main")
	growing.Spec.Size = resource.MustParse("2Gi")
	dying.Spec.Destroy = true
	unplaced.Annotations, unplaced.Status.Size = nil, nil
	o := &coordinator{t: t}
	o.take = o.publish
	c := o.server(unitNamed("lun-a", "main"), unitNamed("other", "second"), growing, dying, unplaced)
	for name, x := range map[string]struct {
		source string
		err    error
		says   string
	}{
		"unknown":           {"lun-9", backend.ErrNotFound, `"lun-9" does not exist`},
		"another driver's":  {"projects/p/zones/z/disks/d", backend.ErrNotFound, "does not exist"},
		"being deleted":     {"dying", backend.ErrNotFound, "being deleted"},
		"not created yet":   {"unplaced", backend.ErrNotFound, "not created yet"},
		"another cluster's": {"other", backend.ErrNotTogether, "StorageCluster main, volume other in second"},
		"being expanded":    {"growing", backend.ErrNotTogether, "from 1Gi to 2Gi"},
	} {
		_, err := New(c).CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a", x.source})
		if !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.says) || !strings.Contains(err.Error(), "source_volume_ids") || o.made != 0 {
			t.Errorf("%s: %v, made %d", name, err, o.made)
		}
	}
	// A group that exists needs its sources no more.
	if _, err := New(c).CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), unitNamed("lun-a", "main")); err != nil {
		t.Fatal(err)
	}
	if _, err := New(c).CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a"}); err != nil {
		t.Error(err)
	}
}

// A failure is reported with its class, and the object is removed, so that nothing is left.
func TestFailedGroupSnapshotIsRemoved(t *testing.T) {
	for reason, want := range map[string]error{v1alpha1.ReasonNoRoom: backend.ErrExhausted, v1alpha1.ReasonNoSource: backend.ErrNotFound, v1alpha1.ReasonInvalid: backend.ErrInvalid} {
		o := &coordinator{t: t, remove: true}
		o.take = func(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) {
			o.condition(ctx, c, g, metav1.ConditionFalse, reason)
		}
		c := o.server(unitNamed("lun-a", "main"))
		if _, err := New(c).CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a"}); !errors.Is(err, want) || !strings.Contains(err.Error(), "pair main-p0: why") {
			t.Errorf("%s: %v", reason, err)
		}
		var g v1alpha1.LogicalUnitGroupSnapshot
		if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &g); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %+v, %v", reason, g, err)
		}
	}
	// What was there once, and is not, is not removed.
	o := &coordinator{t: t, remove: true}
	o.take = func(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) {
		o.condition(ctx, c, g, metav1.ConditionFalse, v1alpha1.ReasonMissing)
	}
	c := o.server(unitNamed("lun-a", "main"))
	if _, err := New(c).CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a"}); !errors.Is(err, backend.ErrNotFound) {
		t.Error(err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &v1alpha1.LogicalUnitGroupSnapshot{}); err != nil {
		t.Error(err)
	}
}

// While the pair is away or the cut is tried again, the call waits until its deadline; the object
// stays, and the repeated call finds it.
func TestUnfinishedGroupSnapshotStays(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonPairDown, v1alpha1.ReasonProgressing} {
		o := &coordinator{t: t, remove: true}
		o.take = func(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) {
			o.condition(ctx, c, g, metav1.ConditionFalse, reason)
		}
		c := o.server(unitNamed("lun-a", "main"))
		b := New(c)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := b.CreateGroupSnapshot(ctx, "group-1", "g", []string{"lun-a"})
		cancel()
		if !errors.Is(err, backend.ErrTimeout) || !strings.Contains(err.Error(), "pair main-p0: why") {
			t.Errorf("%s: %v", reason, err)
		}
		if _, err := b.GetGroupSnapshot(t.Context(), "group-1"); !errors.Is(err, backend.ErrNotFound) || !strings.Contains(err.Error(), "not taken yet") {
			t.Error(err)
		}
		var g v1alpha1.LogicalUnitGroupSnapshot
		if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1"}, &g); err != nil {
			t.Fatal(err)
		}
		o.publish(t.Context(), c, &g)
		if got, err := b.CreateGroupSnapshot(t.Context(), "group-1", "g", []string{"lun-a"}); err != nil || len(got.Snapshots) != 1 || o.made != 1 {
			t.Errorf("%+v, %v, made %d", got, err, o.made)
		}
	}
}

// A snapshot of a group is not shown, nor restored, before the operator has published it, and the
// group waits for each of its snapshots.
func TestUnpublishedMembersAreHidden(t *testing.T) {
	o := &coordinator{t: t}
	o.take = func(ctx context.Context, c client.Client, g *v1alpha1.LogicalUnitGroupSnapshot) {
		o.members(ctx, c, g)
		s := &v1alpha1.LogicalUnitSnapshot{}
		o.ok(c.Get(ctx, client.ObjectKey{Name: "group-1-1"}, s))
		s.Status.Conditions[0].Status = metav1.ConditionFalse
		o.ok(c.Update(ctx, s))
		o.condition(ctx, c, g, metav1.ConditionTrue, "Ready")
	}
	c := o.server(unitNamed("lun-a", "main"), unitNamed("lun-b", "main"))
	b := New(c)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	_, err := b.CreateGroupSnapshot(ctx, "group-1", "g", []string{"lun-a", "lun-b"})
	cancel()
	if !errors.Is(err, backend.ErrTimeout) || !strings.Contains(err.Error(), "lun-b") {
		t.Error(err)
	}
	if _, err := b.GetGroupSnapshot(t.Context(), "group-1"); !errors.Is(err, backend.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := b.GetSnapshot(t.Context(), "group-1-1"); !errors.Is(err, backend.ErrNotFound) {
		t.Error(err)
	}
	if list, _, err := b.ListSnapshots(t.Context(), "", backend.Page{}); err != nil || len(list) != 1 || list[0].ID != "group-1-0" || list[0].Group != "group-1" {
		t.Errorf("%+v, %v", list, err)
	}
	// A foreign object under the name of a member is not taken for it.
	s := &v1alpha1.LogicalUnitSnapshot{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "group-1-1"}, s); err != nil {
		t.Fatal(err)
	}
	s.Status.Conditions[0].Status, s.Spec.Source = metav1.ConditionTrue, "lun-a"
	if err := c.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := b.GetGroupSnapshot(t.Context(), "group-1"); err == nil || !strings.Contains(err.Error(), "group-1-1") {
		t.Error(err)
	}
}
