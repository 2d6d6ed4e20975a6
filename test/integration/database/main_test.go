// Package database cuts group snapshots under databases that work on two LUNs of a group, restores
// each one to other LUNs, and has the databases' own tools say what is there.
package database

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/internal/jsonfile"
)

var (
	cuts     = flag.Int("database.cuts", 0, "group snapshots of each database that are taken under load; 0: the tests are skipped")
	controls = flag.Int("database.controls", 6, "controls of each kind and database, of which at least one has to be found broken")
	seed     = flag.Uint64("database.seed", 1, "of what the load writes")
	out      = flag.String("database.out", "", "file for the report; empty: none")
)

// sheet is out/databases.json: the sums of all databases, and each one's own figures.
type sheet struct {
	mu   sync.Mutex
	sums map[string]int
	own  map[string]map[string]any
}

var figures = sheet{sums: map[string]int{}, own: map[string]map[string]any{}}

func init() { // a sum of nothing is 0
	for _, name := range []string{"cuts", "recovered", "control_tries", "control_found", "weak_tries", "weak_found"} {
		figures.sums[name] = 0
	}
	for name := range (findings{}).lists() {
		figures.sums[name] = 0
	}
}

// add adds to the sums, and to the figures of a database.
func (r *sheet) add(database, name string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sums[name] += n
	if r.own[database] == nil {
		r.own[database] = map[string]any{}
	}
	was, _ := r.own[database][name].(int)
	r.own[database][name] = was + n
}

// set notes what cannot be summed.
func (r *sheet) set(database, name string, v any) {
	r.add(database, "cuts", 0) // the figures of the database exist
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own[database][name] = v
}

func (r *sheet) write(path string) error {
	all := map[string]any{}
	for name, n := range r.sums {
		all[name] = n
	}
	for database, m := range r.own {
		all[database] = m
	}
	return jsonfile.Write(path, all)
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if *out != "" {
		if err := figures.write(*out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
