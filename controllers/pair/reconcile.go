// Package pair reconciles TargetPairs: what two target nodes need to run, their certificates and their disks, the rolling of
// a new image, the replacement of a lost node, and the copy of their state that people look at. Nothing here is needed to
// serve I/O: with the operator away a pair goes on, fails over and comes back by itself.
package pair

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// Reconciler of TargetPairs.
type Reconciler struct {
	client.Client
	Live      client.Reader // never a cache
	Namespace string        // of everything that it makes
	Image     string        // for clusters that name none
	Targets   Targets
	CHAP      *chap.Keeper // of hosts' credentials; nil: there are none
	Events    events.EventRecorder
	Now       func() time.Time // nil: time.Now

	turns turns
}

// statusEvery is how often targets are asked how they are.
const statusEvery = 10 * time.Second

// busyEvery is the same while something is on its way.
const busyEvery = 2 * time.Second

// wait is a step that is not done yet and needs no error: the next look goes on.
type wait struct {
	reason, message string
}

func (w *wait) Error() string { return w.message }

// asWait finds a step that is not done yet in an error.
func asWait(err error) (*wait, bool) {
	var w *wait
	ok := errors.As(err, &w)
	return w, ok
}

func waiting(reason, format string, args ...any) error {
	return &wait{reason, fmt.Sprintf(format, args...)}
}

// Reconcile brings a pair to what its spec says.
func (r *Reconciler) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	p := &v1alpha1.TargetPair{}
	if err := r.Get(ctx, q.NamespacedName, p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	c := &v1alpha1.StorageCluster{}
	if err := r.Get(ctx, client.ObjectKey{Name: p.Spec.Cluster}, c); err != nil && !apierrors.IsNotFound(err) {
		return ctrl.Result{}, err
	}
	if !p.DeletionTimestamp.IsZero() {
		gone, err := r.finalize(ctx, p)
		if gone || err != nil {
			return ctrl.Result{}, err
		}
	}
	if c.Name == "" {
		// Its pods run on; only what was to be changed by the cluster's spec stays as it is.
		v := r.look(ctx, p)
		_ = r.scrub(ctx, nil, p, v, false) // looks only
		return ctrl.Result{RequeueAfter: statusEvery}, r.writeStatus(ctx, nil, p, v, waiting(v1alpha1.ReasonInvalid,
			"StorageCluster %q does not exist: the pair continues to run unchanged; create the StorageCluster again", p.Spec.Cluster))
	}
	if controllerutil.AddFinalizer(p, v1alpha1.Finalizer) {
		if err := r.Update(ctx, p); err != nil {
			return ctrl.Result{}, err
		}
	}
	m, later, err := r.converge(ctx, c, p)
	if errors.Is(err, errGone) {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	view := r.look(ctx, p)
	if err == nil {
		err = r.roll(ctx, c, p, m, view)
	}
	bad := r.scrub(ctx, c, p, view, err == nil)
	for _, more := range []error{later, bad} {
		if err == nil {
			err = more
		}
	}
	serr := r.writeStatus(ctx, c, p, view, err)
	if object.IsStale(serr) {
		return object.RequeueIfStale(serr)
	}
	var w *wait
	if errors.As(err, &w) {
		log.FromContext(ctx).V(1).Info("waiting", "reason", w.reason, "message", w.message)
		return ctrl.Result{RequeueAfter: busyEvery}, serr
	}
	if !view.inSync() {
		return ctrl.Result{RequeueAfter: busyEvery}, errors.Join(err, serr)
	}
	return ctrl.Result{RequeueAfter: statusEvery}, errors.Join(err, serr)
}

// converge makes what is missing, in the order in which one thing needs the other. It tells which pools beside the first one the nodes
// have, and later is why some cannot have one yet, for which nothing else waits.
func (r *Reconciler) converge(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair) (m mounts, later, err error) {
	if err := r.confirm(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.shared(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.addresses(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.certificates(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.replace(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.disks(ctx, c, p); err != nil {
		return nil, nil, err
	}
	if m, later, err = r.more(ctx, c, p); err != nil {
		return nil, nil, err
	}
	if err := r.targets(ctx, c, p, m); err != nil || r.CHAP == nil {
		return m, later, err
	}
	return m, later, r.CHAP.Sweep(ctx, c, p.Name)
}

// finalize lets a pair go when it holds nothing, and says what keeps it otherwise.
func (r *Reconciler) finalize(ctx context.Context, p *v1alpha1.TargetPair) (gone bool, err error) {
	if !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer) {
		return true, nil
	}
	luns, known := r.luns(ctx, p)
	if !known || len(luns) > 0 {
		msg := fmt.Sprintf("the pair has %d LUNs: delete their volumes first; until then the pair keeps and serves the data", len(luns))
		if !known {
			msg = "no node reports whether the pair has LUNs: start a node, or remove the finalizer " + v1alpha1.Finalizer + " to delete only the object and keep the disks"
		}
		r.recordEvent(p, corev1.EventTypeWarning, v1alpha1.ReasonInUse, "Delete", msg)
		return false, nil
	}
	if err := r.remove(ctx, p); err != nil {
		return false, err
	}
	controllerutil.RemoveFinalizer(p, v1alpha1.Finalizer)
	return true, r.Update(ctx, p)
}

func (r *Reconciler) recordEvent(p *v1alpha1.TargetPair, kind, reason, action, note string) {
	r.Events.Eventf(p, nil, kind, reason, action, "%s", note)
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}
