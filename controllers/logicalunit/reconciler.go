// Package logicalunit makes the LUNs on the pairs what LogicalUnits say, and says in their status what is.
//
// Two rules come before all others. Data is destroyed only by spec.destroy and a deletion; whatever else happens to the
// object, its LUN stays. And a host that has left status.hosts is fenced: which hosts are mapped is asked of the pair, never
// remembered, so that a status that was lost or is old cannot leave one in.
package logicalunit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/pairs"
	"github.com/gemel-storage/gemel/internal/apply"
)

// Reconciler of LogicalUnits. Client reads from a cache; Live does not, and is asked before what cannot be taken back.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairs.Pairs
	Recorder events.EventRecorder
	// CHAP keeps the credentials of hosts; nil: hosts are let in by their names.
	CHAP *chap.Keeper
	// Refresh is how often a LUN is looked at when nothing happens; default 1 min, and a part at random.
	Refresh time.Duration
	// Lazy is how often a status is written for its lazy fields alone (owner, inSync, allocated); default 30 s.
	Lazy time.Duration

	told sync.Map // types.UID → time.Time of the last status that was written
}

// errReleased: the finalizer is gone, and soon the object.
var errReleased = errors.New("released")

// callLimit bounds one call to a pair. A fence waits for commands that are running, whose initiators give up sooner.
const callLimit = 30 * time.Second

// pass is one reconciliation.
type pass struct {
	*Reconciler
	lu     *v1alpha1.LogicalUnit // as it was read, and as our own writes have changed it
	pair   pairs.Pair
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
	ready, published := p.bring(ctx)
	switch {
	case errors.Is(ready, errReleased):
		r.told.Delete(lu.UID)
		return ctrl.Result{}, nil
	case apierrors.IsConflict(ready) || errors.Is(ready, errStale):
		return ctrl.Result{RequeueAfter: apply.StaleAfter}, nil // what it was decided by has changed: look again
	}
	return p.tell(ctx, ready, published)
}

// bring makes the LUN what the spec says. Its order makes every crash harmless: finalizer and placement stand before the pair is
// asked, so that every later look finds the same LUN; creation is idempotent until it is marked, and never repeated
// afterwards. The errors are those of the LUN and those of its hosts.
func (p *pass) bring(ctx context.Context) (ready, published error) {
	if err := p.hold(ctx); err != nil {
		return err, err
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
func (p *pass) made() bool    { return p.lu.Annotations[v1alpha1.AnnotationMade] == "true" }

// hold puts the finalizer on an object that has a place: one that was made again from a backup, say. Others get both in one write.
func (p *pass) hold(ctx context.Context) error {
	if p.lu.Spec.Placement == nil || p.deleted() || controllerutil.ContainsFinalizer(p.lu, v1alpha1.Finalizer) {
		return nil
	}
	return p.patch(ctx, "finalizer", func(lu *v1alpha1.LogicalUnit) { controllerutil.AddFinalizer(lu, v1alpha1.Finalizer) })
}

// release takes the finalizer off.
func (p *pass) release(ctx context.Context) error {
	err := p.patch(ctx, "release", func(lu *v1alpha1.LogicalUnit) { controllerutil.RemoveFinalizer(lu, v1alpha1.Finalizer) })
	if err := client.IgnoreNotFound(err); err != nil {
		return err
	}
	return errReleased
}

// patch writes a change if nobody else has written since the object was read; otherwise the error is a conflict.
func (p *pass) patch(ctx context.Context, what string, change func(*v1alpha1.LogicalUnit)) error {
	next := p.lu.DeepCopy()
	change(next)
	if err := p.Patch(ctx, next, client.MergeFromWithOptions(p.lu, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
		return fmt.Errorf("%s of LogicalUnit %s: %w", what, p.lu.Name, err)
	}
	p.lu = next
	return nil
}

// errStale: the cache was behind.
var errStale = errors.New("the object has changed")

// confirm makes sure that this is still what the object says, before a step that cannot be taken back: the cache may be old.
func (p *pass) confirm(ctx context.Context) error {
	var now v1alpha1.LogicalUnit
	if err := p.Live.Get(ctx, client.ObjectKeyFromObject(p.lu), &now); err != nil {
		if apierrors.IsNotFound(err) {
			return errStale
		}
		return fmt.Errorf("LogicalUnit %s: %w", p.lu.Name, err)
	}
	if now.UID != p.lu.UID || now.Generation != p.lu.Generation || now.Annotations[v1alpha1.AnnotationMade] != p.lu.Annotations[v1alpha1.AnnotationMade] {
		return errStale
	}
	return nil
}

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

// again is when to look the next time: not all at once.
func (r *Reconciler) again() time.Duration {
	d := r.Refresh
	if d == 0 {
		d = time.Minute
	}
	return d + rand.N(d/4+1)
}

func (r *Reconciler) lastTold(id types.UID) time.Time {
	t, _ := r.told.Load(id)
	at, _ := t.(time.Time)
	return at
}
