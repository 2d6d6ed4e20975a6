package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const snapB = "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e0b"

// makings are all ways to make an object under lunA or snapA, of lunB or snapB, which hold content
// number 9.
var makings = map[string]struct {
	k    kind
	make func(t *testing.T, v *BackingVolume, born uint64) error
	want []byte
}{
	"an empty LUN": {kindLUN, func(_ *testing.T, v *BackingVolume, born uint64) error { return v.CreateLUN(lunA, 1<<20, born) }, make([]byte, 1<<20)},
	"an empty snapshot": {kindSnapshot, func(_ *testing.T, v *BackingVolume, born uint64) error { return v.CreateSnapshot(snapA, 1<<20, born) },
		make([]byte, 1<<20)},
	"a snapshot": {kindSnapshot, func(t *testing.T, v *BackingVolume, born uint64) error {
		return v.Snapshot(t.Context(), lunB, snapA, born, nil)
	}, content(9, 1<<20)},
	"a LUN of a snapshot": {kindLUN, func(t *testing.T, v *BackingVolume, born uint64) error {
		return v.CloneFromSnapshot(t.Context(), snapB, lunA, 1<<20, born, nil)
	}, content(9, 1<<20)},
	"a LUN of a LUN": {kindLUN, func(t *testing.T, v *BackingVolume, born uint64) error {
		return v.CloneLUN(t.Context(), lunB, lunA, 1<<20, born, nil)
	}, content(9, 1<<20)},
}

// strangers are what may be in the place of a new object that the store has not made.
var strangers = map[string]func(t *testing.T, path string){
	"as long":   func(t *testing.T, path string) { must(t, os.WriteFile(path, content(4, 1<<20), 0o600)) },
	"longer":    func(t *testing.T, path string) { must(t, os.WriteFile(path, content(4, 3<<20), 0o600)) },
	"empty":     func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) },
	"a garbled": func(t *testing.T, path string) { must(t, os.WriteFile(path, content(4, 100), 0o600)); garble(t, path) },
}

func garble(t *testing.T, path string) {
	t.Helper()
	must(t, unix.Setxattr(path, bornAttr, []byte("+7 of some other program's"), 0))
}

func nameOf(k kind) string {
	if k == kindSnapshot {
		return snapA
	}
	return lunA
}

// withSources has lunB and snapB.
func withSources(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	s, err := Open(dir, testIdent, opts)
	must(t, err)
	f := newLUN(t, s, lunB, 1<<20)
	must(t, f.WriteAt(content(9, 1<<20), 0))
	must(t, s.Default().Snapshot(t.Context(), lunB, snapB, 3, nil))
	must(t, errors.Join(f.Checkpoint(), f.Close()))
	return s
}

func openKind(t *testing.T, s *Store, k kind) *File {
	t.Helper()
	f, err := s.Default().open(k, nameOf(k))
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// isMade: the object is what was to be made, born at an index.
func isMade(t *testing.T, s *Store, k kind, born uint64, want []byte) {
	t.Helper()
	f := openKind(t, s, k)
	wantWrong(t, f)
	reads(t, f, 0, want)
	info, err := s.Default().info(k, nameOf(k))
	must(t, err)
	if info.Size != int64(len(want)) || s.Default().Births() && (!info.Known || info.Born != born) {
		t.Errorf("%+v, want a birth at %d", info, born)
	}
	if k == kindLUN {
		x, err := s.Default().OpenIntents(lunA, 1<<20)
		must(t, err)
		if x.Dirty()[0]&1 == 0 {
			t.Errorf("intents of the object that was there: %x", x.Dirty())
		}
		must(t, x.Close())
	}
	must(t, f.Close())
}

func asides(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "volumes", DefaultBackingVolume, asideDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// leftover is an object of the store under the name of the one to be made, with other content,
// checksums and a clear intent.
func leftover(t *testing.T, s *Store, k kind) {
	t.Helper()
	v := s.Default()
	if k == kindSnapshot {
		must(t, v.CreateSnapshot(snapA, 1<<20, 5))
	} else {
		must(t, v.CreateLUN(lunA, 1<<20, 5))
		x, err := v.OpenIntents(lunA, 1<<20)
		must(t, err)
		x.Clear(nil)
		must(t, x.Close())
	}
	f := openKind(t, s, k)
	must(t, errors.Join(f.WriteAt(content(4, 1<<20), 0), f.Checkpoint(), f.Close()))
}

// What a deletion has left is as long as the new object and holds another one's bytes: nothing of
// it comes back.
func TestLeftoversAreMadeAnew(t *testing.T) {
	for name, m := range makings {
		for _, sums := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", checksums ", sums), func(t *testing.T) {
				dir := t.TempDir()
				opts := Options{}
				if sums {
					opts = withSums()
				}
				s := withSources(t, dir, opts)
				leftover(t, s, m.k)
				old := openKind(t, s, m.k) // somebody still has it
				must(t, old.WriteAt(content(6, 4096), 0))
				must(t, m.make(t, s.Default(), 8))
				must(t, old.WriteAt(content(7, 4096), 4096))
				isMade(t, s, m.k, 8, m.want)
				must(t, old.Close())
				isMade(t, s, m.k, 8, m.want)
				must(t, m.make(t, s.Default(), 8)) // of the same entry, which the metadata has not got
				isMade(t, s, m.k, 8, m.want)
				must(t, s.Close())
				s = open(t, dir, opts)
				isMade(t, s, m.k, 8, m.want)
				if got := asides(t, dir); got != nil {
					t.Errorf("set aside: %v", got)
				}
			})
		}
	}
}

