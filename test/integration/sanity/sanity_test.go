package sanity

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/operator"
)

// accessVariable selects the access type of the volumes for a run of the suite in a process of its
// own.
const accessVariable = "GEMEL_SANITY_ACCESS"

// allowedSkips are the suite's own skips, by why it gives them: services and capabilities of the
// specification that the driver does not have. A skip for any other reason is a failure.
var allowedSkips = regexp.MustCompile(`^(SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported` + // snapshots are usable from everywhere
	`|testnodevolumeattachlimit not enabled)$`) // the limit is the scheduler's, see NodeGetInfo

// noGroups is the skip of the direct backend: only the operator takes group snapshots.
const noGroups = "GroupControllerService not supported"

// TestCSISanity runs the conformance suite of the CSI specification with mounted volumes.
func TestCSISanity(t *testing.T) {
	e := start(t, 8*time.Minute)
	c := sanity.NewTestConfig()
	c.Address = e.plugin.Endpoint()
	c.TargetPath = filepath.Join(e.dir, "target")
	c.StagingPath = filepath.Join(e.dir, "staging")
	c.TestVolumeSize = 320 << 20
	c.TestVolumeExpandSize = 400 << 20
	c.TestVolumeMutableParameters = map[string]string{"writeCache": "write-through", "preferredNode": "b"}
	c.TestVolumeAccessType = "mount"
	if a := os.Getenv(accessVariable); a != "" {
		c.TestVolumeAccessType = a
	}
	if os.Getenv(backendVariable) == "objects" {
		c.TestVolumeParameters = map[string]string{"cluster": operator.Cluster}
	}
	sc := sanity.GinkgoTest(&c)
	defer sc.Finalize()
	var report types.Report
	ginkgo.ReportAfterSuite("keep the report", func(r types.Report) { report = r })
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "CSI sanity, "+c.TestVolumeAccessType)
	passed := 0
	for _, s := range report.SpecReports {
		switch s.State {
		case types.SpecStatePassed:
			passed++
		case types.SpecStateSkipped:
			groups := s.Failure.Message == noGroups && os.Getenv(backendVariable) == ""
			if !groups && !allowedSkips.MatchString(s.Failure.Message) {
				t.Errorf("skipped: %s: %s", s.FullText(), s.Failure.Message)
			}
			t.Logf("skipped: %s: %s", s.FullText(), s.Failure.Message)
		}
	}
	if e.pair2 != nil {
		for _, p := range []*harness.Pair{e.pair, e.pair2} {
			s, err := p.Status(e.ctx, 0)
			e.ok(err)
			t.Logf("pair %s: %d changes of its metadata", s.Pair, s.LogIndex)
			if s.LogIndex < 20 { // what the nodes do by themselves when they start is less
				t.Errorf("pair %s had no volumes", s.Pair)
			}
		}
	}
	t.Logf("%s: %d specs passed", c.TestVolumeAccessType, passed)
	if passed < 80 {
		t.Errorf("only %d specs ran and passed", passed)
	}
}

// TestCSISanityBlock runs it with raw block volumes, in a process of its own: Ginkgo runs a suite
// only once per process.
func TestCSISanityBlock(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it binds loop devices")
	}
	again(t, accessVariable+"=block", `block: \d+ specs passed`)
}

// again runs the suite in a process of its own.
func again(t *testing.T, env, want string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCSISanity$", "-test.v", "-test.timeout=8m")
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !regexp.MustCompile(want).Match(out) {
		t.Fatalf("the suite did not run with %s:\n%s", env, out)
	}
}
