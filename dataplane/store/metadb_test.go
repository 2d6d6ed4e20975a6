package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// many fills a bucket, so that it has pages of its own.
func many(tx *Tx) error {
	for _, k := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		if err := tx.Put("luns", k, []byte(strings.Repeat("<"+k+">", 700))); err != nil {
			return err
		}
	}
	return nil
}

// ended checks that a database is not used any more and that its store is not trusted, now and
// after a restart.
func ended(t *testing.T, s *Store, err error, says string) {
	t.Helper()
	path := filepath.Join(s.Dir(), metaFile)
	switch {
	case err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n"):
		t.Errorf("the error is %v; want a line with %s and %q", err, path, says)
	case s.Failed() == nil || !errors.Is(s.Failed(), ErrFailed) || !strings.Contains(s.Failed().Error(), says):
		t.Errorf("the store is trusted: %v", s.Failed())
	}
	select {
	case <-s.FailedC():
	default:
		t.Error("no reader of FailedC hears that the store failed")
	}
	called := false
	f := func(*Tx) error { called = true; return nil }
	if v, u := s.DB().View(f), s.DB().Update(f); v == nil || u == nil || called {
		t.Errorf("it is used again: %v, %v, called %v", v, u, called)
	}
	if why, err := s.Untrusted(); err != nil || !strings.Contains(why, says) {
		t.Errorf("the next life does not hear of it: %q, %v", why, err)
	}
}

// filled is a store with a database of some pages.
func filled(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.DB().Update(many); err != nil {
		t.Fatal(err)
	}
	return s
}

// What happens to the file of a database that is in use is found by the next transaction, and is
// the end of it.
func TestDamageWhileTheDatabaseIsInUse(t *testing.T) {
	get := func(tx *Tx) error { _, err := tx.Get("luns", "m"); return err }
	set := func(tx *Tx) error { return tx.Put("luns", "m", []byte("other")) }
	for _, c := range []struct {
		name   string
		damage func(path string) error
		says   string
	}{
		{"cut", func(path string) error { return os.Truncate(path, 3*4096) }, "it was truncated"},
		{"cut to nothing", func(path string) error { return os.Truncate(path, 0) }, "it was truncated"},
		{"removed", os.Remove, "the file was removed"},
		{"replaced", func(path string) error {
			return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
		}, "the file was removed"},
		{"another value", func(path string) error { return replace(path, strings.Repeat("<m>", 700), strings.Repeat("<n>", 700)) }, "luns/m does not match its checksum"},
		{"zeros", func(path string) error { return zeros(path, 2) }, "damaged"},
	} {
		for how, use := range map[string]func(s *Store) error{
			"read": func(s *Store) error { return s.DB().View(get) },
			"read all": func(s *Store) error {
				return s.DB().View(func(tx *Tx) error { return tx.Each("luns", func(string, []byte) error { return nil }) })
			},
			"read, swallow": func(s *Store) error { return s.DB().View(func(tx *Tx) error { _ = get(tx); return nil }) },
			"change": func(s *Store) error {
				return s.DB().Update(func(tx *Tx) error {
					if err := get(tx); err != nil {
						return err
					}
					return set(tx)
				})
			},
		} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				s := filled(t, t.TempDir())
				if err := c.damage(filepath.Join(s.Dir(), metaFile)); err != nil {
					t.Fatal(err)
				}
				ended(t, s, use(s), c.says)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				again, err := Open(s.Dir(), testIdent, Options{}) // what it was stuck in has not kept its locks
				if err == nil {
					t.Error("what is damaged is taken by the next life")
					_ = again.Close()
				}
				if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrMissing) {
					t.Error(err)
				}
			})
		}
	}
}

