package nodesim

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

var (
	flagSeed   = flag.Uint64("nodesim.seed", 0, "play this one seed and, with -v, print what happens")
	flagShape  = flag.String("nodesim.shape", "", "the kind of history, in place of the one that a seed draws")
	flagSeeds  = flag.Int("nodesim.seeds", 0, "play so many fresh seeds")
	flagBase   = flag.Uint64("nodesim.base", 0, "draw the fresh seeds from this one; 0: from chance")
	flagFirst  = flag.Bool("nodesim.first", false, "stop at the first violation")
	flagTry    = flag.String("nodesim.try", "", "seeds to play before the fresh ones, separated by commas")
	flagSkip   = flag.String("nodesim.skip", "", "seeds not to play, separated by commas")
	flagSpread = flag.Bool("nodesim.members", false, "give the nodes' LUNs several places, between which their extents move")
	flagOut    = flag.String("nodesim.out", "", "where results of fresh seeds go")
)

// memory is a folder for stores, in memory where there is such a filesystem.
func memory(t *testing.T) string {
	const shm = "/dev/shm"
	if _, err := os.Stat(shm); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "nodesim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// fixed is how many histories of each kind every run of the tests plays, with seeds that stay the
// same.
var fixed = map[string]int{"faults": 5, "fencing": 2, "slow reads": 1, "slow pings": 2, "busy disks": 1, "disk fails": 1, "stops": 1, "held stops": 2, "strays": 1, "full disks": 2}

// TestFixedSeeds plays histories whose seeds stay the same.
func TestFixedSeeds(t *testing.T) {
	if *flagSeed != 0 || *flagSeeds != 0 {
		t.Skip("other seeds are asked for")
	}
	dir := memory(t)
	report := newReport(0)
	began := time.Now()
	play := func(s *shape, seed uint64, members bool) {
		r := Play(t, Config{Seed: seed, Dir: dir, Shape: s.name, Members: members})
		report.add(&r)
		for _, v := range r.Violations {
			t.Errorf("%s, seed %d: %s\nreplay: go test ./dataplane/nodesim -run TestOneSeed -v -nodesim.seed %d -nodesim.shape %q -nodesim.members=%v", s.name, r.Seed, v, r.Seed, s.name, members)
		}
	}
	for i := range shapes {
		for n := range fixed[shapes[i].name] {
			play(&shapes[i], uint64(n+1), false)
		}
		play(&shapes[i], 100, true)
	}
	report.end(time.Since(began))
	var text strings.Builder
	report.print(&text)
	t.Log("\n" + text.String())
	if report.Branches["an extent moved"] == 0 {
		t.Error("no extent has moved")
	}
	for _, s := range shapes {
		if report.Shapes[s.name] == 0 {
			t.Errorf("no fixed seed plays %q", s.name)
		}
	}
}

// TestOneSeed replays a seed: go test ./dataplane/nodesim -run TestOneSeed -v -nodesim.seed 42.
func TestOneSeed(t *testing.T) {
	if *flagSeed == 0 {
		t.Skip("-nodesim.seed names none")
	}
	var out io.Writer
	if testing.Verbose() {
		out = os.Stdout
	}
	r := Play(t, Config{Seed: *flagSeed, Dir: memory(t), Trace: out, Shape: *flagShape, Members: *flagSpread})
	t.Logf("%+v", r)
	for _, v := range r.Violations {
		t.Error(v)
	}
}

func numbers(t *testing.T, list string) (out []uint64) {
	t.Helper()
	for f := range strings.SplitSeq(list, ",") {
		if f == "" {
			continue
		}
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			t.Fatalf("a list of seeds: %v", err)
		}
		out = append(out, n)
	}
	return out
}

// TestFreshSeeds plays histories that no run has played: make sim-node SEEDS=200.
func TestFreshSeeds(t *testing.T) {
	if *flagSeeds == 0 {
		t.Skip("-nodesim.seeds asks for none")
	}
	base := *flagBase
	if base == 0 {
		base = rand.Uint64()
	}
	try, skip := numbers(t, *flagTry), numbers(t, *flagSkip)
	rng := rand.New(rand.NewPCG(base, 1))
	dir := memory(t)
	report := newReport(base)
	began := time.Now()
	write := func() {
		report.end(time.Since(began))
		if *flagOut != "" {
			if err := jsonfile.Write(*flagOut, report); err != nil {
				t.Error(err)
			}
		}
	}
	onStuck = func(seed uint64, text string) { // the process ends
		report.add(&Result{Seed: seed, Violations: []string{text}})
		write()
	}
	said := began
	for n := range *flagSeeds + len(try) {
		var seed uint64
		if n < len(try) {
			seed = try[n]
		} else {
			seed = rng.Uint64()
		}
		if slices.Contains(skip, seed) {
			continue
		}
		r := Play(t, Config{Seed: seed, Dir: dir, Shape: *flagShape, Members: *flagSpread})
		report.add(&r)
		for _, v := range r.Violations {
			fmt.Printf("seed %d (%s): %s\n", seed, r.Shape, v)
		}
		if len(r.Violations) > 0 {
			t.Errorf("replay, several times: go test ./dataplane/nodesim -run TestOneSeed -v -nodesim.seed %d -nodesim.shape %q -nodesim.members=%v", seed, r.Shape, *flagSpread)
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			fmt.Printf("%d of %d histories, %d violations\n", report.Seeds, *flagSeeds, report.Violations)
		}
		if *flagFirst && len(r.Violations) > 0 {
			break
		}
	}
	write()
	report.print(os.Stdout)
}
