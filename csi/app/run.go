package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/controller"
	"github.com/gemel-storage/gemel/csi/hostobject"
	"github.com/gemel-storage/gemel/csi/identity"
	"github.com/gemel-storage/gemel/csi/node"
	"github.com/gemel-storage/gemel/csi/register"
	"github.com/gemel-storage/gemel/csi/server"
)

// config is the command line.
type config struct {
	Endpoint, Mode                      string
	Backend                             string // objects, direct, or empty: chosen by checkBackend
	Kubeconfig                          string
	NodeObject                          bool
	TopologyKeys                        []string
	PairEndpoints                       []string
	TLSCert, TLSKey, TLSCA              string
	Cluster, Pair                       string
	StateDir, NodeIQN, NodeName, Attach string
	HolderAgent, HostProc               string
	Registry, KubeletEndpoint           string
	IODeadline, NoLUNAfter              time.Duration
	MaxVolumes                          int64
	EnrollEndpoint, EnrollCA            string
	EnrollToken                         string
	MetricsListen                       string
}

func (c *config) controller() bool { return c.Mode != "node" }
func (c *config) node() bool       { return c.Mode != "controller" }

// check returns an error for every invalid flag.
func (c *config) check() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if _, err := server.ParseEndpoint(c.Endpoint); err != nil {
		bad("endpoint", "%w", err)
	}
	if c.Mode != "controller" && c.Mode != "node" && c.Mode != "all" {
		bad("mode", "%q must be controller, node or all", c.Mode)
	}
	c.checkBackend(bad)
	set := 0
	for _, s := range []string{c.TLSCert, c.TLSKey, c.TLSCA, c.Cluster, c.Pair} {
		if s != "" {
			set++
		}
	}
	if set != 0 && set != 5 {
		bad("tls-cert", "set all of --tls-cert, --tls-key, --tls-ca, --cluster and --pair, or none")
	}
	if c.node() {
		if !filepath.IsAbs(c.StateDir) {
			bad("state-dir", "%q is not an absolute path", c.StateDir)
		}
		if c.NodeIQN != "" {
			if err := node.CheckIQN(c.NodeIQN); err != nil {
				bad("node-iqn", "%w", err)
			}
		}
		if c.Attach != attachKernel && c.Attach != attachUserspace && c.Attach != attachAuto {
			bad("attach", "%q must be kernel, userspace or auto", c.Attach)
		}
		if c.Attach != attachUserspace && !filepath.IsAbs(c.HostProc) {
			bad("host-proc", "%q is not an absolute path", c.HostProc)
		}
		if c.HolderAgent != "" && !filepath.IsAbs(c.HolderAgent) {
			bad("holder-agent", "%q is not an absolute path", c.HolderAgent)
		}
		if c.IODeadline < time.Second {
			bad("io-deadline", "%v is below 1s: a failover would cause I/O errors", c.IODeadline)
		}
		if c.NoLUNAfter < time.Second {
			bad("no-lun-after", "%v is below 1s: publishing a volume again would cause I/O errors", c.NoLUNAfter)
		}
		c.checkEnroll(bad)
		if c.MaxVolumes < 0 || c.MaxVolumes > maxLUNs {
			bad("max-volumes", "%d must be between 0 (what the machine can hold) and %d (the number of LUNs of a host on a pair)", c.MaxVolumes, maxLUNs)
		}
	}
	return errors.Join(errs...)
}

// maxLUNs is the number of LUNs of a host on one pair.
const maxLUNs = attach.MaxLUN + 1

// mostLUNs is the limit of this worker: never more than the machine can hold, because a pod
// beyond that would wait forever.
func mostLUNs(requested, can int64, by string, log *slog.Logger) int64 {
	can = min(can, maxLUNs)
	switch {
	case requested == 0:
		return can
	case requested > can:
		log.Warn("--max-volumes is more than this machine can hold: using a lower limit", "requested", requested, "limit", can, "by", by)
		return can
	}
	return requested
}

