// Command storagesuite runs Kubernetes' external storage tests against Gemel on a cluster that has
// it, shows its progress and writes the results. hack/kind/storage-suite.sh builds what it needs
// and starts it. It exits with 1 when a test failed, or skipped itself for a reason that is not in
// the list of filter.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

// external is the name that all tests of a -storage.testdriver have.
const external = "External Storage"

type options struct {
	ginkgo, suite, driver, topology, groups, out, name, parts, focus, skip string

	procs   int
	timeout time.Duration

	oneWorker bool
}

func main() {
	var o options
	flag.StringVar(&o.ginkgo, "ginkgo", "ginkgo", "the ginkgo command, of the version that the suite is built with")
	flag.StringVar(&o.suite, "suite", "e2e.test", "Kubernetes' e2e.test")
	flag.StringVar(&o.driver, "testdriver", "hack/storagesuite/testdriver.yaml", "file that declares the driver to the suite")
	flag.StringVar(&o.topology, "topology-testdriver", "hack/storagesuite/testdriver-topology.yaml", "file that declares it to the tests of topology")
	flag.StringVar(&o.groups, "groups-testdriver", "hack/storagesuite/testdriver-groups.yaml", "file that declares it to the tests of group snapshots")
	flag.BoolVar(&o.oneWorker, "one-worker", false, "volumes are for one worker at a time: tests that need several may skip themselves")
	flag.StringVar(&o.out, "out", "out", "folder of the results, logs and ginkgo's own reports")
	flag.StringVar(&o.name, "name", "storage-suite", "how the files of the results begin")
	flag.StringVar(&o.parts, "parts", "", "only these parts, with commas between them: "+partNames(parts))
	flag.StringVar(&o.focus, "focus", "", "only tests whose name matches this regular expression")
	flag.StringVar(&o.skip, "skip", "", "no tests whose name matches this regular expression")
	flag.IntVar(&o.procs, "procs", 3, "tests at a time")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Hour, "limit of the whole run")
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
	for _, path := range []*string{&o.suite, &o.driver, &o.topology, &o.groups, &o.out} {
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
	chosen, err := choose(o.parts)
	if err != nil {
		return false, err
	}
	for _, p := range chosen {
		if err := os.Remove(filepath.Join(o.out, o.file(p, "json"))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err // an old report must not be read as this run's
		}
	}
	n, err := serveNodes(o.out, onNode)
	if err != nil {
		return false, err
	}
	defer n.Close()
	r, deadline := newReport(), time.Now().Add(o.timeout)
	if o.oneWorker {
		r.more = oneWorker
	}
	p := &progress{out: os.Stdout, start: time.Now()}
	for _, part := range chosen {
		if part.tests() != "" && o.focus != "" && !strings.Contains(o.focus, string(part)) {
			continue // none of its tests was chosen
		}
		o.timeout = max(time.Until(deadline), time.Second) // ginkgo takes 0 for no limit
		ended := o.start(ctx, part, p, n.environment())
		suites, err := read(filepath.Join(o.out, o.file(part, "json")))
		if err != nil {
			return false, errors.Join(ended, err)
		}
		failed := r.Failed
		r.addPart(part, suites, o.focus != "" || o.skip != "")
		if ended != nil && r.Failed == failed {
			r.fail(failure{Message: "ginkgo: " + ended.Error()}) // it broke outside a test
		}
	}
	r.finish()
	r.print(os.Stdout)
	return r.ok(), jsonfile.Write(filepath.Join(o.out, o.name+".json"), r)
}

// part of the tests; each is a run of ginkgo.
type part string

const (
	together   part = "together"   // several at a time
	disruptive part = "disruptive" // those that stop kubelets, one after the other: they would fail their neighbours
	topology   part = "topology"   // those of topology: with the capability, the suite would leave out volumes that bind at once
	groups     part = "groups"     // those of group snapshots: they want volumes that are smaller than XFS can be
)

var parts = []part{together, disruptive, topology, groups}

