// Package groupsnapshot reconciles LogicalUnitGroupSnapshots: it is the coordinator of the cuts
// through their pairs (internal/cut). The objects and the pairs have all that it knows, so that
// another operator goes on where this one ends (docs/decisions/0072).
package groupsnapshot

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/cut"
)

// Reconciler of LogicalUnitGroupSnapshots. Client reads from a cache; Live does not, and is used
// before irreversible steps.
type Reconciler struct {
	client.Client
	Live     client.Reader
	Pairs    pairconn.Pairs
	Recorder events.EventRecorder
	// Refresh is the interval between reconciles without a change; default 10 min, plus a random
	// part.
	Refresh time.Duration
	// Again is the interval between two looks at what is under way; default 1 s.
	Again time.Duration
}

// pass is one reconciliation.
type pass struct {
	*Reconciler
	o       *v1alpha1.LogicalUnitGroupSnapshot // as read, and as changed by our own writes
	members []*v1alpha1.LogicalUnitSnapshot    // in the order of the spec
	luns    []*v1alpha1.LogicalUnitSnapshot    // what is taken: members, and the legs of striped ones
	group   *cut.Group
	calls   []*caller // of the group's pairs
	// takenAt and held are for the status; unset: what it has stays.
	takenAt *metav1.Time
	held    time.Duration
	after   time.Duration // until the next reconcile; 0: Refresh
}

// Reconcile reconciles one group snapshot with its object and writes the status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.LogicalUnitGroupSnapshot{}
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

// reconcile takes the group snapshot unless it was taken. The finalizer comes before the first
// object of a member, so that none is left without a group.
func (p *pass) reconcile(ctx context.Context) error {
	if p.deleted() && p.o.Spec.Destroy {
		return p.destroy(ctx)
	}
	if err := object.EnsureFinalizer(ctx, p, &p.o); err != nil {
		return err
	}
	switch {
	case p.made():
		return p.check(ctx)
	case p.deleted():
		return finding.New(v1alpha1.ReasonDataKept, "the group snapshot was not taken") // condition says the rest
	case p.o.Spec.Destroy:
		return finding.New(v1alpha1.ReasonInvalid, "spec.destroy is set, so no group snapshot is taken: delete the object")
	}
	if err := p.ensureMembers(ctx); err != nil {
		return err
	}
	if err := awaitPlacements(p.members); err != nil {
		return err
	}
	if err := p.ensureLegs(ctx); err != nil {
		return err
	}
	if err := awaitPlacements(p.luns); err != nil {
		return err
	}
	if err := p.connect(ctx); err != nil {
		return err
	}
	return p.take(ctx)
}

func (p *pass) deleted() bool { return !p.o.DeletionTimestamp.IsZero() }
func (p *pass) made() bool    { return object.IsMade(p.o) }

// again is the interval between two looks at what is under way.
func (r *Reconciler) again() time.Duration {
	if r.Again == 0 {
		return time.Second
	}
	return r.Again
}

// requeueAfter is the time until the next reconcile, with jitter.
func (p *pass) requeueAfter() time.Duration {
	d := p.after
	if d == 0 {
		d = p.Refresh
	}
	if d == 0 {
		d = 10 * time.Minute
	}
	return d + rand.N(d/4+1)
}
