package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

func it(state types.SpecState, name, message string, took time.Duration) types.SpecReport {
	return types.SpecReport{LeafNodeType: types.NodeTypeIt, ContainerHierarchyTexts: []string{"[sig-storage] External Storage [Driver: csi.gemel.storage]",
		"[Testpattern: Dynamic PV (default fs)]"}, LeafNodeText: name, State: state, RunTime: took, Failure: types.Failure{Message: message}}
}

func summarize(suites ...types.Report) *report {
	r := newReport()
	r.addPart(together, suites, false)
	r.finish()
	return r
}

func TestAReportIsCounted(t *testing.T) {
	foreign := it(types.SpecStateSkipped, "a test of another driver", "", 0)
	foreign.ContainerHierarchyTexts = []string{"[sig-storage] In-tree Volumes"}
	setup := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStatePassed}
	ntfs := `Driver csi.gemel.storage doesn't support ntfs -- skipping`
	suite := types.Report{RunTime: 90 * time.Second, SpecReports: types.SpecReports{setup, foreign,
		it(types.SpecStatePassed, "fast", "", time.Second), it(types.SpecStatePassed, "slow", "", time.Minute),
		it(types.SpecStateSkipped, "of ntfs", ntfs, 0), it(types.SpecStateSkipped, "of ntfs too", ntfs, 0),
		it(types.SpecStateSkipped, "should provision storage with any volume data source", "", 0),
		it(types.SpecStateSkipped, "stops the kubelet [Disruptive]", "", 0)}}
	r := summarize(suite)
	if r.Run != 2 || r.Passed != 2 || r.Failed != 0 || r.Skipped != 2 || r.Skips[ntfs] != 2 || len(r.LeftOut) != 1 || r.Slowest[0].Name != "[Dynamic PV (default fs)] slow" {
		t.Errorf("%+v", r)
	}
	if !r.ok() {
		t.Error("a run without failures is not well")
	}
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{ntfs, "filesystems are XFS and ext4", "hello-populator", "2 run, 2 passed, 0 failed, 2 skipped in 90 s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary lacks %q:\n%s", want, &out)
		}
	}
}

// Both parts see all tests, and start theirs.
func TestPartsAddUp(t *testing.T) {
	calm, loud := it(types.SpecStatePassed, "calm", "", time.Second), it(types.SpecStatePassed, "loud [Disruptive]", "", time.Second)
	r := newReport()
	r.addPart(together, []types.Report{{SpecReports: types.SpecReports{calm, it(types.SpecStateSkipped, "loud [Disruptive]", "", 0)}}}, false)
	r.addPart(disruptive, []types.Report{{SpecReports: types.SpecReports{it(types.SpecStateSkipped, "calm", "", 0), loud}}}, false)
	r.finish()
	if !r.ok() || r.Run != 2 || len(r.LeftOut) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestWhatFailsARun(t *testing.T) {
	passed := it(types.SpecStatePassed, "passes", "", time.Second)
	for name, suite := range map[string]types.Report{
		"a failure":               {SpecReports: types.SpecReports{passed, it(types.SpecStateFailed, "fails", "why", 0)}},
		"a panic":                 {SpecReports: types.SpecReports{passed, it(types.SpecStatePanicked, "panics", "why", 0)}},
		"a timeout":               {SpecReports: types.SpecReports{passed, it(types.SpecStateTimedout, "hangs", "why", 0)}},
		"an unknown skip":         {SpecReports: types.SpecReports{passed, it(types.SpecStateSkipped, "skips", "an unknown reason", 0)}},
		"nothing that ran":        {SpecReports: types.SpecReports{it(types.SpecStateSkipped, "skips", "", 0)}},
		"a setup that failed":     {SpecReports: types.SpecReports{passed, {LeafNodeType: types.NodeTypeBeforeSuite, State: types.SpecStateFailed}}},
		"a suite that was cut":    {SpecReports: types.SpecReports{passed}, SpecialSuiteFailureReasons: []string{"Suite Timeout Elapsed"}},
		"an interrupted test":     {SpecReports: types.SpecReports{passed, it(types.SpecStateInterrupted, "is cut", "", 0)}},
		"no test of this driver":  {},
		"an aborted test":         {SpecReports: types.SpecReports{passed, it(types.SpecStateAborted, "gives up", "", 0)}},
		"a skip for a capability": {SpecReports: types.SpecReports{passed, it(types.SpecStateSkipped, "skips", `Driver "csi.gemel.storage" does not support snapshots - skipping`, 0)}},
	} {
		if r := summarize(suite); r.ok() {
			t.Errorf("%s: the run is well: %+v", name, r)
		}
	}
}

func TestAReportIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	r := summarize(types.Report{SpecReports: types.SpecReports{it(types.SpecStateFailed, "fails", "why", time.Second)}})
	if err := jsonfile.Write(path, r); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(b, &back); err != nil || back.Failed != 1 || back.Failures[0].Message != "why" {
		t.Errorf("%v: %s", err, b)
	}
}

