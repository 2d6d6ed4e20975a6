package envtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { Main(m) }

// A test binary that dies takes its servers with it.
func TestReaperEndsServersOfADeadTest(t *testing.T) {
	if os.Getenv("ENVTEST_DIE") != "" {
		cfg := Config(t)
		pids, err := children(os.Getenv(Assets))
		fmt.Println("PIDS", strings.Join(pids, " "), cfg.Host, err)
		panic("as a test would")
	}
	Config(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestReaperEndsServersOfADeadTest$")
	cmd.Env = append(os.Environ(), "ENVTEST_DIE=1", "TMPDIR="+t.TempDir())
	out, err := cmd.Output()
	_, line, ok := strings.Cut(string(out), "PIDS ")
	if err == nil || !ok {
		t.Fatalf("%v: %s", err, out)
	}
	pids := strings.Fields(line)[:2]
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		alive := slices.DeleteFunc(slices.Clone(pids), func(pid string) bool {
			b, err := os.ReadFile("/proc/" + pid + "/cmdline")
			return err != nil || len(b) == 0 // a zombie has none
		})
		if len(alive) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v run on", alive)
		}
	}
}

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
