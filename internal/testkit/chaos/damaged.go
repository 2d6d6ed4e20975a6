package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// damagedMax is how many files of a node are damaged at once.
const damagedMax = 4

// damageFiles truncates or deletes some images of a node that does not run, as a person, a program
// or the repair of a filesystem may do. The node has to notice that and to get a full copy, and it
// must not serve any of it before.
func (r *rig) damageFiles(f Fault) error {
	if r.pair.PID(f.Node) != 0 {
		return fmt.Errorf("files of node %s are to be damaged while it runs", harness.Names[f.Node])
	}
	rng := rand.New(rand.NewPCG(uint64(f.N), 1))
	names := files(r.pair.State[f.Node], errorsInLUNs)
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:min(len(names), 1+rng.IntN(damagedMax))] {
		st, err := os.Stat(name)
		if err != nil {
			return err
		}
		if rng.IntN(2) == 0 {
			err = os.Remove(name)
		} else {
			err = os.Truncate(name, rng.Int64N(st.Size()))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(r.w, "  %s of node %s was damaged\n", filepath.Base(name), harness.Names[f.Node])
		r.rec.damaged.Add(1)
	}
	return r.restart(f.Node)
}
