package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// unsupported is why there are no namespaces here.
var unsupported error

// target is the program under test.
var target string

// The tests run isolated where that is possible.
func TestMain(m *testing.M) {
	if !netns.Isolated() {
		if unsupported = Supported(); unsupported == nil {
			code, err := netns.Isolate(context.Background())
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			os.Exit(code)
		}
	}
	dir, err := os.MkdirTemp("", "gemel-chaos-test-")
	if err == nil && unsupported == nil {
		target, err = harness.Build(context.Background(), dir, "./cmd/gemel-target")
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func needNamespaces(t *testing.T) {
	t.Helper()
	if unsupported != nil {
		t.Skipf("no namespaces for a pair here: %v", unsupported)
	}
}

// play runs a pair; what it says is printed if the test fails. It is interrupted after a time once
// there is progress, if one is given.
func play(t *testing.T, c Config, interrupt ...time.Duration) (*Report, error) {
	t.Helper()
	needNamespaces(t)
	var out bytes.Buffer
	c.Binary, c.Out, c.Verbose, c.Logs = target, &out, true, t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for _, d := range interrupt {
		c.Out = &firstEpisode{Writer: &out, then: func() { time.AfterFunc(d, cancel) }}
	}
	rep, err := Run(ctx, c)
	if rep == nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	rep.Print(&out)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
			for _, n := range harness.Names {
				b, _ := os.ReadFile(filepath.Join(c.Logs, "node-"+n+".log"))
				t.Logf("node %s:\n%s", n, b)
			}
		}
	})
	return rep, err
}

// firstEpisode does something when the first episode is announced.
type firstEpisode struct {
	io.Writer
	then func()
	seen bool
}

func (f *firstEpisode) Write(p []byte) (int, error) { // one at a time, by lines
	if !f.seen && bytes.Contains(p, []byte(" episode 1:")) {
		f.seen = true
		f.then()
	}
	return f.Writer.Write(p)
}

// A short run of fixed faults, as `make chaos` does longer ones: the first episodes of this seed
// have both nodes killed, one killed in a pair that is whole, a partition, disks that stop, that
// give errors and that are replaced, files and blocks that are damaged, an overload, crowds that
// want memory, half-sent writes, hosts that fence each other, an arbiter that is away, a snapshot
// and a transfer. The seed is of the kinds that there were when it was chosen.
func TestChaosWithFixedFaults(t *testing.T) {
	kinds := slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return k == Drain || k == Crash })
	rep, err := play(t, Config{Seed: 3502869, Episodes: 15, Kinds: kinds})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Kills == 0 || rep.Partitions == 0 || len(rep.Faults) != 19 || rep.Judged < 1000 || rep.Images < lunCount || rep.Compared == 0 || rep.Flood == 0 || rep.Fenced == 0 ||
		rep.Left == 0 || rep.Replaced == 0 || rep.Damaged == 0 || rep.HealedBlocks == 0 || rep.CrowdCommands == 0 || rep.Resident == 0 || rep.CommandMemory == 0 {
		t.Errorf("that was no trial: %+v", rep)
	}
	t.Logf("%d operations, %d kills, %d partitions, faults %v; longest operation %.0f ms, after a single kill %.0f ms; the machine's lag %.0f ms, its disk's %.0f ms",
		rep.Operations, rep.Kills, rep.Partitions, rep.Faults, rep.PauseMax, rep.PauseAfterKill, rep.SchedulingLag, rep.DiskLag)
}

// Nodes that are drained and killed own their LUNs again at the end.
func TestLUNsAreAtHomeAfterDrainsAndKills(t *testing.T) {
	rep, err := play(t, Config{Seed: 3, Episodes: 4, Kinds: []Kind{Drain, Kill}})
	if err != nil || rep.Faults[Drain] == 0 || rep.Kills == 0 || rep.Moves == 0 {
		t.Fatalf("%v, faults %v, %d moves", err, rep.Faults, rep.Moves)
	}
}

// Extents move between places of each node's volume all the time, under faults that end processes,
// links and disks.
func TestChaosWithMembers(t *testing.T) {
	rep, err := play(t, Config{Seed: 21, Episodes: 6, Members: true, Kinds: []Kind{Kill, KillBoth, PartitionLink, SlowDisk, Snapshot, Transfer}})
	if err != nil {
		t.Fatal(err)
	}
	if rep.MemberDrains < 10 || rep.Kills == 0 || rep.Judged < 1000 || rep.Images < lunCount {
		t.Errorf("that was no trial: %+v", rep)
	}
	t.Logf("%d operations, %d drains of members, faults %v; longest operation %.0f ms", rep.Operations, rep.MemberDrains, rep.Faults, rep.PauseMax)
}

