// Package groups cuts group snapshots through two pairs of real processes, while hosts write, nodes
// are killed, LUNs move and coordinators die.
package groups

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/internal/jsonfile"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var (
	rounds = flag.Int("groups.rounds", 6, "group snapshots that are taken while things fail")
	freeze = flag.Int("groups.freeze", 3, "group snapshots of each size whose hold is measured")
	seed   = flag.Uint64("groups.seed", 1, "of what fails, and when")
	sim    = flag.String("groups.sim", "", "report of the simulator, whose histories and violations go into the report; empty: none")
	out    = flag.String("groups.out", "", "file for the report; empty: none")
)

var target string

// sheet is out/groups.json.
type sheet struct {
	mu sync.Mutex
	m  map[string]any
}

var figures = sheet{m: map[string]any{}}

func (r *sheet) set(name string, v any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m[name] = v
}

// write writes the figures, with those of the simulator.
func (r *sheet) write(path string) error {
	if *sim != "" {
		b, err := os.ReadFile(*sim)
		if err != nil {
			return err
		}
		var of struct {
			Seeds      int            `json:"seeds"`
			Violations int            `json:"violations"`
			Branches   map[string]int `json:"branches"`
		}
		if err := json.Unmarshal(b, &of); err != nil {
			return fmt.Errorf("%s: %w", *sim, err)
		}
		r.set("histories", of.Seeds)
		r.set("history_violations", of.Violations)
		r.set("history_cuts", of.Branches["a cut through LUNs is judged against what hosts saw"])
	}
	return jsonfile.Write(path, r.m)
}

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "gemel-groups-")
	if err != nil {
		panic(err)
	}
	if target, err = harness.Build(context.Background(), dir, "./cmd/gemel-target"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}
	code := m.Run()
	if *out != "" {
		if err := figures.write(*out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}
