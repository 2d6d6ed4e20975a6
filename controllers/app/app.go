// Package app is the command line of gemel-operator.
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/chap"
	"github.com/gemel-storage/gemel/controllers/cluster"
	"github.com/gemel-storage/gemel/controllers/consistencygroup"
	"github.com/gemel-storage/gemel/controllers/enroll"
	"github.com/gemel-storage/gemel/controllers/groupsnapshot"
	"github.com/gemel-storage/gemel/controllers/host"
	"github.com/gemel-storage/gemel/controllers/index"
	"github.com/gemel-storage/gemel/controllers/internal/groups"
	"github.com/gemel-storage/gemel/controllers/internal/lists"
	"github.com/gemel-storage/gemel/controllers/logicalunit"
	"github.com/gemel-storage/gemel/controllers/pair"
	"github.com/gemel-storage/gemel/controllers/pairconn"
	"github.com/gemel-storage/gemel/controllers/snapshot"
	"github.com/gemel-storage/gemel/controllers/tally"
	"github.com/gemel-storage/gemel/internal/cli"
	"github.com/gemel-storage/gemel/internal/memlimit"
)

// Version of this build, set by the linker.
var Version = "dev"

// Options of the operator.
type Options struct {
	Namespace   string // of everything that it creates
	Image       string // of target nodes, for clusters without spec.image
	Kubeconfig  string // empty: in the cluster
	Metrics     string // host:port, "0": none
	Health      string // host:port, "0": none
	Enroll      string // host:port, "0": none
	LeaderElect bool

	several bool // several managers in one process, in tests
}

// Check returns an error for every invalid value.
func (o *Options) Check() error {
	var errs []error
	if o.Namespace == "" {
		errs = append(errs, errors.New("--namespace: set the namespace for target pods, Secrets and Leases (default: the environment variable POD_NAMESPACE)"))
	}
	if o.Image == "" || strings.ContainsAny(o.Image, " \t\n") {
		errs = append(errs, fmt.Errorf("--image: %q is not an image: set the image of target nodes", o.Image))
	}
	return errors.Join(errs...)
}

// Command is the root command.
func Command() *cobra.Command {
	o := Options{}
	var level, format string
	cmd := &cobra.Command{
		Use:   "gemel-operator",
		Short: "Run pairs of target nodes for StorageClusters, and manage LogicalUnits on them",
		Long: `gemel-operator reconciles StorageClusters: it creates pairs of target nodes with their disks, addresses and certificates. It rolls
out new images one node of a pair at a time, and places, maps, expands and removes LogicalUnits.

I/O does not need the operator: without it pairs continue to serve, fail over and recover automatically.`,
		Version: Version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return err
			}
			log, err := cli.Logger(os.Stderr, level, format)
			if err != nil {
				return err
			}
			ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
			cfg, err := RestConfig(o.Kubeconfig)
			if err != nil {
				return err
			}
			defer memlimit.Follow(cmd.Context(), log)()
			return Run(cmd.Context(), cfg, &o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of target pods, Secrets and Leases")
	f.StringVar(&o.Image, "image", "", "image of target nodes, for StorageClusters without spec.image")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "path to a kubeconfig file, to run outside of the cluster")
	f.StringVar(&o.Metrics, "metrics-listen", ":9261", `host:port of /metrics; "0": none`)
	f.StringVar(&o.Health, "health-listen", ":9262", `host:port of /healthz and /readyz; "0": none`)
	f.StringVar(&o.Enroll, "enroll-listen", ":9265", `host:port at which node plugins request CHAP credentials; "0": none`)
	f.BoolVar(&o.LeaderElect, "leader-elect", true, "reconcile only while holding the operator's Lease, so that several replicas can run")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "json", "text or json")
	return cmd
}

// RestConfig reads a kubeconfig file, or the configuration of a pod in the cluster.
func RestConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		return c, nil
	}
	c, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("the operator does not run in a cluster (%w): set --kubeconfig", err)
	}
	return c, nil
}

// Scheme of everything that the operator reads and writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // compiled in
		}
	}
	return s
}

// idleCredentials is how long unused CHAP credentials are kept: longer than the recovery of lost
// objects takes.
const idleCredentials = 10 * time.Minute

// spareCredentials is how long a worker keeps its CHAP credentials on a pair of which it has no
// LUN: a pod that is restarted, or moved there and back, does not need new ones.
const spareCredentials = time.Hour

