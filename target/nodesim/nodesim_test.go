package nodesim

import (
	"flag"
	"io"
	"os"
	"testing"
)

var (
	flagSeed  = flag.Uint64("nodesim.seed", 0, "play this one seed and print it")
	flagSeeds = flag.Int("nodesim.seeds", 0, "play so many fresh seeds")
	flagShape = flag.String("nodesim.shape", "", "the kind of history, in place of what a seed draws")
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

func TestOneSeed(t *testing.T) {
	if *flagSeed == 0 {
		t.Skip("-nodesim.seed names one to play")
	}
	var out io.Writer
	if testing.Verbose() {
		out = os.Stdout
	}
	r := Play(t, Config{Seed: *flagSeed, Dir: memory(t), Trace: out, Shape: *flagShape})
	t.Logf("%+v", r)
	for _, v := range r.Violations {
		t.Error(v)
	}
}

func TestFixedSeeds(t *testing.T) {
	dir := memory(t)
	n := 10
	if *flagSeeds > 0 {
		n = *flagSeeds
	}
	for seed := range uint64(n) {
		r := Play(t, Config{Seed: seed + 1, Dir: dir, Shape: *flagShape})
		t.Logf("seed %d %s: %d operations, %d violations, fake %v, real %v, faults %v", r.Seed, r.Shape, r.Operations, len(r.Violations), r.Fake, r.Real, r.Faults)
		for _, v := range r.Violations {
			t.Errorf("seed %d: %s", r.Seed, v)
		}
	}
}
