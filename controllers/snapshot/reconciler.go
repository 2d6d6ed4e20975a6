// Package snapshot takes and keeps the snapshots that LogicalUnitSnapshots stand for. The rules are those of LUNs: data is
// destroyed only by spec.destroy and a deletion, and a snapshot that was taken once is never taken again under its name,
// since it would be another point in time. A snapshot outlives its source.
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

// Reconciler of LogicalUnitSnapshots. Client reads from a cache; Live does not, and is asked before what cannot be taken back.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairconn.Pairs
	Recorder events.EventRecorder
	// Refresh is how often a snapshot is looked at when nothing happens; default 10 min, and a part at random.
	Refresh time.Duration
}

// callLimit bounds one call to a pair. Where extents cannot be shared, a snapshot is a copy.
const callLimit = 2 * time.Minute

// pass is one reconciliation.
type pass struct {
	*Reconciler
	o    *v1alpha1.LogicalUnitSnapshot // as it was read, and as our own writes have changed it
	pair pairconn.Pair
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
	err := p.reconcile(ctx)
	if errors.Is(err, object.ErrReleased) {
		return ctrl.Result{}, nil
	}
	return p.writeStatus(ctx, err)
}

// reconcile takes the snapshot if it was not taken yet. Finalizer and placement stand before the pair is asked, so that every later
// look finds the same snapshot; a crash before the mark is harmless, because the pair takes a snapshot of one uuid once.
func (p *pass) reconcile(ctx context.Context) error {
	if p.o.Spec.Placement != nil { // made from a backup, say; other objects get placement and finalizer in one write
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
	if err := p.find(ctx); err != nil {
		return err
	}
	return p.take(ctx)
}

func (p *pass) deleted() bool { return !p.o.DeletionTimestamp.IsZero() }
func (p *pass) made() bool    { return object.IsMade(p.o) }

// rpc gives a call its limit, and its error the name of the pair.
func rpc[Q, R any](ctx context.Context, p *pass, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...grpc.CallOption) (R, error), q Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := f(p.pair, ctx, q)
	return r, finding.RPC(p.o.Spec.Placement.Pair, what, err)
}

// requeueAfter is when to look the next time, which differs between objects so that not all are due at once.
func (r *Reconciler) requeueAfter() time.Duration {
	d := r.Refresh
	if d == 0 {
		d = 10 * time.Minute
	}
	return d + rand.N(d/4+1)
}