// run serves until the context ends.
func (c *config) run(ctx context.Context, log *slog.Logger) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ready := &identity.Server{Version: Version, Controller: c.controller()}
	services := server.Services{Identity: ready}
	if c.controller() {
		b, stop, err := c.backend(log)
		if err != nil {
			return err
		}
		defer stop()
		c := controller.New(b, log)
		services.Controller = c
		if ready.Groups = b.GroupSnapshots(); ready.Groups {
			services.GroupController = c
		}
	}
	if c.node() {
		publications, stop, err := c.publications()
		if err != nil {
			return err
		}
		defer stop()
		var api client.Client // nil: without Kubernetes
		if c.NodeObject {
			if api, err = c.client(log); err != nil {
				return err
			}
		}
		n, worker, stop, err := c.nodeService(ctx, publications, c.topology(api, log), reg, log)
		if err != nil {
			return err
		}
		defer stop()
		if api != nil {
			defer keepHost(ctx, api, worker, log)()
		}
		services.Node = n
		ready.Ready = func(context.Context) error { return worker.Ready() }
	}
	stopMetrics, err := c.serveMetrics(reg, ready, log)
	if err != nil {
		return err
	}
	defer stopMetrics()
	s, err := server.Listen(c.Endpoint, services, reg, log)
	if err != nil {
		return err
	}
	var registered sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer registered.Wait()
	defer cancel(nil)
	if c.Registry != "" && c.node() {
		path := c.KubeletEndpoint
		if path == "" {
			path, _ = server.ParseEndpoint(c.Endpoint) // checked
		}
		registered.Go(func() {
			err := register.Run(ctx, register.Config{Folder: c.Registry, Driver: identity.DriverName, Endpoint: path, Log: log})
			if err != nil {
				cancel(err) // without registration the plugin is useless: exit with the error
			}
		})
	}
	log.Info("serving", "driver", identity.DriverName, "version", Version, "endpoint", c.Endpoint, "mode", c.Mode)
	if err := s.Serve(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// nodeService creates the node service, and the content of this worker's Host object. stop ends its
// goroutines.
func (c *config) nodeService(ctx context.Context, publications node.Publications, topology func(context.Context) (map[string]string, error), reg prometheus.Registerer, log *slog.Logger) (n *node.Server, w hostobject.Worker, stop func(), err error) {
	iqn, machine := c.NodeIQN, node.MachineID()
	if iqn == "" {
		name := c.NodeName
		if name == "" {
			name, _ = os.Hostname() // an empty name is replaced
		}
		if iqn, err = node.InitiatorName(c.StateDir, name, machine, log); err != nil {
			return nil, w, nil, err
		}
	}
	a, can, by, err := c.attacher(log)
	if err != nil {
		return nil, w, nil, err
	}
	most := mostLUNs(c.MaxVolumes, can, by, log)
	log.Info("node", "iqn", iqn, "attach", a.mode, "maxLUNs", most)
	keeper, stop, err := c.credentials(ctx, a, reg, log)
	if err != nil {
		return nil, w, nil, err
	}
	n, err = node.New(node.Config{IQN: iqn, StateDir: c.StateDir, Attacher: a, MaxLUNs: most, Credentials: keeper, Publications: publications, Topology: topology, Log: log})
	if err != nil {
		stop()
		return nil, w, nil, err
	}
	changed := make(chan struct{}, 1)
	if a.run != nil {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			a.run(ctx, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
		})
		others := stop
		stop = func() { cancel(); wg.Wait(); others() }
	}
	return n, hostobject.Worker{Node: c.NodeName, IQN: iqn, MachineID: machine, AttachMode: a.mode, Why: a.why, Version: Version, Ready: a.ready,
		Paths: a.paths, Changed: changed, MaxLUNs: most, Attached: a.LUNs}, stop, nil
}

// serveMetrics serves /metrics, /healthz (the process runs) and /readyz (it can attach).
func (c *config) serveMetrics(reg *prometheus.Registry, id *identity.Server, log *slog.Logger) (stop func(), err error) {
	if c.MetricsListen == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", c.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if _, err := id.Probe(r.Context(), nil); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics server ended", "err", err)
		}
	}()
	return func() { _ = h.Close(); <-done }, nil
}