// tests of a part with a declaration of its own have this in their names, and no other has; empty
// for the other parts.
func (p part) tests() string {
	switch p {
	case topology:
		return `topology should`
	case groups:
		return `volumegroupsnapshottable`
	}
	return ""
}

func partNames(list []part) string {
	var names []string
	for _, p := range list {
		names = append(names, string(p))
	}
	return strings.Join(names, ",")
}

// choose returns the parts of a list, in the order in which they run; all, if it is empty.
func choose(list string) (out []part, err error) {
	if list == "" {
		return parts, nil
	}
	names := strings.Split(list, ",")
	for _, n := range names {
		if !slices.Contains(parts, part(n)) {
			return nil, fmt.Errorf("-parts: %q is none of %s", n, partNames(parts))
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(names, string(p)) }), nil
}

// file that ginkgo, or this command, writes of a part.
func (o options) file(p part, extension string) string {
	return o.name + "." + string(p) + "." + extension
}

// has reports whether a test belongs to this part.
func (p part) has(name string) bool {
	for _, own := range parts {
		if s := own.tests(); s != "" && strings.Contains(name, s) {
			return p == own
		}
	}
	return p.tests() == "" && strings.Contains(name, "[Disruptive]") == (p == disruptive)
}

// start runs a part to its end, and keeps its output in a log.
func (o options) start(ctx context.Context, p part, shown *progress, environment []string) error {
	log, err := os.Create(filepath.Join(o.out, o.file(p, "log")))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, o.ginkgo, o.args(p)...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, shown), log
	cmd.Env = append(os.Environ(), environment...)
	// Asked to end, ginkgo lets the tests that run clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Minute
	return cmd.Run()
}

func (o options) args(p part) []string {
	focus, procs, driver := external, o.procs, o.driver
	switch {
	case p == topology:
		focus, driver = focus+".*"+p.tests(), o.topology
	case p == groups:
		focus, driver = focus+".*"+p.tests(), o.groups
	case o.focus != "":
		focus += ".*(" + o.focus + ")"
	}
	if p == disruptive {
		procs = 1
	}
	args := []string{"run", "-v", "--no-color", fmt.Sprintf("--procs=%d", procs), "--timeout=" + o.timeout.Round(time.Second).String(),
		"--output-dir=" + o.out, "--json-report=" + o.file(p, "json"), "--focus=" + focus}
	if p == disruptive {
		args = append(args, "--label-filter=Disruptive")
	} else {
		args = append(args, "--label-filter=!Disruptive")
	}
	for _, own := range parts {
		if s := own.tests(); s != "" && own != p {
			args = append(args, "--skip="+s)
		}
	}
	for _, r := range leftOut {
		args = append(args, "--skip="+r.pattern.String())
	}
	if o.skip != "" {
		args = append(args, "--skip="+o.skip)
	}
	return append(args, o.suite, "--", "-provider=skeleton", "-kubeconfig="+os.Getenv("KUBECONFIG"), "-storage.testdriver="+driver,
		"-disable-log-dump", "-e2e-output-dir="+o.out)
}

func read(path string) ([]types.Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("no report: %w; %s has the reason", err, strings.TrimSuffix(path, "json")+"log")
	}
	var reports []types.Report
	if err := json.Unmarshal(b, &reports); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return reports, nil
}

// onNode runs a command on a node of kind. They are known by their addresses.
func onNode(ctx context.Context, address, command string, stdout, stderr io.Writer) (int, error) {
	list, err := exec.CommandContext(ctx, "kubectl", "get", "nodes", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}`).Output()
	if err != nil {
		return 0, fmt.Errorf("nodes: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if len(f) < 2 || !slices.Contains(f[1:], address) {
			continue
		}
		cmd := exec.CommandContext(ctx, "docker", "exec", f[0], "bash", "-c", command)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode(), nil
		}
		return 0, err
	}
	return 0, fmt.Errorf("no node has the address %s", address)
}