// A page that goes away between two looks at the file is a fault, which ends the transaction and
// not the process.
func TestFaultInATransaction(t *testing.T) {
	for name, use := range map[string]func(tx *Tx) error{
		"read":   func(tx *Tx) error { _, err := tx.Get("luns", "m"); return err },
		"each":   func(tx *Tx) error { return tx.Each("luns", func(string, []byte) error { return nil }) },
		"put":    func(tx *Tx) error { return tx.Put("luns", "m", []byte("other")) },
		"delete": func(tx *Tx) error { return tx.Delete("luns", "m") },
		"drop":   func(tx *Tx) error { return tx.Drop("luns") },
		"names":  func(tx *Tx) error { _, err := tx.Buckets(); return err },
		"commit": func(tx *Tx) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := filled(t, t.TempDir())
			err := s.DB().Update(func(tx *Tx) error {
				if name == "commit" {
					if err := tx.Put("luns", "m", []byte("other")); err != nil {
						return err
					}
				}
				if err := os.Truncate(filepath.Join(s.Dir(), metaFile), 0); err != nil {
					t.Fatal(err)
				}
				return use(tx)
			})
			ended(t, s, err, "a page in use cannot be read")
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A mistake of the caller is no damage: the caller gets its own error, and nothing of the
// transaction stays.
func TestPanicOfTheCaller(t *testing.T) {
	s := filled(t, t.TempDir())
	func() {
		defer func() {
			if p := recover(); p != "a mistake" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = s.DB().Update(func(tx *Tx) error {
			if err := tx.Put("luns", "m", []byte("other")); err != nil {
				t.Error(err)
			}
			panic("a mistake")
		})
	}()
	boom := errors.New("boom")
	if err := s.DB().Update(func(tx *Tx) error { return errors.Join(tx.Drop("luns"), boom) }); !errors.Is(err, boom) {
		t.Error(err)
	}
	if err := s.DB().Update(func(tx *Tx) error { return tx.Put("luns", "", nil) }); !errors.Is(err, errEmptyValue) {
		t.Error(err)
	}
	if err := s.DB().View(func(tx *Tx) error {
		v, err := tx.Get("luns", "m")
		if string(v) != strings.Repeat("<m>", 700) {
			t.Errorf("%d bytes are left", len(v))
		}
		return err
	}); err != nil || s.Failed() != nil {
		t.Errorf("%v, failed %v", err, s.Failed())
	}
}

// A node that stops closes its store; who comes late is refused, and nothing has failed.
func TestClosedDatabaseHasNotFailed(t *testing.T) {
	s := filled(t, t.TempDir())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.DB().Update(many); !errors.Is(err, errClosed) || s.Failed() != nil {
		t.Errorf("%v, failed %v", err, s.Failed())
	}
	if why, err := s.Untrusted(); why != "" || err != nil {
		t.Errorf("%q, %v", why, err)
	}
}

// The kernel refuses what a commit writes (EFBIG, beyond the limit of a process): it is not tried
// again, although it would do. A process of its own, since the limit is for all that it writes.
func TestCommitThatFails(t *testing.T) {
	const own = "GEMEL_TEST_COMMIT_THAT_FAILS"
	if os.Getenv(own) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCommitThatFails$", "-test.v")
		cmd.Env = append(os.Environ(), own+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestCommitThatFails") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	s := filled(t, t.TempDir())
	st, err := os.Stat(filepath.Join(s.Dir(), metaFile))
	if err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	limit := func(cur uint64) {
		t.Helper()
		if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: cur, Max: unix.RLIM_INFINITY}, &old); err != nil {
			t.Fatal(err)
		}
	}
	limit(uint64(st.Size()))
	err = s.DB().Update(func(tx *Tx) error { return tx.Put("luns", "big", make([]byte, st.Size())) })
	limit(old.Cur)
	ended(t, s, err, "cannot flush a change")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, s.Dir(), Options{})
	if why, err := s.Untrusted(); err != nil || why == "" {
		t.Errorf("the next life trusts it: %v", err)
	}
	if err := s.DB().View(func(tx *Tx) error {
		big, err := tx.Get("luns", "big")
		if big != nil {
			t.Error("what was refused is there")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// A disk that gives errors: a commit fails, once and for all, and a file that cannot be read is
// refused at the start.
func TestMetadataOnABrokenDisk(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	dir := filepath.Join(d.Mount, "store")
	s := filled(t, dir)
	f, err := os.Open(filepath.Join(dir, metaFile))
	if err != nil {
		t.Fatal(err)
	}
	layout, err := load.LayoutOf(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	k := slowdisk.Knobs{WriteErrors: true}
	for _, x := range layout {
		k.ErrorsAt = append(k.ErrorsAt, slowdisk.Range{Off: x.Physical, Len: x.Length})
	}
	if err := d.Set(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	err = s.DB().Update(func(tx *Tx) error { return tx.Put("luns", "m", []byte("other")) })
	ended(t, s, err, "cannot flush a change: "+syscall.EIO.Error())
	if err := d.Set(t.Context(), slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	if err := s.DB().Update(many); err == nil {
		t.Error("it is used again when the disk works")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Remount(t.Context()); err != nil { // and nothing of it is cached
		t.Fatal(err)
	}
	if s, err = Open(dir, testIdent, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Remount(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.WriteErrors, k.ReadErrors = false, true
	if err := d.Set(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, testIdent, Options{})
	oneLine(t, err, ErrDamaged, filepath.Join(dir, metaFile))
	if err == nil || !strings.Contains(err.Error(), "it cannot be read: "+syscall.EIO.Error()) {
		t.Error(err)
	}
	if err := d.Set(t.Context(), slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	open(t, dir, Options{})
}

// replace puts one text in the place of another in a file that is open elsewhere.
func replace(path, old, text string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for at := 0; ; at += len(text) {
		i := strings.Index(string(b[at:]), old)
		if i < 0 {
			return nil
		}
		at += i
		if _, err := f.WriteAt([]byte(text), int64(at)); err != nil {
			return err
		}
	}
}

// zeros clears a file from a page on.
func zeros(path string, page int64) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, st.Size()-page*4096), page*4096)
	return errors.Join(err, f.Close())
}
