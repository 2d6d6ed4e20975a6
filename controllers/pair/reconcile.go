// Package pair reconciles TargetPairs: the objects, certificates and disks of two target nodes, the
// rollout of a new image, the replacement of a lost node, and the status. Nothing here is needed to
// serve I/O: without the operator a pair continues to serve, fails over and recovers automatically.
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
	"github.com/gemel-storage/gemel/controllers/tally"
)

// Reconciler of TargetPairs.
type Reconciler struct {
	client.Client
	Live      client.Reader // never a cache
	Namespace string        // of everything that it creates
	Image     string        // for clusters without spec.image
	Targets   Targets
	CHAP      *chap.Keeper // nil: hosts have no credentials
	Events    events.EventRecorder
	Now       func() time.Time // nil: time.Now
	Tally     tally.Counter    // nil: what is placed on a pair is looked up each time

	turns  turns
	memory memory
}

// statusInterval is how often the status of the targets is read.
const statusInterval = 10 * time.Second

// busyInterval is the same while a change is in progress.
const busyInterval = 2 * time.Second

// wait is a step that is not complete yet, which is no error: the next reconcile continues.
type wait struct {
	reason, message string
}

func (w *wait) Error() string { return w.message }

// asWait returns the wait in an error.
func asWait(err error) (*wait, bool) {
	var w *wait
	ok := errors.As(err, &w)
	return w, ok
}

func waiting(reason, format string, args ...any) error {
	return &wait{reason, fmt.Sprintf(format, args...)}
}

// Reconcile reconciles a pair with its spec.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &v1alpha1.TargetPair{}
	if err := r.Get(ctx, req.NamespacedName, p); err != nil {
		if apierrors.IsNotFound(err) {
			deletePoolMetrics(req.Name)
		}
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
		// The pods continue to run; changes of the cluster's spec are not applied.
		v := r.observe(ctx, p)
		_ = r.reconcileScrub(ctx, nil, p, v, false) // updates the status only
		return ctrl.Result{RequeueAfter: statusInterval}, r.writeStatus(ctx, nil, p, v, waiting(v1alpha1.ReasonInvalid,
			"StorageCluster %q does not exist: the pair continues to run unchanged; create the StorageCluster again", p.Spec.Cluster))
	}
	if controllerutil.AddFinalizer(p, v1alpha1.Finalizer) {
		if err := r.Update(ctx, p); err != nil {
			return ctrl.Result{}, err
		}
	}
	m, later, err := r.reconcile(ctx, c, p)
	if errors.Is(err, errGone) {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	view := r.observe(ctx, p)
	r.keepPolicy(ctx, c, p, view)
	drains := r.drainMembers(ctx, c, p, m, view)
	if err == nil {
		err = r.roll(ctx, c, p, m, view)
	}
	bad := r.reconcileScrub(ctx, c, p, view, err == nil)
	grows := r.growClaims(ctx, c, p)
	for _, more := range []error{later, drains, grows, bad} {
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
		return ctrl.Result{RequeueAfter: busyInterval}, serr
	}
	if !view.inSync() {
		return ctrl.Result{RequeueAfter: busyInterval}, errors.Join(err, serr)
	}
	return ctrl.Result{RequeueAfter: statusInterval}, errors.Join(err, serr)
}

// reconcile creates what is missing, in the order of the dependencies. It returns the additional
// pools of the nodes; later is why some nodes cannot have one yet, for which nothing else waits.
func (r *Reconciler) reconcile(ctx context.Context, c *v1alpha1.StorageCluster, p *v1alpha1.TargetPair) (m mounts, later, err error) {
	if err := r.confirmExists(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.ensureShared(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.ensureServices(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.ensureCertificates(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.replace(ctx, p); err != nil {
		return nil, nil, err
	}
	if err := r.ensureClaims(ctx, c, p); err != nil {
		return nil, nil, err
	}
	if m, later, err = r.ensurePools(ctx, c, p); err != nil {
		return nil, nil, err
	}
	if err := r.ensureTargets(ctx, c, p, m); err != nil || r.CHAP == nil {
		return m, later, err
	}
	return m, later, r.CHAP.Sweep(ctx, c, p.Name)
}

// finalize removes a pair that has no LUNs, and otherwise says what prevents the deletion.
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
