package groupsnapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// world is an API server and the pairs p and q. What the pairs do is a model of what the log of a
// pair decides; test/integration/objects has real ones.
type world struct {
	*testing.T
	c     client.WithWatch
	pairs map[string]*target
	luns  int // of all members

	mu     sync.Mutex
	list   []string                // calls of pairs
	fails  map[string][]codes.Code // of the next calls, by call
	lost   map[string]bool         // calls that do their work, and whose answer is lost
	before func(call string)       // each call
	steps  int                     // writes and calls so far
	dies   int                     // the operator ends at this step; 0: never
}

// target is a pair.
type target struct {
	pairconn.Pair
	*world
	name    string
	attempt uint64
	final   bool
	members map[string]*targetv1.GroupSnapshotMember
	asked   []*targetv1.CreateSnapshotRequest

	heldSince time.Time
}

var errDied = errors.New("the operator has ended")

// step is one of the moments at which the operator can end.
func (w *world) step() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps++
	if w.dies > 0 && w.steps >= w.dies {
		return errDied
	}
	return nil
}

func (w *world) Client(_ context.Context, name string) (pairconn.Pair, error) {
	if p := w.pairs[name]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: TargetPair %s does not exist", pairconn.ErrUnknown, name)
}

// call notes a call and returns its failure. The caller changes the pair only without one.
func (t *target) call(ctx context.Context, what string) (late, err error) {
	what = t.name + " " + what
	if t.step() != nil {
		return nil, status.Error(codes.Unavailable, errDied.Error())
	}
	t.mu.Lock()
	t.list = append(t.list, what)
	var code codes.Code
	if l := t.fails[what]; len(l) > 0 {
		code, t.fails[what] = l[0], l[1:]
	}
	lost, before := t.lost[what], t.before
	t.mu.Unlock()
	if before != nil {
		before(what)
	}
	switch {
	case code == codes.DeadlineExceeded: // the pair hangs
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case code != codes.OK:
		return nil, status.Error(code, "injected by the test")
	case lost:
		return status.Error(codes.Unavailable, "the answer is lost"), nil
	}
	return nil, nil
}

func (t *target) has() *targetv1.GroupSnapshot {
	return &targetv1.GroupSnapshot{Attempt: t.attempt, Final: t.final, Members: slices.Collect(maps.Values(t.members))}
}

func over() error { return status.Error(codes.FailedPrecondition, "the attempt is over") }

func (t *target) BeginGroupSnapshot(ctx context.Context, q *targetv1.BeginGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	what := fmt.Sprintf("begin %d", q.Attempt)
	switch {
	case q.Final:
		what = "end"
	case q.Discard:
		what += " and discard"
	}
	late, err := t.call(ctx, what)
	switch {
	case err != nil:
		return nil, err
	case t.final && !q.Final, t.attempt > q.Attempt && !q.Final:
		return nil, over()
	}
	t.attempt, t.final = max(t.attempt, q.Attempt), q.Final
	if q.Final || q.Discard {
		clear(t.members)
	}
	return t.has(), late
}

func (t *target) PrepareGroupSnapshot(ctx context.Context, q *targetv1.PrepareGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	late, err := t.call(ctx, "prepare")
	switch {
	case err != nil:
		return nil, err
	case t.final || t.attempt != q.Attempt:
		return nil, over()
	}
	t.asked = q.Members
	for _, m := range q.Members {
		t.members[m.Uuid] = &targetv1.GroupSnapshotMember{Stage: targetv1.GroupSnapshotMember_STAGE_EMPTY,
			Snapshot: &targetv1.Snapshot{Uuid: m.Uuid, Attempt: q.Attempt, Created: timestamppb.New(time.Unix(1e9+int64(q.Attempt), 0))}}
	}
	return t.has(), late
}

func (t *target) HoldGroupSnapshot(ctx context.Context, _ *targetv1.HoldGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.HoldGroupSnapshotResponse, error) {
	begun := time.Now()
	late, err := t.call(ctx, "hold")
	t.heldSince = begun
	if err != nil {
		return nil, err
	}
	return &targetv1.HoldGroupSnapshotResponse{}, late
}

func (t *target) CutGroupSnapshot(ctx context.Context, q *targetv1.CutGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.CutGroupSnapshotResponse, error) {
	late, err := t.call(ctx, "cut")
	switch {
	case err != nil:
		return nil, err
	case t.final || t.attempt != q.Attempt:
		return nil, over()
	}
	for _, m := range t.members {
		m.Stage = targetv1.GroupSnapshotMember_STAGE_COPYING
	}
	return &targetv1.CutGroupSnapshotResponse{Held: durationpb.New(time.Since(t.heldSince))}, late
}

func (t *target) GetGroupSnapshot(ctx context.Context, _ *targetv1.GetGroupSnapshotRequest, _ ...grpc.CallOption) (*targetv1.GroupSnapshot, error) {
	_, err := t.call(ctx, "get")
	switch {
	case err != nil:
		return nil, err
	case t.attempt == 0:
		return nil, status.Error(codes.NotFound, "nothing is known of it")
	}
	return t.has(), nil
}

const uid = "01234567-89ab-cdef-0123-456789abcdef"

// newWorld has a group of one member on p and two on q.
func newWorld(t *testing.T) *world {
	t.Helper()
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "group-1", UID: uid, Generation: 1},
		Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: "c", Name: "mine", Members: []v1alpha1.GroupSnapshotMember{
			{Source: "lun-0", Snapshot: "group-1-0"}, {Source: "lun-1", Snapshot: "group-1-1"}, {Source: "lun-2", Snapshot: "group-1-2"}}}}
	w := &world{T: t, luns: 3, pairs: map[string]*target{}, fails: map[string][]codes.Code{}, lost: map[string]bool{}}
	for _, name := range []string{"p", "q"} {
		w.pairs[name] = &target{world: w, name: name, members: map[string]*targetv1.GroupSnapshotMember{}}
	}
	w.c = fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(o, &v1alpha1.LogicalUnitSnapshot{}).WithObjects(o).Build()
	return w
}

