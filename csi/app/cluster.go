package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
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
		return objects.New(k), func() {}, nil
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
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
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
func (c *config) keepHost(ctx context.Context, w hostobject.Worker, log *slog.Logger) (stop func(), err error) {
	k, err := c.client(log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { hostobject.Keep(ctx, k, w, log) })
	return func() { cancel(); wg.Wait() }, nil
}
