// Package operator runs the reconcilers of LUNs, snapshots and group snapshots in a test's process,
// against a real API server and a real pair.
package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/groupsnapshot"
	"github.com/gemel-storage/gemel/controllers/index"
	"github.com/gemel-storage/gemel/controllers/logicalunit"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/controllers/snapshot"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Cluster is the StorageCluster of the pair that AddPair describes.
const Cluster = harness.Cluster

// Scheme knows what the driver and the operator use.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, storagev1.AddToScheme, coordinationv1.AddToScheme, authenticationv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // the types are wrong
		}
	}
	return s
}

// Client reads from the API server itself.
func Client(cfg *rest.Config) (client.WithWatch, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	return client.NewWithWatch(cfg, client.Options{Scheme: Scheme()})
}

// AddPair writes the TargetPair that represents a pair on loopback, as the operator's other
// reconcilers would, or brings its status up to date.
func AddPair(ctx context.Context, c client.Client, p *harness.Pair) error {
	o := &v1alpha1.TargetPair{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: v1alpha1.TargetPairSpec{Cluster: p.InCluster}}
	for i, n := range harness.Names {
		host, _, err := net.SplitHostPort(p.Control[i])
		if err != nil {
			return err
		}
		o.Spec.Nodes = append(o.Spec.Nodes, v1alpha1.PairNode{Name: n, Address: host})
	}
	if err := c.Create(ctx, o); apierrors.IsAlreadyExists(err) {
		err = c.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	s, err := p.Status(ctx, 0)
	if err != nil {
		return err
	}
	now := metav1.Now()
	o.Status.Conditions = nil
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionInSync} {
		o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: now})
	}
	o.Status.Capacity, o.Status.Free = resource.NewQuantity(int64(s.CapacityBytes), resource.BinarySI), resource.NewQuantity(int64(s.FreeBytes), resource.BinarySI)
	o.Status.Pools = nil
	for _, v := range s.Volumes { // pools are called as the volumes are
		if len(v.Lacks) == 0 {
			o.Status.Pools = append(o.Status.Pools, v1alpha1.PoolStatus{Name: v.Name, Capacity: resource.NewQuantity(int64(v.CapacityBytes), resource.BinarySI),
				Free: resource.NewQuantity(int64(v.FreeBytes), resource.BinarySI)})
		}
	}
	return c.Status().Update(ctx, o)
}

// Operator runs until Stop.
type Operator struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    error
	dir    *pairconn.Directory

	Enroll string // host:port of the enrolment endpoint
}

// Several reaches pairs beside the first one, which have ports of their own: a wrap for Start.
func Several(c client.Reader, more ...*harness.Pair) (func(pairconn.Pairs) pairconn.Pairs, error) {
	byName := map[string]pairconn.Pairs{}
	for _, p := range more {
		d, err := directory(c, p)
		if err != nil {
			return nil, err
		}
		byName[p.Name] = d
	}
	return func(first pairconn.Pairs) pairconn.Pairs { return several{first, byName} }, nil
}

// directory of a pair on loopback, which has a port of its own and no certificates.
func directory(c client.Reader, p *harness.Pair) (*pairconn.Directory, error) {
	_, text, err := net.SplitHostPort(p.Control[0])
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	return &pairconn.Directory{Reader: c, Plain: true, Port: port}, err
}

type several struct {
	first  pairconn.Pairs
	byName map[string]pairconn.Pairs
}

// Client implements pairconn.Pairs.
func (s several) Client(ctx context.Context, name string) (pairconn.Pair, error) {
	if d := s.byName[name]; d != nil {
		return d.Client(ctx, name)
	}
	return s.first.Client(ctx, name)
}

// Start runs the reconcilers over cfg and waits until their caches are filled. wrap, if any, is
// between them and the pairs. Hosts are let in by their names.
func Start(ctx context.Context, cfg *rest.Config, p *harness.Pair, wrap func(pairconn.Pairs) pairconn.Pairs) (*Operator, error) {
	return StartWith(ctx, cfg, p, wrap, Enrolment{})
}

// StartWith is Start with CHAP credentials, for hosts that enrol.
func StartWith(ctx context.Context, cfg *rest.Config, p *harness.Pair, wrap func(pairconn.Pairs) pairconn.Pairs, e Enrolment) (*Operator, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, GracefulShutdownTimeout: ptr.To(10 * time.Second),
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, Cache: secrets(e.Namespace)})
	if err != nil {
		return nil, err
	}
	// An index needs the kinds that the API server knows, which it may fail to answer: a test may
	// have just let it break a call off.
	if err := harness.Wait(ctx, "the API server answers which kinds it knows", func() (bool, string) {
		_, err := m.GetRESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("LogicalUnit").GroupKind())
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		return nil, err
	}
	if err := index.Add(ctx, m.GetFieldIndexer()); err != nil {
		return nil, err
	}
	o := &Operator{}
	if o.dir, err = directory(m.GetClient(), p); err != nil {
		return nil, err
	}
	var found pairconn.Pairs = o.dir
	if wrap != nil {
		found = wrap(found)
	}
	rec := m.GetEventRecorder(v1alpha1.OperatorManager)
	keeper, err := o.enrolment(m, e)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		(&logicalunit.Reconciler{Client: m.GetClient(), Live: m.GetAPIReader(), Pairs: found, Recorder: rec, CHAP: keeper, Refresh: 2 * time.Second, Lazy: time.Second}).Setup(m),
		(&snapshot.Reconciler{Client: m.GetClient(), Live: m.GetAPIReader(), Pairs: found, Recorder: rec, Refresh: 2 * time.Second}).Setup(m),
		(&groupsnapshot.Reconciler{Client: m.GetClient(), Live: m.GetAPIReader(), Pairs: found, Recorder: rec, Refresh: 2 * time.Second, Again: 200 * time.Millisecond}).Setup(m))
	if err != nil {
		return nil, err
	}
	ctx, o.cancel = context.WithCancel(ctx)
	o.wg.Go(func() { o.err = ended(ctx, m.Start(ctx)) })
	if !m.GetCache().WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("caches were not filled: %w", errors.Join(ctx.Err(), o.Stop()))
	}
	return o, nil
}

// ended is the error of a manager that has run. A manager that is stopped while a controller still
// waits for its cache may return that controller's error: it did what it was asked to. It is an
// error if a reconciler does not end in time.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// Stop ends the reconcilers, whatever they are doing. It returns the error of reconcilers that
// failed before it, or did not end within the time that they have.
func (o *Operator) Stop() error {
	o.cancel()
	o.wg.Wait()
	return errors.Join(o.err, o.dir.Close())
}
