package envtest

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { Main(m) }

func TestOneForAll(t *testing.T) {
	cfg := Config(t)
	if again := Config(t); again.Host != cfg.Host {
		t.Errorf("%s, then %s", cfg.Host, again.Host)
	}
	ns := Namespace(t, cfg)
	if other := Namespace(t, cfg); other == ns {
		t.Errorf("%s twice", ns)
	}
	file, err := clientcmd.BuildConfigFromFlags("", Kubeconfig(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(file).CoreV1().Namespaces().Get(context.Background(), ns, metav1.GetOptions{}); err != nil {
		t.Errorf("with the file: %v", err)
	}
	k, err := kubernetes.NewForConfig(As(cfg, ns, "nobody"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = k.CoordinationV1().Leases(ns).List(context.Background(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a service account without a role may list: %v", err)
	}
}
