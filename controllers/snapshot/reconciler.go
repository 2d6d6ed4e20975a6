// Package snapshot takes and keeps the snapshots that LogicalUnitSnapshots stand for. The rules are those of LUNs: data is
// destroyed only by spec.destroy and a deletion, and a snapshot that was taken once is never taken again under its name,
// since it would be another point in time. A snapshot outlives its source.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/pairs"
)

// Reconciler of LogicalUnitSnapshots. Client reads from a cache; Live does not, and is asked before what cannot be taken back.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairs.Pairs
	Recorder events.EventRecorder
	// Refresh is how often a snapshot is looked at when nothing happens; default 10 min, and a part at random.
	Refresh time.Duration
}

var (
	errReleased = errors.New("released")               // the finalizer is gone, and soon the object
	errStale    = errors.New("the object has changed") // the cache was behind
)

// callLimit bounds one call to a pair. Where extents cannot be shared, a snapshot is a copy.
const callLimit = 2 * time.Minute

// pass is one reconciliation.
type pass struct {
	*Reconciler
	o    *v1alpha1.LogicalUnitSnapshot // as it was read, and as our own writes have changed it
	pair pairs.Pair
	snap *targetv1.Snapshot // as the pair has it; nil when it has none, or was not asked
}

// Reconcile brings one snapshot to what its object says and writes what it found.
func (r *Reconciler) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.LogicalUnitSnapshot{}
	if err := r.Get(ctx, q.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	p := &pass{Reconciler: r, o: o}
	if p.deleted() && !controllerutil.ContainsFinalizer(o, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil
	}
	err := p.bring(ctx)
	if errors.Is(err, errReleased) {
		return ctrl.Result{}, nil
	}
	return p.tell(ctx, err)
}

// bring takes the snapshot if it was not taken yet. Finalizer and placement stand before the pair is asked, so that every later
// look finds the same snapshot; a crash before the mark is harmless, because the pair takes a snapshot of one uuid once.
func (p *pass) bring(ctx context.Context) error {
	if err := p.hold(ctx); err != nil {
		return err
	}
	if p.deleted() && p.o.Spec.Destroy {
		return p.destroy(ctx)
	}
	if err := p.place(ctx); err != nil {
		return err
	}
	if err := p.find(ctx); err != nil {
		return err
	}
	return p.take(ctx)
}

func (p *pass) deleted() bool { return !p.o.DeletionTimestamp.IsZero() }
func (p *pass) made() bool    { return p.o.Annotations[v1alpha1.AnnotationMade] == "true" }

// hold puts the finalizer on an object that has a place: one that was made again from a backup, say. Others get both in one write.
func (p *pass) hold(ctx context.Context) error {
	if p.o.Spec.Placement == nil || p.deleted() || controllerutil.ContainsFinalizer(p.o, v1alpha1.Finalizer) {
		return nil
	}
	return p.patch(ctx, "finalizer", func(o *v1alpha1.LogicalUnitSnapshot) { controllerutil.AddFinalizer(o, v1alpha1.Finalizer) })
}

// release takes the finalizer off.
func (p *pass) release(ctx context.Context) error {
	err := p.patch(ctx, "release", func(o *v1alpha1.LogicalUnitSnapshot) { controllerutil.RemoveFinalizer(o, v1alpha1.Finalizer) })
	if err := client.IgnoreNotFound(err); err != nil {
		return err
	}
	return errReleased
}

// patch writes a change if nobody else has written since the object was read; otherwise the error is a conflict.
func (p *pass) patch(ctx context.Context, what string, change func(*v1alpha1.LogicalUnitSnapshot)) error {
	next := p.o.DeepCopy()
	change(next)
	if err := p.Patch(ctx, next, client.MergeFromWithOptions(p.o, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
		return fmt.Errorf("%s of LogicalUnitSnapshot %s: %w", what, p.o.Name, err)
	}
	p.o = next
	return nil
}

// confirm makes sure that this is still what the object says, before a step that cannot be taken back.
func (p *pass) confirm(ctx context.Context) error {
	var now v1alpha1.LogicalUnitSnapshot
	if err := p.Live.Get(ctx, client.ObjectKeyFromObject(p.o), &now); err != nil {
		if apierrors.IsNotFound(err) {
			return errStale
		}
		return fmt.Errorf("LogicalUnitSnapshot %s: %w", p.o.Name, err)
	}
	if now.UID != p.o.UID || now.Generation != p.o.Generation || now.Annotations[v1alpha1.AnnotationMade] != p.o.Annotations[v1alpha1.AnnotationMade] {
		return errStale
	}
	return nil
}

// rpc gives a call its limit, and its error the name of the pair.
func rpc[Q, R any](ctx context.Context, p *pass, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...grpc.CallOption) (R, error), q Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := f(p.pair, ctx, q)
	return r, finding.RPC(p.o.Spec.Placement.Pair, what, err)
}

// again is when to look the next time: not all at once.
func (r *Reconciler) again() time.Duration {
	d := r.Refresh
	if d == 0 {
		d = 10 * time.Minute
	}
	return d + rand.N(d/4+1)
}