// What the store has not made is somebody's: it is kept, under a name of its own, and is not in the
// new object.
func TestStrangersAreSetAside(t *testing.T) {
	for name, m := range makings {
		for what, put := range strangers {
			t.Run(name+", "+what, func(t *testing.T) {
				dir := t.TempDir()
				s := withSources(t, dir, withSums())
				full, _, err := s.Default().path(m.k, nameOf(m.k))
				must(t, err)
				var want [][]byte
				for range 2 {
					put(t, full)
					raw, err := os.ReadFile(full)
					must(t, err)
					want = append(want, raw)
					must(t, openKind(t, s, m.k).Close()) // it was taken for an object
					must(t, m.make(t, s.Default(), 8))
					isMade(t, s, m.k, 8, m.want)
					must(t, s.Default().remove(m.k, nameOf(m.k)))
				}
				names := asides(t, dir)
				if len(names) != 2 || names[0] != nameOf(m.k)+".img-1" || names[1] != nameOf(m.k)+".img-2" {
					t.Fatalf("set aside: %v", names)
				}
				for i, n := range names {
					if raw, err := os.ReadFile(filepath.Join(dir, "volumes", DefaultBackingVolume, asideDir, n)); err != nil || !bytes.Equal(raw, want[i]) {
						t.Errorf("%s: %d bytes, %v", n, len(raw), err)
					}
				}
				must(t, s.Close())
				s = open(t, dir, withSums()) // the folder disturbs nothing
				if l, err := s.Default().ListLUNs(); err != nil || len(l) != 1 {
					t.Errorf("%v, %v", l, err)
				}
			})
		}
	}
}

// Where images keep no birth it is unknown whose they are.
func TestWithoutBirths(t *testing.T) {
	for name, m := range makings {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			opts := withSums()
			opts.NoBirths = true
			s := withSources(t, dir, opts)
			if s.Default().Births() {
				t.Error("births")
			}
			leftover(t, s, m.k)
			must(t, m.make(t, s.Default(), 8))
			isMade(t, s, m.k, 8, m.want)
			if info, err := s.Default().info(m.k, nameOf(m.k)); err != nil || info.Known {
				t.Errorf("%+v, %v", info, err)
			}
			must(t, errors.Join(s.Default().MarkLUN(lunB, 7), s.Close()))
			if got := asides(t, dir); len(got) != 1 {
				t.Errorf("set aside: %v", got)
			}
			s = open(t, dir, withSums())
			if info, err := s.Default().LUN(lunB); err != nil || info.Known {
				t.Errorf("%+v, %v", info, err)
			}
		})
	}
}

// A crash at any point leaves the old file, in its place or aside, or none, or the new object;
// never one with the checksums of the other.
func TestMakingIsCutShort(t *testing.T) {
	for name, m := range makings {
		for _, stranger := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", stranger ", stranger), func(t *testing.T) {
				dir := t.TempDir()
				opts := withSums()
				var images []string
				var ops []string
				on := false
				opts.Faults = func(op, _ string, _, _ int64) error {
					if on {
						images, ops = append(images, copied(t, dir)), append(ops, op)
					}
					return nil
				}
				s := withSources(t, dir, opts)
				if stranger {
					full, _, err := s.Default().path(m.k, nameOf(m.k))
					must(t, err)
					must(t, os.WriteFile(full, content(4, 1<<20), 0o600))
				} else {
					leftover(t, s, m.k)
				}
				on = true
				must(t, m.make(t, s.Default(), 8))
				on = false
				images, ops = append(images, copied(t, dir)), append(ops, "the end")
				must(t, s.Close())
				if len(images) < 3 {
					t.Fatalf("%d points: %v", len(images), ops)
				}
				for i, image := range images {
					s := open(t, image, withSums())
					if info, err := s.Default().info(m.k, nameOf(m.k)); err == nil {
						f := openKind(t, s, m.k)
						want := content(4, 1<<20)
						if info.Known && info.Born == 8 {
							want = m.want
						}
						wantWrong(t, f)
						reads(t, f, 0, want)
						must(t, f.Close())
					} else if !errors.Is(err, ErrNotFound) || i == len(images)-1 {
						t.Errorf("at %s: %v", ops[i], err)
					}
					must(t, m.make(t, s.Default(), 8))
					isMade(t, s, m.k, 8, m.want)
					if got := asides(t, image); stranger != (len(got) == 1) || len(got) > 1 {
						t.Errorf("at %s, set aside: %v", ops[i], got)
					}
				}
			})
		}
	}
}

