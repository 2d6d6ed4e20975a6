// Package envtest gives the tests of one binary a real kube-apiserver and etcd, started once, when
// the first test asks:
//
//	func TestMain(m *testing.M) { envtest.Main(m) }
//	func TestX(t *testing.T)    { cfg := envtest.Config(t); … }
//
// The binaries are those of KUBEBUILDER_ASSETS, which hack/envtest.sh prints; without it these
// tests are skipped.
package envtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Assets is the variable that names the folder of the binaries.
const Assets = "KUBEBUILDER_ASSETS"

var (
	env   *envtest.Environment
	watch *reaper
	crds  []string
	start = sync.OnceValues(func() (*rest.Config, error) {
		e := &envtest.Environment{CRDDirectoryPaths: crds, ErrorIfCRDPathMissing: true}
		// As in a cluster: who may do what is decided by RBAC. Tests wait for nothing that garbage
		// collection would do.
		e.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "RBAC")
		cfg, err := e.Start()
		env = e // also to stop what a failed start has left
		if err == nil {
			watch, err = newReaper(filepath.Clean(os.Getenv(Assets)))
		}
		return cfg, err
	})
)

// Main runs the tests, stops what was started and exits. CRDs in crdFolders are installed at the
// start.
func Main(m *testing.M, crdFolders ...string) {
	crds = crdFolders
	code := m.Run()
	if env != nil {
		err := env.Stop()
		watch.stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, "envtest:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Config is an administrator's access to the API server. It skips the test if there are no
// binaries.
func Config(t testing.TB) *rest.Config {
	t.Helper()
	if os.Getenv(Assets) == "" {
		t.Skip(Assets + " is not set: no kube-apiserver and etcd to test with (hack/envtest.sh prints the folder)")
	}
	cfg, err := start()
	if err != nil {
		t.Fatalf("envtest: %v", err)
	}
	return rest.CopyConfig(cfg)
}

// Namespace makes a namespace of its own for a test. It is not deleted: nothing here would finish
// that.
func Namespace(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := k.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// As is cfg in the name of a service account: what it may do is what RBAC gives it.
func As(cfg *rest.Config, namespace, serviceAccount string) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + serviceAccount,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	return c
}

// Kubeconfig writes cfg to a file, for a process or a flag that wants one. Its credentials are a
// token or a certificate.
func Kubeconfig(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := WriteKubeconfig(path, cfg); err != nil {
		t.Fatal(err)
	}
	return path
}

// WriteKubeconfig is Kubeconfig for a program.
func WriteKubeconfig(path string, cfg *rest.Config) error {
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, TLSServerName: cfg.ServerName, CertificateAuthorityData: cfg.CAData}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: cfg.BearerToken, ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	k.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	k.CurrentContext = "x"
	return clientcmd.WriteToFile(*k, path)
}
