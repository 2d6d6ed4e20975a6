package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/gemel-storage/gemel/controllers/app"
	testenv "github.com/gemel-storage/gemel/internal/testkit/envtest"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// Namespace of the operator.
const Namespace = "gemel-system"

// The API server does not start without an address of a default route.

// services is the range of the addresses of Services: they are local to the network namespace of
// this process, because nothing forwards them.
const services = "10.64.0.0/16"

// ControlPort of target nodes, and the ports of the metrics.
const (
	ControlPort     = "3261"
	OperatorMetrics = "127.0.0.1:9261"
	DriverMetrics   = "127.0.0.1:9263"
)

// Fleet is a cluster.
type Fleet struct {
	Dir      string
	Workers  int
	Capacity uint64 // of each pair, in bytes
	Client   client.Client
	Config   *rest.Config
	Pairs    *Pairs
	CSI      *grpc.ClientConn
	Operator *exec.Cmd
	Driver   *exec.Cmd

	env  *envtest.Environment
	stop context.CancelFunc
	all  sync.WaitGroup
}

// Start starts an API server, the operator and the CSI controller. It needs a network namespace of
// its own, and kube-apiserver and etcd in KUBEBUILDER_ASSETS. bin has gemel-operator and gemel-csi.
func Start(ctx context.Context, dir, bin string, workers int, capacity uint64) (f *Fleet, err error) {
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"route", "add", "local", services, "dev", "lo"},
		{"address", "add", "10.63.0.1/24", "dev", "lo"}, {"route", "add", "default", "via", "10.63.0.2", "dev", "lo"}} {
		if b, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %v: %w: %s", args, err, b)
		}
	}
	f = &Fleet{Dir: dir, Workers: workers, Capacity: capacity, Pairs: &Pairs{}}
	ctx, f.stop = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	root := harness.Root()
	f.env = &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join(root, "config/crd/bases")}, ErrorIfCRDPathMissing: true}
	f.env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", services)
	if f.Config, err = f.env.Start(); err != nil {
		return f, fmt.Errorf("API server: %w", err)
	}
	f.Config.QPS = -1
	if f.Client, err = client.New(f.Config, client.Options{Scheme: app.Scheme()}); err != nil {
		return f, err
	}
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Apps}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}} {
		if err = f.Client.Create(ctx, o); err != nil {
			return f, err
		}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err = testenv.WriteKubeconfig(kubeconfig, f.Config); err != nil {
		return f, err
	}
	f.all.Go(func() {
		if err := f.Pairs.Serve(ctx, ControlPort); err != nil {
			fmt.Fprintln(os.Stderr, "control API:", err)
		}
	})
	if f.Operator, err = f.process(bin, "gemel-operator", "--kubeconfig", kubeconfig, "--namespace", Namespace, "--image", "gemel:scale", "--metrics-listen", OperatorMetrics,
		"--health-listen", "127.0.0.1:9262", "--enroll-listen", "0"); err != nil {
		return f, err
	}
	socket := filepath.Join(dir, "csi.sock")
	if f.Driver, err = f.process(bin, "gemel-csi", "--endpoint", "unix://"+socket, "--mode", "controller", "--backend", "objects", "--kubeconfig", kubeconfig, "--metrics-listen", DriverMetrics); err != nil {
		return f, err
	}
	f.CSI, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return f, err
}

// process starts one of Gemel's programs, with its log in the folder.
func (f *Fleet) process(bin, name string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(f.Dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Env = append(os.Environ(), "POD_NAMESPACE="+Namespace)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

// Keep does the work of the kubelets until the context ends.
func (f *Fleet) Keep(ctx context.Context) {
	f.all.Go(func() {
		for ctx.Err() == nil {
			if err := f.nodes(ctx); err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "nodes:", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
	})
}

// Close ends everything that was started.
func (f *Fleet) Close() error {
	var errs []error
	if f.CSI != nil {
		errs = append(errs, f.CSI.Close())
	}
	for _, cmd := range []*exec.Cmd{f.Driver, f.Operator} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Signal(syscall.SIGKILL)
			_ = cmd.Wait()
		}
	}
	f.stop()
	f.all.Wait()
	if f.env != nil {
		errs = append(errs, f.env.Stop())
	}
	return errors.Join(errs...)
}