// What can be neither removed nor set aside stays as it is, and the object is not made.
func TestOccupiedNames(t *testing.T) {
	for op, put := range map[string]func(t *testing.T, s *Store){
		FaultDelete: func(t *testing.T, s *Store) { leftover(t, s, kindLUN) },
		FaultAside: func(t *testing.T, s *Store) {
			full, _, err := s.Default().path(kindLUN, lunA)
			must(t, err)
			must(t, os.WriteFile(full, content(4, 1<<20), 0o600))
		},
	} {
		t.Run(op, func(t *testing.T) {
			opts := withSums()
			fails := true
			opts.Faults = func(o, _ string, _, _ int64) error {
				if fails && o == op {
					return syscall.EIO
				}
				return nil
			}
			s := withSources(t, t.TempDir(), opts)
			defer s.Close()
			put(t, s)
			for name, m := range makings {
				if m.k != kindLUN {
					continue
				}
				if err := m.make(t, s.Default(), 8); !errors.Is(err, ErrOccupied) || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), lunA) {
					t.Errorf("%s: %v", name, err)
				}
				f := openLUN(t, s, lunA)
				reads(t, f, 0, content(4, 1<<20))
				must(t, f.Close())
			}
			if err := s.Failed(); err != nil {
				t.Error(err)
			}
			fails = false
			must(t, s.Default().CreateLUN(lunA, 1<<20, 8))
			isMade(t, s, kindLUN, 8, make([]byte, 1<<20))
		})
	}
	s := withSources(t, t.TempDir(), withSums())
	defer s.Close()
	if err := s.Default().CloneLUN(t.Context(), lunB, lunB, 1<<20, 8, nil); !errors.Is(err, ErrOccupied) {
		t.Errorf("into itself: %v", err)
	}
	reads(t, openLUN(t, s, lunB), 0, content(9, 1<<20))
}

// An image of an earlier release is given its birth once.
func TestBirthsOfImagesOfBefore(t *testing.T) {
	dir := t.TempDir()
	s := withSources(t, dir, withSums())
	must(t, s.Default().CreateLUN(lunA, 1<<20, 1<<63))
	full, _, err := s.Default().path(kindLUN, lunB)
	must(t, err)
	must(t, unix.Removexattr(full, bornAttr))
	if info, err := s.Default().LUN(lunB); err != nil || info.Known {
		t.Fatalf("%+v, %v", info, err)
	}
	must(t, errors.Join(s.Default().MarkLUN(lunB, 12), s.Default().MarkSnapshot(snapB, 1<<64-1), s.Close()))
	s = open(t, dir, withSums())
	luns, err := s.Default().ListLUNs()
	must(t, err)
	snaps, err := s.Default().ListSnapshots()
	must(t, err)
	for id, want := range map[string]uint64{lunA: 1 << 63, lunB: 12, snapB: 1<<64 - 1} {
		for _, i := range append(luns, snaps...) {
			if i.UUID == id && (!i.Known || i.Born != want) {
				t.Errorf("%+v, want %d", i, want)
			}
		}
	}
	if err := s.Default().MarkLUN(nobody, 3); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// A LUN without metadata is there again, with what it holds.
func TestKeepLUN(t *testing.T) {
	dir := t.TempDir()
	for i := range uint64(3) {
		s, err := Open(dir, testIdent, withSums())
		must(t, err)
		must(t, s.Default().KeepLUN(lunA, 1<<20))
		f := openLUN(t, s, lunA)
		reads(t, f, 0, content(i, 4096))
		must(t, errors.Join(f.WriteAt(content(i+1, 4096), 0), f.Checkpoint(), f.Close()))
		if err := s.Default().KeepLUN(lunA, 2<<20); !errors.Is(err, ErrExists) {
			t.Errorf("%v", err)
		}
		must(t, s.Close())
	}
}

const nobody = "7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e0c"

// A birth: what is taken is what was written.
func FuzzBorn(f *testing.F) {
	for _, s := range []string{"0", "7", "+7", "007", "18446744073709551615", "18446744073709551616", "", "-1", " 1", "1\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if born, known := parseBorn(raw); known && fmt.Sprint(born) != string(raw) || !known && born != 0 {
			t.Fatalf("%q became %d", raw, born)
		}
	})
}