func TestProgressIsShown(t *testing.T) {
	const printed = `SSSSS
------------------------------
• [0.475 seconds]
External Storage [Driver: csi.gemel.storage] [Testpattern: Dynamic PV (filesystem volmode)] volumeLimits should verify that all csinodes have volume limits
k8s.io/kubernetes@v1.36.3/test/e2e/storage/testsuites/volumelimits.go:296

  Timeline >>
  STEP: • [1.000 seconds] is not an outcome inside a line
  << Timeline
------------------------------
S [SKIPPED] [0.002 seconds]
External Storage [Driver: csi.gemel.storage] [Testpattern: Dynamic PV (ntfs)] volumes [BeforeEach] should store data
------------------------------
• [FAILED] [312.010 seconds]
External Storage [Driver: csi.gemel.storage] [Testpattern: Dynamic PV (xfs)] volumes [It] should store data
------------------------------
External Storage [Driver: csi.gemel.storage] [Testpattern: Dynamic PV (xfs)] one at a time
k8s.io/kubernetes@v1.36.3/test/e2e/storage/testsuites/disruptive.go:1
  STEP: stopping the kubelet
• [35.083 seconds]
------------------------------
SSSSS
`
	for _, piece := range []int{1, 7, len(printed)} {
		var out bytes.Buffer
		p := &progress{out: &out, start: time.Now()}
		for rest := printed; rest != ""; {
			n := min(piece, len(rest))
			if _, err := p.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.HasSuffix(lines[2], "  3  passed (1 failed so far)  [Dynamic PV (xfs)] one at a time (35.083 s)") ||
			!strings.HasSuffix(lines[0], "  1  passed  [Dynamic PV (filesystem volmode)] volumeLimits should verify that all csinodes have volume limits (0.475 s)") ||
			!strings.HasSuffix(lines[1], "  2  FAILED (1 failed so far)  [Dynamic PV (xfs)] volumes [It] should store data (312.010 s)") {
			t.Errorf("%q", lines)
		}
	}
}

func TestTheSuiteIsTold(t *testing.T) {
	o := options{suite: "/s/e2e.test", driver: "/d.yaml", out: "/o", focus: "a|b", skip: "c", procs: 2, timeout: time.Hour}
	args := o.args(together)
	for _, want := range []string{"--focus=External Storage.*(a|b)", "--skip=c", "--label-filter=!Disruptive", "--procs=2", "-storage.testdriver=/d.yaml"} {
		if !slices.Contains(args, want) {
			t.Errorf("%q is not in %q", want, args)
		}
	}
	if args := o.args(disruptive); !slices.Contains(args, "--procs=1") || !slices.Contains(args, "--label-filter=Disruptive") {
		t.Errorf("tests that stop kubelets: %q", args)
	}
	o.topology = "/t.yaml"
	if args := o.args(topology); !slices.Contains(args, "--focus=External Storage.*topology should") || !slices.Contains(args, "-storage.testdriver=/t.yaml") {
		t.Errorf("tests of topology: %q", args)
	}
	o.groups = "/g.yaml"
	if args := o.args(groups); !slices.Contains(args, "--focus=External Storage.*volumegroupsnapshottable") || !slices.Contains(args, "-storage.testdriver=/g.yaml") {
		t.Errorf("tests of group snapshots: %q", args)
	}
	for _, skip := range []string{"--skip=topology should", "--skip=volumegroupsnapshottable"} {
		if !slices.Contains(args, skip) {
			t.Errorf("%q is not in %q: tests are run with the declaration of others", skip, args)
		}
	}
	if at := slices.Index(args, "--"); at < 0 || args[at-1] != "/s/e2e.test" {
		t.Errorf("flags of the suite do not follow it: %q", args)
	}
}

// A suite that dies before its report must not be taken for one that passed, nor an old report for
// its.
func TestASuiteWithoutReport(t *testing.T) {
	out := t.TempDir()
	o := options{ginkgo: "false", suite: "e2e.test", driver: "testdriver.yaml", out: out, name: "suite", procs: 1, timeout: time.Minute}
	old := filepath.Join(out, o.file(together, "json"))
	if err := os.WriteFile(old, []byte(`[]`), 0o644); err != nil {
		t.Fatal(err)
	}
	ok, err := run(t.Context(), o)
	if ok || err == nil {
		t.Errorf("%v, %v: a run without report is no run", ok, err)
	}
}

// The same words can be right from one test and a lost capability from another.
func TestASkipIsJudgedWithItsTest(t *testing.T) {
	const reason = `Driver "csi.gemel.storage" does not support snapshots - skipping`
	skip := func(pattern, name string) types.SpecReport {
		s := it(types.SpecStateSkipped, name, reason, 0)
		s.ContainerHierarchyTexts[1] = "[Testpattern: Dynamic PV (" + pattern + ")] multiVolume [Slow]"
		return s
	}
	const name = "should concurrently access the volume and restored snapshot from pods on the same node [LinuxOnly]"
	passed := it(types.SpecStatePassed, "fast", "", time.Second)
	right := summarize(types.Report{SpecReports: types.SpecReports{passed, skip("filesystem volmode", name)}})
	var out bytes.Buffer
	if right.print(&out); !right.ok() || !strings.Contains(out.String(), "no kind of snapshot") {
		t.Errorf("not understood: %v\n%s", right.NotUnderstood, &out)
	}
	for _, s := range []types.SpecReport{skip("ext4", name), skip("filesystem volmode", "should do something else")} {
		if wrong := summarize(types.Report{SpecReports: types.SpecReports{passed, s}}); wrong.ok() {
			t.Errorf("a lost capability is taken for right: %s", s.FullText())
		}
	}
}

// What volumes for one worker lack is understood only where they are declared so.
func TestSkipsOfVolumesForOneWorker(t *testing.T) {
	for _, reason := range []string{"Driver csi.gemel.storage doesn't support RWX -- skipping", `Driver "csi.gemel.storage" does not support ROX access mode - skipping`} {
		if _, ok := skipped("a test", reason, nil); ok {
			t.Errorf("a lost capability is taken for right: %s", reason)
		}
		if why, ok := skipped("a test", reason, oneWorker); !ok || why == "" {
			t.Errorf("not understood: %s", reason)
		}
	}
}

func TestChosenParts(t *testing.T) {
	for list, want := range map[string][]part{"": parts, "together": {together}, "groups,together": {together, groups}} {
		if got, err := choose(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	if got, err := choose("together,none"); err == nil || !strings.Contains(err.Error(), "together,disruptive,topology,groups") {
		t.Errorf("%v, %v", got, err)
	}
}
