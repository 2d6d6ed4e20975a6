package database

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// pages is how many rows of each file are overwritten in place, so that journals are of some size.
const pages = 400

// sqlite is the database SQLite with its load: a file on each place, attached to one connection.
// With rollback journals a transaction through both files is atomic by its super-journal, which is
// beside the first file, on one LUN, and is named in the journals of both, by its path.
type sqlite struct {
	main, other string
	client      *session
	both, steps counter
	stop, weak  atomic.Bool
	wg          sync.WaitGroup
	err         error // after wg
}

// counter is one sequence of transactions.
type counter struct{ began, acked atomic.Uint64 }

// SQLite with two files on two LUNs, of two pairs and owners.
func TestSQLite(t *testing.T) {
	if *cuts == 0 {
		t.Skip("skipped: takes minutes; `make test-databases` runs it")
	}
	for _, name := range []string{"sqlite3", "stdbuf"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%s is not installed (Debian: sqlite3, coreutils); `make test-databases` installs it", name)
		}
	}
	r := newRig(t, 10*time.Minute+time.Duration(*cuts+*controls)*time.Minute)
	s := &sqlite{main: filepath.Join(r.places[0].path, "a.db"), other: filepath.Join(r.places[1].path, "b.db")}
	met := prove(t, "sqlite", r, s)
	if met["hot_journals"] == 0 {
		t.Error("no cut met a transaction at work: the cuts show nothing")
	}
}

// connect opens a client that has both files. With EXTRA a commit is durable when it is
// acknowledged: the folder is synced after the journal was deleted. With FULL it may still be
// rolled back.
func (s *sqlite) connect(ctx context.Context) (*session, error) {
	// The client does not write to a pipe line by line by itself.
	c, err := open(exec.CommandContext(ctx, "stdbuf", "-oL", "sqlite3", "-batch", "-bail", "-init", "/dev/null", s.main), ".print")
	if err != nil {
		return nil, err
	}
	lines, err := c.do(fmt.Sprintf("ATTACH '%s' AS other;\n", s.other) + `
PRAGMA main.journal_mode = DELETE; PRAGMA other.journal_mode = DELETE;
PRAGMA main.synchronous = EXTRA; PRAGMA other.synchronous = EXTRA;`)
	if err == nil && strings.Join(lines, " ") != "delete delete" {
		err = fmt.Errorf("the journal modes are %q", lines)
	}
	return c, err
}

func (s *sqlite) begin(r *rig) (err error) {
	if s.client, err = s.connect(r.ctx); err != nil {
		return err
	}
	var b strings.Builder
	for _, file := range []string{"main", "other"} {
		fmt.Fprintf(&b, `CREATE TABLE %[1]s.both (k INTEGER PRIMARY KEY, mark TEXT);
CREATE INDEX %[1]s.both_mark ON both (mark);
CREATE TABLE %[1]s.page (id INTEGER PRIMARY KEY, k INTEGER, pad TEXT);
CREATE TABLE %[1]s.step (k INTEGER PRIMARY KEY);
WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < %[2]d)
INSERT INTO %[1]s.page SELECT id, 0, hex(zeroblob(1000)) FROM n;
`, file, pages-1)
	}
	if _, err := s.client.do(b.String()); err != nil {
		return err
	}
	s.wg.Go(func() { s.err = s.write() })
	return nil
}

// write has two sequences: transactions through both files, and steps of a chain whose step k is in
// one file, in a transaction of its own, after step k-1 was acknowledged in the other one.
func (s *sqlite) write() error {
	rnd := rand.New(rand.NewPCG(*seed, 0x73716c))
	for k := uint64(1); !s.stop.Load(); k++ {
		var b strings.Builder
		mark := rnd.Uint64()
		if s.weak.Load() {
			b.WriteString("PRAGMA main.synchronous = OFF; PRAGMA other.synchronous = OFF;\n")
		}
		b.WriteString("BEGIN;\n")
		for range 10 {
			id, size := rnd.IntN(pages), 500+rnd.IntN(500)
			for _, file := range []string{"main", "other"} {
				fmt.Fprintf(&b, "UPDATE %s.page SET k = %d, pad = hex(zeroblob(%d)) WHERE id = %d;\n", file, k, size, id)
			}
		}
		fmt.Fprintf(&b, "INSERT INTO main.both VALUES (%[1]d, '%[2]x');\nINSERT INTO other.both VALUES (%[1]d, '%[2]x');\nCOMMIT;", k, mark)
		s.both.began.Store(k)
		if _, err := s.client.do(b.String()); err != nil {
			return fmt.Errorf("transaction %d: %w", k, err)
		}
		s.both.acked.Store(k)
		for range 2 {
			n := s.steps.acked.Load() + 1
			s.steps.began.Store(n)
			if _, err := s.client.do(fmt.Sprintf("INSERT INTO %s.step VALUES (%d);", [2]string{"main", "other"}[n%2], n)); err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
			s.steps.acked.Store(n)
		}
	}
	return nil
}

func (s *sqlite) acked() []uint64 { return []uint64{s.both.acked.Load(), s.steps.acked.Load()} }
func (s *sqlite) asked() []uint64 { return []uint64{s.both.began.Load(), s.steps.began.Load()} }

func (s *sqlite) end(*rig) error {
	s.stop.Store(true)
	s.wg.Wait()
	return errors.Join(s.err, s.client.end())
}

func (s *sqlite) weaken(*rig) error {
	s.weak.Store(true)
	return nil
}

func (s *sqlite) abort() {
	s.stop.Store(true)
	s.wg.Wait() // a client at work has ended with its context
	if s.client != nil {
		_ = s.client.end()
	}
}