// stripedWorld is a world whose last member is of a striped volume with a LUN on each pair: what
// matters here is that its legs, and not itself, are taken.
func stripedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.luns = 4
	return w
}

// reconciler is a new operator. Its writes are steps, too.
func (w *world) reconciler() *Reconciler {
	c := interceptor.NewClient(w.c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, o, patch, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.write(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		}})
	return &Reconciler{Client: c, Live: w.c, Pairs: w, Recorder: events.NewFakeRecorder(1000)}
}

func (w *world) write(f func() error) error {
	if err := w.step(); err != nil {
		return err
	}
	return f()
}

// read returns the group; nil if it is gone.
func (w *world) read() *v1alpha1.LogicalUnitGroupSnapshot {
	w.Helper()
	var g v1alpha1.LogicalUnitGroupSnapshot
	err := w.c.Get(w.Context(), client.ObjectKey{Name: "group-1"}, &g)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.ok(err)
	return &g
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// snapshots are the objects of the members.
func (w *world) snapshots() []v1alpha1.LogicalUnitSnapshot {
	w.Helper()
	var l v1alpha1.LogicalUnitSnapshotList
	w.ok(w.c.List(w.Context(), &l))
	return l.Items
}

// place does the part of the snapshots' reconciler: it places members, says when those of a
// published group were taken, and lets those go that are destroyed.
func (w *world) place() {
	w.Helper()
	for _, s := range w.snapshots() {
		if apierrors.IsNotFound(w.c.Get(w.Context(), client.ObjectKeyFromObject(&s), &s)) {
			continue // a leg that has just been removed
		}
		switch _, n, _ := strings.Cut(strings.TrimPrefix(s.Name, "group-"), "-"); {
		case !s.DeletionTimestamp.IsZero() && s.Spec.Destroy && w.removeLegs(&s):
			s.Finalizers = nil
			w.ok(w.c.Update(w.Context(), &s))
		case s.Spec.Placement == nil:
			s.Finalizers = []string{v1alpha1.Finalizer}
			s.Spec.Placement = &v1alpha1.SnapshotPlacement{Pair: map[string]string{"0": "p", "1": "q", "2": "q", "2-0": "p", "2-1": "q"}[n], UUID: "snap-" + n, SourceUUID: "source-" + n}
			if n == "2" && w.luns == 4 {
				s.Spec.Striped = &v1alpha1.Striping{LUNs: 2, StripeBytes: 65536}
			}
			w.ok(w.c.Update(w.Context(), &s))
		case w.read() != nil && object.IsMade(w.read()):
			at := metav1.Unix(1e9, 0)
			s.Status.TakenAt = &at
			w.ok(w.c.Status().Update(w.Context(), &s))
		}
	}
}

// removeLegs destroys the legs of a snapshot, and reports whether there are none.
func (w *world) removeLegs(s *v1alpha1.LogicalUnitSnapshot) bool {
	w.Helper()
	left := false
	for _, l := range w.snapshots() {
		if l.Spec.Leg == nil || l.Spec.Leg.Of != s.Name {
			continue
		}
		left = true
		if l.DeletionTimestamp.IsZero() {
			l.Spec.Destroy = true
			w.ok(w.c.Update(w.Context(), &l))
			w.ok(w.c.Delete(w.Context(), &l))
		}
	}
	return !left
}

// copied completes what is being copied.
func (w *world) copied() {
	for _, p := range w.pairs {
		for _, m := range p.members {
			if m.Stage == targetv1.GroupSnapshotMember_STAGE_COPYING {
				m.Stage = targetv1.GroupSnapshotMember_STAGE_READY
			}
		}
	}
}

func (w *world) pass(r *Reconciler) (ctrl.Result, error) {
	return r.Reconcile(w.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "group-1"}})
}

// look makes one pass and checks the condition; again: with the work queue's delay.
func (w *world) look(r *Reconciler, want string, again bool, says ...string) *v1alpha1.LogicalUnitGroupSnapshot {
	w.Helper()
	_, err := w.pass(r)
	g := w.read()
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil {
		w.Fatalf("there is no condition; %v", err)
	}
	if got := string(c.Status) + " " + c.Reason; got != want || (err != nil) != again {
		w.Fatalf("%s (%s), %v, want %s", got, c.Message, err, want)
	}
	for _, s := range says {
		if !strings.Contains(c.Message, s) {
			w.Errorf("%q does not say %q", c.Message, s)
		}
	}
	return g
}

// placed is a new operator, after the members have their pairs.
func (w *world) placed() *Reconciler {
	w.Helper()
	r := w.reconciler()
	w.look(r, "False Progressing", false, "group-1-0 of lun-0 is being placed")
	w.place()
	return r
}

// calls returns those since the last time, sorted within p and q.
func (w *world) calls() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out [2][]string
	for _, c := range w.list {
		i := strings.Index("pq", c[:1])
		out[i] = append(out[i], c[2:])
	}
	w.list = nil
	if !slices.Equal(out[0], out[1]) {
		return fmt.Sprintf("p: %s; q: %s", strings.Join(out[0], ", "), strings.Join(out[1], ", "))
	}
	return strings.Join(out[0], ", ")
}

// destroy asks for the deletion, as the driver does.
func (w *world) destroy() {
	w.Helper()
	g := w.read()
	g.Spec.Destroy = true
	w.ok(w.c.Update(w.Context(), g))
	w.ok(w.c.Delete(w.Context(), g))
}
