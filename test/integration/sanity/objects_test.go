package sanity

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// backendVariable selects the driver's backend: "objects", or empty for direct.
const backendVariable = "GEMEL_SANITY_BACKEND"

// nodeName of the Kubernetes node that the plugin believes to be on.
const nodeName = "sanity"

// systemNamespace is the operator's.
const systemNamespace = "gemel-system"

// needAPIServer skips a test if no API server is available.
func needAPIServer(t *testing.T) {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: no kube-apiserver and etcd to test with (hack/envtest.sh prints the folder)")
	}
}

// TestCSISanityObjects runs the suite with volumes as Kubernetes objects: a real API server, and
// the operator in this process.
func TestCSISanityObjects(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts filesystems")
	}
	needAPIServer(t)
	again(t, backendVariable+"=objects", `mount: \d+ specs passed`)
}

// second runs another pair of the same cluster.
func (e *env) second() *harness.Pair {
	e.t.Helper()
	p, err := harness.New(harness.Options{Dir: filepath.Join(e.dir, "pair", "p1"), Binary: targetBinary, Name: "p1"})
	e.ok(err)
	e.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			e.t.Errorf("stop of the second pair: %v", err)
		}
	})
	e.ok(p.Start(e.ctx))
	return p
}

// operate runs an API server and the operator for the pair and a second one, and returns the
// plugin's flags.
func (e *env) operate() []string {
	e.t.Helper()
	ctrl.SetLogger(logr.Discard())
	api := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join(harness.Root(), "config", "crd", "bases")}, ErrorIfCRDPathMissing: true}
	cfg, err := api.Start()
	e.t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			e.t.Errorf("stop of the API server: %v", err)
		}
	})
	e.ok(err)
	c, err := operator.Client(cfg)
	e.ok(err)
	e.ok(operator.AddPair(e.ctx, c, e.pair))
	e.pair2 = e.second()
	e.ok(operator.AddPair(e.ctx, c, e.pair2))
	wrap, err := operator.Several(c, e.pair2)
	e.ok(err)
	e.ok(operator.AddCluster(e.ctx, c, "")) // as it comes: hosts need CHAP
	_, err = kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces().Create(e.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}, metav1.CreateOptions{})
	e.ok(err)
	e.restart = func(listen string) *operator.Operator {
		e.t.Helper()
		o, err := operator.StartWith(e.ctx, cfg, e.pair, wrap, operator.Enrolment{Namespace: systemNamespace, Listen: listen})
		e.ok(err)
		return o
	}
	e.operator = e.restart("")
	e.t.Cleanup(func() {
		if err := e.operator.Stop(); err != nil {
			e.t.Errorf("stop of the operator: %v", err)
		}
	})
	w, err := operator.Worker(e.ctx, cfg, systemNamespace, nodeName, e.dir)
	e.ok(err)
	e.api, e.cfg = c, cfg
	user, err := api.AddUser(envtest.User{Name: "driver", Groups: []string{"system:masters"}}, nil)
	e.ok(err)
	file, err := user.KubeConfig()
	e.ok(err)
	path := filepath.Join(e.dir, "kubeconfig")
	e.ok(os.WriteFile(path, file, 0o600))
	return []string{"--backend", "objects", "--kubeconfig", path, "--node-object", "--node-name", nodeName,
		"--enroll-endpoint", e.operator.Enroll, "--enroll-ca", w.CAFile, "--enroll-token", w.TokenFile}
}

// enrolled waits until the node plugin has written its Host object.
func (e *env) enrolled() {
	e.t.Helper()
	e.ok(harness.Wait(e.ctx, "the Host object is there", func() (bool, string) {
		var h v1alpha1.Host
		err := e.api.Get(e.ctx, client.ObjectKey{Name: nodeName}, &h)
		return err == nil && h.Spec.IQN != "" && meta.IsStatusConditionTrue(h.Status.Conditions, v1alpha1.ConditionReady), fmt.Sprint(h, err)
	}))
}
