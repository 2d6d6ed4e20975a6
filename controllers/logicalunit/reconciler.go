// Package logicalunit reconciles the LUNs of the pairs with LogicalUnits.
//
// Two rules come first. Data is destroyed only after spec.destroy and a deletion; whatever else
// happens to the object, its LUN stays. And a host that is not in status.hosts is fenced: the
// mapped hosts are read from the pair each time, so that a lost or stale status cannot leave a host
// mapped.
package logicalunit

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/controllers/tally"
)

// Reconciler of LogicalUnits. Client reads from a cache; Live does not, and is used before
// irreversible steps.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairconn.Pairs
	Recorder events.EventRecorder
	// CHAP has the credentials of hosts; nil: hosts log in by name only.
	CHAP *chap.Keeper
	// Groups finds the ConsistencyGroup of a LUN; nil: no LUN is a member of one.
	Groups *groups.Finder
	// Tally tells what is placed on each pair; nil: that is looked up each time.
	Tally tally.Counter
	// Refresh is the interval between reconciles without a change; default 1 min, plus a random
	// part.
	Refresh time.Duration
	// Lazy is the minimum interval between writes of a status for its lazy fields alone (owner,
	// moves, inSync, allocated); default 30 s.
	Lazy time.Duration

	placing  sync.Mutex // one placement is chosen at a time
	reserved reservations
	lanes    lanes

	allocatedOnce sync.Once
	allocated     *rate.Limiter // see allocatedWrites
	statusWrites  sync.Map      // types.UID → time.Time of the last write of the status
}

// callLimit bounds one call to a pair. A fence waits for running commands, whose initiators time
// out sooner.
const callLimit = 30 * time.Second

// pass is one reconciliation.
type pass struct {
	*Reconciler
	lu     *v1alpha1.LogicalUnit // as read, and as changed by our own writes
	pair   pairconn.Pair
	lun    *targetv1.LUN // nil: the pair has none, or was not asked
	listed bool          // the pair has answered, and hosts is current
	hosts  []v1alpha1.HostMapping
	exists string // the message of a LUN that is as the spec says
	legs   legs   // of a striped volume; empty: they were not read
	tooBig error  // why the legs of a striped volume do not grow; nil: they may
}

// Reconcile reconciles one LUN with its object and writes the status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	lu := &v1alpha1.LogicalUnit{}
	if err := r.Get(ctx, req.NamespacedName, lu); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	p := &pass{Reconciler: r, lu: lu}
	if p.deleted() && !controllerutil.ContainsFinalizer(lu, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil // not ours, or already released
	}
	leave, ok := r.lanes.enter(p.pairName(), time.Now())
	if !ok {
		return ctrl.Result{RequeueAfter: slowRetry/2 + rand.N(slowRetry)}, nil
	}
	defer leave()
	ready, published := p.reconcile(ctx)
	switch {
	case errors.Is(ready, object.ErrReleased):
		r.statusWrites.Delete(lu.UID)
		return ctrl.Result{}, nil
	case object.IsStale(ready):
		return object.RequeueIfStale(ready)
	}
	return p.writeStatus(ctx, ready, published)
}

// reconcile makes the LUN match the spec. Its order makes every crash harmless: finalizer and
// placement are written before the first request to the pair, so that every later reconcile finds
// the same LUN; creation is idempotent until the object is marked, and never repeated afterwards.
// The errors are those of the LUN and those of its hosts.
func (p *pass) reconcile(ctx context.Context) (ready, published error) {
	if p.lu.Spec.Placement != nil { // restored from a backup, for example; other objects get placement and finalizer in one write
		if err := object.EnsureFinalizer(ctx, p, &p.lu); err != nil {
			return err, err
		}
	}
	if p.lu.Spec.Striped != nil {
		return p.reconcileStriped(ctx)
	}
	if p.deleted() && p.lu.Spec.Destroy {
		err := p.destroy(ctx)
		return err, err
	}
	if err := p.place(ctx); err != nil {
		return err, err
	}
	if err := p.find(ctx); err != nil {
		return err, err
	}
	if err := p.ensureLUN(ctx); err != nil {
		return err, err
	}
	ready = errors.Join(p.expand(ctx), p.modify(ctx), p.quarantine())
	return ready, p.reconcileHosts(ctx)
}

// pairName is the pair that the LUN is placed on, empty if there is none.
func (p *pass) pairName() string {
	if at := p.lu.Spec.Placement; at != nil {
		return at.Pair
	}
	return ""
}

func (p *pass) deleted() bool { return !p.lu.DeletionTimestamp.IsZero() }
func (p *pass) made() bool    { return object.IsMade(p.lu) }

// connect opens the pair that the LUN is placed on.
func (p *pass) connect(ctx context.Context) (err error) {
	p.pair, err = p.Pairs.Client(ctx, p.lu.Spec.Placement.Pair)
	return finding.Client(p.lu.Spec.Placement.Pair, err)
}

// change calls a pair like rpc, for a request that changes something there: it confirms first that
// the spec is still the one that was read. With a stale cache (a new leader whose API server lags
// behind, a watch that broke off) the request could undo what another reconcile has done since:
// map a host that is fenced by now, fence one that was added, set an old preferred node.
// object.ErrStale.
func change[Q, R any](ctx context.Context, p *pass, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...callOption) (R, error), req Q) (R, error) {
	if err := object.Confirm(ctx, p.Live, p.lu); err != nil {
		var none R
		return none, err
	}
	return rpc(ctx, p, what, f, req)
}

// rpc calls a pair with a time limit, and adds the name of the pair to an error.
func rpc[Q, R any](ctx context.Context, p *pass, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...callOption) (R, error), req Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := f(p.pair, ctx, req)
	return r, finding.RPC(p.lu.Spec.Placement.Pair, what, err)
}

// requeueAfter is the time until the next reconcile, with jitter.
func (r *Reconciler) requeueAfter() time.Duration {
	d := r.Refresh
	if d == 0 {
		d = time.Minute
	}
	return d + rand.N(d/4+1)
}

func (r *Reconciler) lastStatusWrite(id types.UID) time.Time {
	t, _ := r.statusWrites.Load(id)
	at, _ := t.(time.Time)
	return at
}