// manager of the reconcilers. The limit of client-go, 5 requests per second, is disabled: a change
// of a StorageCluster with many LogicalUnits would be delayed for minutes, and the API server
// limits requests fairly (priority and fairness).
func (o *Options) manager(cfg *rest.Config) (ctrl.Manager, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	grace := 15 * time.Second
	return ctrl.NewManager(cfg, ctrl.Options{
		NewClient: func(cfg *rest.Config, o client.Options) (client.Client, error) {
			c, err := client.New(cfg, o)
			return lists.Client(c), err
		},
		Scheme: Scheme(), Metrics: server.Options{BindAddress: o.Metrics}, HealthProbeBindAddress: o.Health,
		LeaderElection: o.LeaderElect, LeaderElectionID: "gemel-operator", LeaderElectionNamespace: o.Namespace, LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout: &grace, Controller: config.Controller{SkipNameValidation: &o.several},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&corev1.Service{}:               {Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&corev1.PersistentVolumeClaim{}: {Namespaces: map[string]cache.Config{o.Namespace: {}}},
			&v1alpha1.ConsistencyGroup{}:    {Namespaces: map[string]cache.Config{cache.AllNamespaces: {}}}, // in the namespaces of their claims
			// Only the operator's own Secrets: others must not be in its memory.
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{o.Namespace: {LabelSelector: labels.SelectorFromSet(pairconn.SecretLabels)}}},
		}, DefaultNamespaces: map[string]cache.Config{o.Namespace: {}}},
	})
}

// Run reconciles until the context ends.
func Run(ctx context.Context, cfg *rest.Config, o *Options) error {
	m, err := o.manager(cfg)
	if err != nil {
		return err
	}
	directory := &pairconn.Directory{Reader: m.GetClient(), Namespace: o.Namespace}
	defer func() { _ = directory.Close() }()
	live := lists.Reader(m.GetAPIReader())
	events := m.GetEventRecorder(v1alpha1.OperatorManager)
	keeper := &chap.Keeper{Client: m.GetClient(), Live: live, Namespace: o.Namespace, Made: chap.RecordMade(events), Grace: idleCredentials, Spare: spareCredentials}
	counts := &tally.Tally{}
	if err := counts.Follow(ctx, m.GetCache()); err != nil {
		return err
	}
	targets := &pair.Reconciler{Tally: counts, Client: m.GetClient(), Live: live, Namespace: o.Namespace, Image: o.Image, Targets: directory, CHAP: keeper, Events: events}
	finder, claims, err := groups.NewFinder(m)
	if err = errors.Join(err, index.Add(ctx, m.GetFieldIndexer())); err != nil {
		return err
	}
	spread := &consistencygroup.Reconciler{Client: m.GetClient(), Live: live, Pairs: directory, Groups: finder, Events: events}
	if err := errors.Join(
		(&cluster.Reconciler{Client: m.GetClient(), Image: o.Image, Events: events}).SetupWithManager(m),
		targets.SetupWithManager(m), logicalunit.SetupWithManager(m, directory, keeper, finder, counts), o.enrolment(m, targets), snapshot.SetupWithManager(m, directory),
		spread.SetupWithManager(m, claims),
		groupsnapshot.SetupWithManager(m, directory),
		(&host.Reconciler{Client: m.GetClient(), Live: live, Targets: directory, Events: events}).SetupWithManager(m),
		m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("ping", healthz.Ping),
	); err != nil {
		return err
	}
	return m.Start(ctx)
}

// enrolment adds the enrolment endpoint for workers, and the reconciler of its certificate.
func (o *Options) enrolment(m ctrl.Manager, r *pair.Reconciler) error {
	if o.Enroll == "0" {
		return nil
	}
	return errors.Join(m.Add(&enroll.Keep{Once: r.Enrollment}), m.Add(&enroll.Server{Listen: o.Enroll, Keeper: r.CHAP, Events: r.Events, Log: m.GetLogger().WithName("enroll"),
		Reviewer:    &enroll.Tokens{Client: m.GetClient(), Namespace: o.Namespace},
		Certificate: enroll.FromSecret(m.GetClient(), client.ObjectKey{Namespace: o.Namespace, Name: pair.EnrollSecret()})}))
}
