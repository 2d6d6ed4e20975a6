// Command storagesuite runs Kubernetes' external storage tests against Gemel on a cluster that has it, shows how it goes and
// writes what came of it. hack/kind/storage-suite.sh builds what it needs and starts it. It exits with 1 when a test failed, or skipped
// itself for a reason that nobody has looked at.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// external is the name that all tests of a -storage.testdriver have.
const external = "External Storage"

type options struct {
	ginkgo, suite, driver, out, focus, skip string
	procs                                   int
	timeout                                 time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.ginkgo, "ginkgo", "ginkgo", "the ginkgo command, of the version that the suite is built with")
	flag.StringVar(&o.suite, "suite", "e2e.test", "Kubernetes' e2e.test")
	flag.StringVar(&o.driver, "testdriver", "hack/storagesuite/testdriver.yaml", "what the suite is told of the driver")
	flag.StringVar(&o.out, "out", "out", "folder of storage-suite.json, storage-suite.log and ginkgo's own report")
	flag.StringVar(&o.focus, "focus", "", "only tests whose name matches this regular expression")
	flag.StringVar(&o.skip, "skip", "", "no tests whose name matches this regular expression")
	flag.IntVar(&o.procs, "procs", 3, "tests at a time")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Hour, "for all of it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "storagesuite:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (bool, error) {
	var err error
	for _, path := range []*string{&o.suite, &o.driver, &o.out} {
		if *path, err = filepath.Abs(*path); err != nil {
			return false, err
		}
	}
	if o.focus != "" {
		if _, err := regexp.Compile(o.focus); err != nil {
			return false, fmt.Errorf("-focus: %w", err)
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return false, err
	}
	raw := filepath.Join(o.out, "storage-suite.ginkgo.json")
	if err := os.Remove(raw); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err // an old report must not be read as this run's
	}
	p, err := listen(os.Stdout)
	if err != nil {
		return false, err
	}
	defer p.Close()
	ended := o.start(ctx, p.url)
	reports, err := read(raw)
	if err != nil {
		return false, errors.Join(ended, err)
	}
	r := summarize(reports, o.focus != "" || o.skip != "")
	if ended != nil && r.ok() {
		r.Failures = append(r.Failures, failure{Message: "ginkgo: " + ended.Error()}) // it broke outside a test
		r.Failed++
	}
	r.print(os.Stdout)
	return r.ok(), r.write(filepath.Join(o.out, "storage-suite.json"))
}

// start runs the suite to its end; what it prints is kept in a log.
func (o options) start(ctx context.Context, progress string) error {
	log, err := os.Create(filepath.Join(o.out, "storage-suite.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, o.ginkgo, o.args(progress)...)
	cmd.Stdout, cmd.Stderr = log, log
	// Asked to end, ginkgo lets the tests that run clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Minute
	return cmd.Run()
}

func (o options) args(progress string) []string {
	focus := external
	if o.focus != "" {
		focus += ".*(" + o.focus + ")"
	}
	args := []string{"run", "--no-color", fmt.Sprintf("--procs=%d", o.procs), "--timeout=" + o.timeout.String(),
		"--output-dir=" + o.out, "--json-report=storage-suite.ginkgo.json", "--focus=" + focus}
	for _, r := range leftOut {
		args = append(args, "--skip="+r.pattern.String())
	}
	if o.skip != "" {
		args = append(args, "--skip="+o.skip)
	}
	return append(args, o.suite, "--", "-provider=skeleton", "-kubeconfig="+os.Getenv("KUBECONFIG"), "-storage.testdriver="+o.driver,
		"-progress-report-url="+progress, "-disable-log-dump", "-e2e-output-dir="+o.out)
}

func read(path string) ([]types.Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("no report: %w; %s has the reason", err, strings.Replace(path, "ginkgo.json", "log", 1))
	}
	var reports []types.Report
	if err := json.Unmarshal(b, &reports); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return reports, nil
}
