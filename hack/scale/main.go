// Scale is `make test-scale`: the real operator and the real CSI controller over a real API server
// with 10,000 LUNs of 50 pairs and 1,000 workers; what they cost while nothing happens, and how
// long calls take while much does. The control API of the target nodes and the kubelets are
// stand-ins in this process.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/gemel-storage/gemel/internal/testkit/fleet"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

type options struct {
	out           string
	luns, workers int
	pairs, move   int
	idle          time.Duration
	keep          bool
}

func main() {
	o := options{}
	flag.StringVar(&o.out, "out", "out/scale.json", "results")
	flag.IntVar(&o.luns, "luns", 10_000, "LUNs")
	flag.IntVar(&o.workers, "workers", 1_000, "workers")
	flag.IntVar(&o.pairs, "pairs", 50, "pairs, four of them of a cluster of their own")
	flag.IntVar(&o.move, "move", 2_000, "volumes that are detached and attached elsewhere")
	flag.DurationVar(&o.idle, "idle", 3*time.Minute, "how long an idle cluster is watched")
	flag.BoolVar(&o.keep, "keep", false, "keep the folder with the logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := isolated(ctx, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		code = max(code, 1)
	}
	stop()
	os.Exit(code)
}

func isolated(ctx context.Context, o *options) (int, error) {
	if !netns.Isolated() {
		if os.Getenv("KUBEBUILDER_ASSETS") == "" {
			return 1, errors.New("KUBEBUILDER_ASSETS is not set: hack/envtest.sh prints the folder with kube-apiserver and etcd")
		}
		return netns.Isolate(ctx)
	}
	log.SetOutput(io.Discard)
	ctrl.SetLogger(logr.Discard())
	dir, err := os.MkdirTemp("", "gemel-scale-")
	if err != nil {
		return 1, err
	}
	if !o.keep {
		defer func() { _ = os.RemoveAll(dir) }()
	}
	fmt.Println("building")
	for _, pkg := range []string{"./cmd/gemel-operator", "./cmd/gemel-csi"} {
		if _, err := harness.Build(ctx, dir, pkg); err != nil {
			return 1, err
		}
	}
	f, err := fleet.Start(ctx, dir, dir, o.workers, capacity)
	if err != nil {
		return 1, err
	}
	r := &results{LUNs: o.luns, Hosts: o.workers, Pairs: o.pairs, ControlAPI: "a stand-in, " + fmt.Sprint(2*o.pairs) + " nodes in one process", Kubelets: "stand-ins"}
	err = errors.Join(r.run(ctx, f, o), f.Close())
	if err != nil {
		fmt.Println("logs:", dir)
		o.keep = true
		return 1, err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return 1, err
	}
	fmt.Println(string(b))
	if err := errors.Join(os.MkdirAll(filepath.Dir(o.out), 0o755), os.WriteFile(o.out, append(b, '\n'), 0o644)); err != nil {
		return 1, err
	}
	return r.check()
}
