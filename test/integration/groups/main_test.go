// Package groups cuts group snapshots through two pairs of real processes, while hosts write, nodes
// are killed, LUNs move and coordinators die.
package groups

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var (
	rounds = flag.Int("groups.rounds", 6, "group snapshots that are taken while things fail")
	freeze = flag.Int("groups.freeze", 3, "group snapshots of each size whose hold is measured")
	seed   = flag.Uint64("groups.seed", 1, "of what fails, and when")
	out    = flag.String("groups.out", "", "file for the report; empty: none")
)

var target string

// report is out/groups.json.
type report struct {
	mu sync.Mutex
	m  map[string]any
}

var figures = report{m: map[string]any{}}

func (r *report) set(name string, v any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m[name] = v
}

// write merges the figures into the report, which other suites write to as well.
func (r *report) write(path string) error {
	all := map[string]any{}
	if b, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(b, &all); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for k, v := range r.m {
		all[k] = v
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
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
