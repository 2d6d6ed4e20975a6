// Package snapshot reconciles the snapshots of the pairs with LogicalUnitSnapshots. The rules are
// those of LUNs: data is destroyed only after spec.destroy and a deletion, and a snapshot is never
// taken twice, since it would be of another point in time. A snapshot outlives its source.
package snapshot

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// Reconciler of LogicalUnitSnapshots. Client reads from a cache; Live does not, and is used before
// irreversible steps.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairconn.Pairs
	Recorder events.EventRecorder
	// Refresh is the interval between reconciles without a change; default 10 min, plus a random
	// part.
	Refresh time.Duration
}

// callLimit bounds one call to a pair. Where extents cannot be shared, a snapshot is a copy.
const callLimit = 2 * time.Minute

// pass is one reconciliation.
type pass struct {
	*Reconciler
	o    *v1alpha1.LogicalUnitSnapshot // as read, and as changed by our own writes
	pair pairconn.Pair
	snap *targetv1.Snapshot              // nil: the pair has none, or was not asked
	legs []*v1alpha1.LogicalUnitSnapshot // of a striped volume, in their order; nil where there is none
}

// Reconcile reconciles one snapshot with its object and writes the status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.LogicalUnitSnapshot{}
	if err := r.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	p := &pass{Reconciler: r, o: o}
	if p.deleted() && !controllerutil.ContainsFinalizer(o, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil
	}
	err := p.reconcile(ctx)
	if errors.Is(err, object.ErrReleased) {
		return ctrl.Result{}, nil
	}
	return p.writeStatus(ctx, err)
}

// reconcile takes the snapshot unless it was taken. Finalizer and placement are written before the
// first request to the pair, so that every later reconcile finds the same snapshot; a crash before
// the mark is harmless, because the pair takes a snapshot of one UUID once.
func (p *pass) reconcile(ctx context.Context) error {
	if p.o.Spec.Placement != nil { // restored from a backup, for example; other objects get placement and finalizer in one write
		if err := object.EnsureFinalizer(ctx, p, &p.o); err != nil {
			return err
		}
	}
	if p.deleted() && p.o.Spec.Destroy {
		return p.destroy(ctx)
	}
	if err := p.place(ctx); err != nil {
		return err
	}
	if p.o.Spec.Striped != nil {
		return p.reconcileStriped(ctx)
	}
	if err := p.awaitGroup(ctx); err != nil {
		return err
	}
	if err := p.find(ctx); err != nil {
		return err
	}
	return p.take(ctx)
}

func (p *pass) deleted() bool { return !p.o.DeletionTimestamp.IsZero() }
func (p *pass) made() bool    { return object.IsMade(p.o) }

// rpc calls a pair with a time limit, and adds the name of the pair to an error.
func rpc[Q, R any](ctx context.Context, p *pass, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...grpc.CallOption) (R, error), req Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := f(p.pair, ctx, req)
	return r, finding.RPC(p.o.Spec.Placement.Pair, what, err)
}

// requeueAfter is the time until the next reconcile, with jitter.
func (r *Reconciler) requeueAfter() time.Duration {
	d := r.Refresh
	if d == 0 {
		d = 10 * time.Minute
	}
	return d + rand.N(d/4+1)
}
