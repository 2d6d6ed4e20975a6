// Package consistencygroup reconciles ConsistencyGroups: it reports their claims and LUNs, and
// evens out the homes of the LUNs over the two nodes of each pair. A group has no finalizer: when
// it is deleted, nothing about the LUNs changes.
package consistencygroup

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/claims"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/internal/apply"
)

const (
	interval = 5 * time.Minute  // between reconciles of a group without changes, plus a random part
	retry    = 15 * time.Second // between reconciles of a group that is not spread
)

// Reconciler of ConsistencyGroups.
type Reconciler struct {
	client.Client
	Live   client.Reader // never a cache; read before a home is changed
	Pairs  pairconn.Pairs
	Groups *groups.Finder
	Events events.EventRecorder
	Now    func() time.Time // nil: time.Now
	// Settle is how long events of claims and LUNs are gathered before their group is reconciled;
	// default 2 s.
	Settle time.Duration

	changed sync.Map // types.UID of a LogicalUnit → setting
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Reconcile writes the status of a group, and changes one home at most.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.ConsistencyGroup{}
	if err := r.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := g.DeepCopy()
	v := &view{}
	problem, message, again := finding.New(v1alpha1.ReasonInvalid, ""), "", interval+rand.N(interval/4)
	if _, err := groups.Selector(g); err != nil {
		problem.Message = err.Error()
	} else {
		if v, err = r.look(ctx, g); err != nil {
			return ctrl.Result{}, err
		}
		if problem, message = v.judge(g); problem == nil && g.Spec.Spread != v1alpha1.SpreadNone {
			note, wait := r.evenOut(ctx, g, v)
			message += note
			if wait {
				again = retry
			}
		}
	}
	v.report(&g.Status)
	g.Status.ObservedGeneration = g.Generation
	changed := finding.Set(&g.Status.Conditions, v1alpha1.ConditionReady, g.Generation, problem, v1alpha1.ReasonReady, message)
	if !equality.Semantic.DeepEqual(before.Status, g.Status) {
		if err := apply.PatchStatus(ctx, r, g, before); err != nil {
			return object.RequeueIfStale(err)
		}
	}
	switch {
	case changed && problem == nil:
		r.Events.Eventf(g, nil, corev1.EventTypeNormal, v1alpha1.ReasonReady, "Reconcile", "%s", claims.Note(message))
	case changed && problem.Reason != v1alpha1.ReasonProgressing: // normal progress is not worth an event
		r.Events.Eventf(g, nil, corev1.EventTypeWarning, problem.Reason, "Reconcile", "%s", claims.Note(problem.Message))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}
