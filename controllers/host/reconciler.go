// Package host compares the paths of a worker with its sessions on the targets, and records events
// when paths are lost or back. Nothing depends on the result: it shows an administrator on which
// side a path is missing.
package host

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/internal/apply"
	"github.com/gemel-storage/gemel/internal/hostprofile"
)

// Targets gives the control API of single nodes: a pairconn.Directory.
type Targets interface {
	Node(ctx context.Context, p *v1alpha1.TargetPair, node string) (targetv1.TargetServiceClient, error)
}

// Reconciler writes the targets' part of the status of Hosts.
type Reconciler struct {
	client.Client
	Live    client.Reader // never a cache; reads the volumes of claims
	Targets Targets
	Events  events.EventRecorder
	Now     func() time.Time // nil: time.Now
}

const (
	interval = time.Minute     // interval of requests to the targets; at once when the worker's status changes
	callTime = 3 * time.Second // for one node
	workers  = 32              // they mostly wait; a node that does not answer takes callTime of each worker that uses it
)

// SetupWithManager adds the reconciler to a manager.
//
// +kubebuilder:rbac:groups=gemel.storage,resources=hosts;targetpairs;logicalunits,verbs=get;list;watch
// +kubebuilder:rbac:groups=gemel.storage,resources=hosts/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(*v1alpha1.Host)
		now, also := e.ObjectNew.(*v1alpha1.Host)
		return ok && also && (old.Spec.IQN != now.Spec.IQN || old.Spec.Profile != now.Spec.Profile || !equality.Semantic.DeepEqual(old.Status.Worker, now.Status.Worker))
	}}
	return ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.Host{}, builder.WithPredicates(changed)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	h := &v1alpha1.Host{}
	if err := r.Get(ctx, req.NamespacedName, h); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	pairs := &v1alpha1.TargetPairList{}
	if err := r.List(ctx, pairs, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, err
	}
	seen, silent := r.observe(ctx, h, pairs.Items)
	if err := ctx.Err(); err != nil {
		return ctrl.Result{}, err // the operator is stopping: missing answers mean nothing
	}
	luns, err := r.mapped(ctx, h.Spec.IQN)
	if err != nil {
		return ctrl.Result{}, err
	}
	keepRequestTimes(h.Status.Targets, seen)
	count(seen, luns)
	changes, again := redundancy(h, seen, pairs.Items, r.now())
	if err := r.writeStatus(ctx, h, seen, lastMoves(luns), pathsCondition(h, seen, silent), len(changes) > 0); object.IsStale(err) {
		return object.RequeueIfStale(err)
	} else if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.record(ctx, h, changes, wereLost(h), luns)
	if again == 0 {
		again = interval
	}
	return ctrl.Result{RequeueAfter: min(again, interval)}, nil
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// observe reads the worker's sessions from both nodes of every pair whose LUNs it has attached. A
// node that does not answer is part of the result, no error. silent are the portals where the
// worker does not request the target port groups.
func (r *Reconciler) observe(ctx context.Context, h *v1alpha1.Host, pairs []v1alpha1.TargetPair) (out []v1alpha1.HostSessions, silent map[string]bool) {
	out, silent = make([]v1alpha1.HostSessions, len(h.Status.Worker)), map[string]bool{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, w := range h.Status.Worker {
		out[i].Target = w.Target
		for p := range pairs {
			if pairs[p].Status.TargetIQN != w.Target {
				continue
			}
			out[i].Pair = pairs[p].Name
			out[i].Nodes = make([]v1alpha1.HostSession, len(pairs[p].Spec.Nodes))
			for n := range pairs[p].Spec.Nodes {
				wg.Go(func() {
					s, quiet := r.sessions(ctx, h.Spec.IQN, &pairs[p], pairs[p].Spec.Nodes[n].Name)
					out[i].Nodes[n] = s
					mu.Lock()
					defer mu.Unlock()
					silent[s.Portal] = quiet
				})
			}
			break
		}
	}
	wg.Wait()
	return out, silent
}

func (r *Reconciler) sessions(ctx context.Context, iqn string, p *v1alpha1.TargetPair, node string) (out v1alpha1.HostSession, silent bool) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	out.Node = node
	t, err := r.Targets.Node(ctx, p, node)
	var a *targetv1.ListSessionsResponse
	if err == nil {
		a, err = t.ListSessions(ctx, &targetv1.ListSessionsRequest{HostIqn: iqn})
	}
	if err != nil {
		out.Error = v1alpha1.ErrorText(status.Convert(err).Message())
		return out, false
	}
	out.Portal, out.Sessions = a.GetPortal().GetAddress(), int32(len(a.Sessions))
	out.LastRTPG, silent = lastRequest(a)
	return out, silent
}

// writeStatus applies the operator's part of the status if it has changed: lists and a condition
// that the node plugin does not write. With exact it is a conflict if the Host has changed since it
// was read: before an event is recorded, so that an outdated cache makes no event twice.
func (r *Reconciler) writeStatus(ctx context.Context, h *v1alpha1.Host, seen []v1alpha1.HostSessions, moves []v1alpha1.HostMove, c metav1.Condition, exact bool) error {
	conditions := h.DeepCopy().Status.Conditions
	changed := meta.SetStatusCondition(&conditions, c)
	profile, why := hostprofile.Effective(hostprofile.Profile(h.Spec.Profile), h.Spec.IQN)
	changed = changed || h.Status.Profile != string(profile) || h.Status.ProfileReason != why
	if !changed && equality.Semantic.DeepEqual(h.Status.Targets, seen) && equality.Semantic.DeepEqual(h.Status.Moves, moves) {
		return nil
	}
	part := map[string]any{"profile": profile, "profileReason": why, "conditions": []metav1.Condition{*meta.FindStatusCondition(conditions, v1alpha1.ConditionPathsComplete)}}
	if len(seen) > 0 {
		part["targets"] = seen
	}
	if len(moves) > 0 {
		part["moves"] = moves
	}
	version := ""
	if exact {
		version = h.ResourceVersion
	}
	return apply.StatusAt(ctx, r.Client, v1alpha1.OperatorManager, v1alpha1.GroupVersion.WithKind("Host"), h.Name, version, part)
}