// Processes that crash beneath their supervisors are started again.
func TestCrashesBeneathSupervisors(t *testing.T) {
	rep, err := play(t, Config{Seed: 7, Episodes: 3, Kinds: []Kind{Crash}})
	if err != nil || rep.Kills != 3 {
		t.Fatalf("%v, %d kills", err, rep.Kills)
	}
	t.Logf("longest operation by episode %v", rep.PauseByEpisode)
}

// A byte that changes on one node behind its back is found.
func TestComparisonBites(t *testing.T) {
	var where string
	rep, err := play(t, Config{Seed: 1, Duration: time.Second, Kinds: []Kind{Transfer}, Tamper: func(state [2]string) (err error) {
		where, err = compare.Corrupt(state[1])
		return err
	}})
	if !errors.Is(err, errVerdict) || rep.Identical || len(rep.Differ) != 1 || rep.Passed {
		t.Fatalf("%s was changed, and the verdict is: %v %v", where, rep.Differ, err)
	}
}

// A write that is gone from both nodes alike is found.
func TestLossOnBothNodesIsFound(t *testing.T) {
	rep, err := play(t, Config{Seed: 2, Duration: time.Second, Kinds: []Kind{Transfer}, Tamper: func(state [2]string) error {
		for _, s := range state {
			images, err := filepath.Glob(filepath.Join(s, "volumes/default/luns/*.img"))
			if err != nil {
				return err
			}
			for _, name := range images {
				f, err := os.OpenFile(name, os.O_RDWR, 0)
				if err == nil {
					_, err = f.WriteAt(make([]byte, 512), 0)
					err = errors.Join(err, f.Close())
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}})
	if !errors.Is(err, errVerdict) || !rep.Identical || rep.LostWrites != 2*lunCount || !strings.Contains(err.Error(), "lost") {
		t.Fatalf("block 0 of every LUN was erased on both nodes: %d found, %v", rep.LostWrites, err)
	}
}

// A run that is interrupted, here in the midst of a partition, ends, judges what it has recorded,
// and says so. It is no success.
func TestInterruptedRunIsReported(t *testing.T) {
	rep, err := play(t, Config{Seed: 3, Duration: time.Hour, Kinds: []Kind{PartitionLink}}, 4*time.Second)
	if !errors.Is(err, ErrInterrupted) || errors.Is(err, errVerdict) {
		t.Error(err)
	}
	if rep.Passed || !strings.HasPrefix(rep.Interrupted, "interrupted after ") || !strings.Contains(rep.Error, "interrupted after ") {
		t.Errorf("it does not say so: %+v", rep)
	}
	if rep.Operations == 0 || rep.Windows == 0 || rep.Judged < 100 || rep.AppErrors > 0 || rep.Partitions == 0 {
		t.Errorf("what was recorded is not judged: %+v", rep)
	}
}

func TestVerdictNamesWhatIsWrong(t *testing.T) {
	good := Report{Operations: 1, Judged: 1, Identical: true}
	if err := good.verdict(); err != nil {
		t.Fatal(err)
	}
	cut := Report{Operations: 1, Judged: 1, Interrupted: "interrupted after 3.0 s"} // nothing was compared
	if err := cut.verdict(); err != nil {
		t.Error(err)
	}
	if cut.Differ = []string{"x"}; cut.verdict() == nil {
		t.Error("a difference that was found counts")
	}
	for want, change := range map[string]func(*Report){
		"anomalies":       func(r *Report) { r.Anomalies = 1 },
		"wrong bytes":     func(r *Report) { r.WrongBytes = 1 },
		"none was healed": func(r *Report) { r.DamagedBlocks, r.Faults = 1, map[Kind]int{DamageStopped: 1} },
		"writes lost":     func(r *Report) { r.LostWrites = 1 },
		"applications":    func(r *Report) { r.AppErrors = 1 },
		"copies differ":   func(r *Report) { r.Identical = false },
		"nothing was":     func(r *Report) { r.Judged = 0 },
		"after a kill":    func(r *Report) { r.PauseAfterKill = 1e4 },
		"an operation to": func(r *Report) { r.PauseMax = 1e5 },
	} {
		r := good
		change(&r)
		if err := r.verdict(); !errors.Is(err, errVerdict) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
