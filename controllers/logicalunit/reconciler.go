// Package logicalunit makes the LUNs on the pairs what LogicalUnits say, and says in their status what is.
//
// Two rules come before all others. Data is destroyed only by spec.destroy and a deletion; whatever else happens to the
// object, its LUN stays. And a host that has left status.hosts is fenced: which hosts are mapped is asked of the pair, never
// remembered, so that a status that was lost or is old cannot leave one in.
package logicalunit

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/pairconn"
)

// Reconciler of LogicalUnits. Client reads from a cache; Live does not, and is asked before what cannot be taken back.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairconn.Pairs
	Recorder events.EventRecorder
	// CHAP keeps the credentials of hosts; nil: hosts are let in by their names.
	CHAP *chap.Keeper
	// Refresh is how often a LUN is looked at when nothing happens; default 1 min, and a part at random.
	Refresh time.Duration
	// Lazy is how often a status is written for its lazy fields alone (owner, inSync, allocated); default 30 s.
	Lazy time.Duration

	statusWrites sync.Map // types.UID → time.Time of the last write of the status
}

// callLimit bounds one call to a pair. A fence waits for commands that are running, whose initiators give up sooner.
const callLimit = 30 * time.Second

// pass is one reconciliation.
type pass struct {
	*Reconciler
	lu     *v1alpha1.LogicalUnit // as it was read, and as our own writes have changed it
	pair   pairconn.Pair
	lun    *targetv1.LUN // as the pair has it; nil when it has none, or was not asked
	listed bool          // the pair has said which hosts are mapped: hosts is what is now
	hosts  []v1alpha1.HostMapping
}

// Reconcile brings one LUN to what its object says and writes what it found.
func (r *Reconciler) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	lu := &v1alpha1.LogicalUnit{}
	if err := r.Get(ctx, q.NamespacedName, lu); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	p := &pass{Reconciler: r, lu: lu}
	if p.deleted() && !controllerutil.ContainsFinalizer(lu, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil // nothing of ours, or not any more
	}
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

// reconcile makes the LUN what the spec says. Its order makes every crash harmless: finalizer and placement stand before the pair is
// asked, so that every later look finds the same LUN; creation is idempotent until it is marked, and never repeated
// afterwards. The errors are those of the LUN and those of its hosts.
func (p *pass) reconcile(ctx context.Context) (ready, published error) {
	if p.lu.Spec.Placement != nil { // made from a backup, say; other objects get placement and finalizer in one write
		if err := object.EnsureFinalizer(ctx, p, &p.lu); err != nil {
			return err, err
		}
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
	if err := p.make(ctx); err != nil {
		return err, err
	}
	ready = errors.Join(p.expand(ctx), p.modify(ctx))
	published = p.admit(ctx)
	p.prefer(ctx)
	return ready, published
}

func (p *pass) deleted() bool { return !p.lu.DeletionTimestamp.IsZero() }
func (p *pass) made() bool    { return object.IsMade(p.lu) }

// connect opens the pair that the LUN is placed on.
func (p *pass) connect(ctx context.Context) (err error) {
	p.pair, err = p.Pairs.Client(ctx, p.lu.Spec.Placement.Pair)
	return finding.Client(p.lu.Spec.Placement.Pair, err)
}

// rpc gives a call its limit, and its error the name of the pair.
func rpc[Q, R any](ctx context.Context, p *pass, what string, f func(targetv1.TargetServiceClient, context.Context, Q, ...callOption) (R, error), q Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := f(p.pair, ctx, q)
	return r, finding.RPC(p.lu.Spec.Placement.Pair, what, err)
}

// requeueAfter is when to look the next time, which differs between objects so that not all are due at once.
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
