package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/csi/backend/direct"
	"github.com/gemel-storage/gemel/csi/backend/objects"
	"github.com/gemel-storage/gemel/csi/hostobject"
	"github.com/gemel-storage/gemel/internal/pairclient"
)

const (
	backendObjects = "objects"
	backendDirect  = "direct"
)

// inCluster reports whether this runs in a pod with a service account.
func inCluster() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// checkBackend chooses a backend if none is set, and checks its flags.
func (c *config) checkBackend(bad func(flag, format string, args ...any)) {
	reachable := c.Kubeconfig != "" || inCluster()
	if c.NodeObject && c.node() {
		if !reachable {
			bad("kubeconfig", "is required by --node-object outside of a cluster")
		}
		if c.NodeName == "" {
			bad("node-name", "is required by --node-object: set it to the name of the Kubernetes node")
		}
	}
	if err := hostobject.CheckKeys(c.TopologyKeys); err != nil {
		bad("topology-keys", "%w", err)
	}
	if len(c.TopologyKeys) > 0 && !(c.NodeObject && c.node()) {
		bad("topology-keys", "needs --node-object and the node service: the labels are those of the Kubernetes node")
	}
	if !c.controller() {
		return
	}
	if c.Backend == "" {
		c.Backend = backendDirect
		if len(c.PairEndpoints) == 0 && reachable {
			c.Backend = backendObjects
		}
	}
	switch {
	case c.Backend != backendObjects && c.Backend != backendDirect:
		bad("backend", "%q is not objects or direct", c.Backend)
	case c.Backend == backendDirect && len(c.PairEndpoints) == 0:
		bad("pair-endpoint", "is required by the controller service outside of a cluster: set the control address of each node of the pair")
	case c.Backend == backendObjects && len(c.PairEndpoints) > 0:
		bad("pair-endpoint", "must not be set with --backend objects: remove it")
	case c.Backend == backendObjects && !reachable:
		bad("kubeconfig", "is required by --backend objects outside of a cluster")
	}
}

// backend of the controller service, and a function to close it.
func (c *config) backend(log *slog.Logger) (backend.Backend, func(), error) {
	if c.Backend == backendObjects {
		k, err := c.client(log)
		if err != nil {
			return nil, nil, err
		}
		b := objects.New(k)
		b.Log = log
		return b, func() {}, nil
	}
	b, err := c.directPair()
	if err != nil {
		return nil, nil, err
	}
	return b, func() { _ = b.Close() }, nil
}

// directPair is the pair of --pair-endpoint.
func (c *config) directPair() (*direct.Backend, error) {
	d := direct.Config{Endpoints: c.PairEndpoints}
	if c.TLSCert != "" {
		t, err := pairclient.LoadTLS(c.TLSCert, c.TLSKey, c.TLSCA, c.Cluster, c.Pair)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		d.TLS = t
	}
	return direct.New(d)
}

// client of the API server, without a cache. The limit of client-go is disabled: many attachments
// at once would be delayed, and the API server limits requests fairly (priority and fairness).
func (c *config) client(log *slog.Logger) (client.WithWatch, error) {
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	var cfg *rest.Config
	var err error
	if c.Kubeconfig != "" {
		cfg, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	} else {
		cfg, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	cfg.QPS, cfg.UserAgent = -1, v1alpha1.DriverManager+"/"+Version
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, storagev1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	k, err := client.NewWithWatch(cfg, client.Options{Scheme: s})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return k, nil
}

// keepHost keeps the Host object until stop is called.
func keepHost(ctx context.Context, k client.Client, w hostobject.Worker, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { hostobject.Keep(ctx, k, w, log) })
	return func() { cancel(); wg.Wait() }
}

// topologyLimit bounds the call for the labels of this worker.
const topologyLimit = 10 * time.Second

// topology reads the labels of this worker for its segments. While the API server cannot be reached
// the kubelet cannot register the plugin either, so that is an error and the kubelet tries again.
// What trying again does not change is logged: without segments a worker can still use all volumes
// that are not for some workers only.
func (c *config) topology(k client.Reader, log *slog.Logger) func(context.Context) (map[string]string, error) {
	if k == nil {
		return nil
	}
	return func(ctx context.Context) (map[string]string, error) {
		ctx, cancel := context.WithTimeout(ctx, topologyLimit)
		defer cancel()
		out, err := hostobject.Segments(ctx, k, c.NodeName, c.TopologyKeys)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			log.Warn("cannot read the topology labels of this worker: it is reported without zone and region", "node", c.NodeName, "err", err)
			return nil, nil
		}
		return out, err
	}
}
