package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// elsewhere is a directory on another filesystem than the test's temporary ones, "" where there is
// none.
func elsewhere(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gemel-test-")
	if err != nil {
		t.Skipf("no second filesystem: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if checkPlaces(t.TempDir(), []BackingVolumeDir{{"x", dir}}, false) != nil {
		t.Skip("/dev/shm and the temporary directory are on one filesystem")
	}
	return dir
}

func shared(volumes ...BackingVolumeDir) Options {
	return Options{Volumes: volumes, SharedFilesystem: true}
}

func TestLUNsLieInTheirVolume(t *testing.T) {
	dir, fast := t.TempDir(), t.TempDir()
	s, err := Open(dir, testIdent, shared(BackingVolumeDir{"fast", fast}))
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Volume("fast")
	if err != nil {
		t.Fatal(err)
	}
	if none, err := s.Volume("slow"); !errors.Is(err, ErrNoVolume) || !strings.Contains(err.Error(), `"slow": there are default, fast`) || none != nil {
		t.Errorf("%v", err)
	}
	if first, err := s.Volume(""); err != nil || first != s.Default() || first.Name() != DefaultBackingVolume {
		t.Errorf("%v %v", first, err)
	}
	if err := errors.Join(v.CreateLUN(lunA, 8<<20, NoBirth), s.Default().CreateLUN(lunB, 8<<20, NoBirth)); err != nil {
		t.Fatal(err)
	}
	f, err := v.OpenLUN(lunA)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.WriteAt([]byte("hello"), 0), f.Close(), v.Snapshot(t.Context(), lunA, snapA, 1, nil)); err != nil {
		t.Fatal(err)
	}
	x, err := v.OpenIntents(lunA, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"luns/" + lunA + ".img", "snapshots/" + snapA + ".img", "intents/" + lunA + ".bits", "volume.json", "mark", "lock"} {
		if _, err := os.Stat(filepath.Join(fast, p)); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Default().OpenLUN(lunA); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is in the other volume as well: %v", err)
	}
	for _, w := range s.Volumes() {
		if l, err := w.ListLUNs(); err != nil || len(l) != 1 {
			t.Errorf("%s: %v %v", w.Name(), l, err)
		}
		if total, free, err := w.Capacity(); err != nil || total <= 0 || free <= 0 {
			t.Errorf("%s: %d %d %v", w.Name(), total, free, err)
		}
	}
	id := v.ID()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, shared(BackingVolumeDir{"fast", fast}))
	if v, err := s.Volume("fast"); err != nil || v.ID() != id || id == "" || id == s.ID() {
		t.Fatalf("%v %v", v, err)
	}
	// A volume has one user, and lets go of everything when another one cannot be had.
	if _, err := Open(t.TempDir(), testIdent, shared(BackingVolumeDir{"more", t.TempDir()}, BackingVolumeDir{"fast", fast})); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "fast") {
		t.Errorf("%v", err)
	}
}

func TestVolumesOfOthersAreRefusedByName(t *testing.T) {
	make := func(t *testing.T, dir string, ident Identity, name string) (fast string) {
		t.Helper()
		fast = t.TempDir()
		s, err := Open(dir, ident, shared(BackingVolumeDir{name, fast}))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return fast
	}
	for _, c := range []struct {
		name  string
		ident Identity
		as    string
		want  string
	}{
		{"cluster", Identity{"other", "p1", "a"}, "fast", `cluster "other"`},
		{"pair", Identity{"c1", "p2", "a"}, "fast", `pair "p2"`},
		{"node", Identity{"c1", "p1", "b"}, "fast", `node "b"`},
		{"volume", testIdent, "slow", `backing volume "slow"`},
		{"store", testIdent, "fast", "it belongs to store"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fast := make(t, t.TempDir(), c.ident, c.as)
			dir := t.TempDir()
			_, err := Open(dir, testIdent, shared(BackingVolumeDir{"fast", fast}))
			if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "backing volume fast") {
				t.Fatalf("%v", err)
			}
			open(t, dir, Options{}) // and the refusal let go of the lock
		})
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, volumeFile), []byte(`{"format":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.TempDir(), testIdent, shared(BackingVolumeDir{"fast", newer})); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "fast") {
		t.Errorf("%v", err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.TempDir(), testIdent, shared(BackingVolumeDir{"fast", full})); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "precious") {
		t.Errorf("%v", err)
	}
	// One that a crash left before it had a name is taken.
	early := t.TempDir()
	if err := makeMark(early); err != nil {
		t.Fatal(err)
	}
	open(t, t.TempDir(), shared(BackingVolumeDir{"fast", early}))
}

func TestVolumesThatAreRefused(t *testing.T) {
	dir, a := t.TempDir(), t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(a, link); err != nil {
		t.Fatal(err)
	}
	var many []BackingVolumeDir
	for i := range MaxBackingVolumes {
		many = append(many, BackingVolumeDir{string(rune('a' + i)), t.TempDir()})
	}
	for _, c := range []struct {
		name    string
		volumes []BackingVolumeDir
		want    string
	}{
		{"no name", []BackingVolumeDir{{"", a}}, "a name must have 1 to 32"},
		{"bad name", []BackingVolumeDir{{"Fast_", a}}, "a name must have 1 to 32"},
		{"the first one's", []BackingVolumeDir{{"default", a}}, "the name of the first backing volume"},
		{"no directory", []BackingVolumeDir{{"fast", ""}}, "its directory is missing"},
		{"name twice", []BackingVolumeDir{{"fast", a}, {"fast", t.TempDir()}}, "fast: the name is used twice"},
		{"directory twice", []BackingVolumeDir{{"fast", a}, {"slow", a}}, "slow: "},
		{"the state directory", []BackingVolumeDir{{"fast", dir}}, "backing volume default, are the same directory"},
		{"within it", []BackingVolumeDir{{"fast", dir + "/volumes/fast"}}, "one contains the other"},
		{"around it", []BackingVolumeDir{{"fast", filepath.Dir(dir)}}, "one contains the other"},
		{"by a link", []BackingVolumeDir{{"fast", a}, {"slow", link}}, "backing volume fast, are the same directory"},
		{"too many", many, "at most 8"},
	} {
		if _, err := Open(dir, testIdent, shared(c.volumes...)); !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Open(dir, testIdent, Options{Volumes: []BackingVolumeDir{{"fast", a}}}); !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), "same filesystem as "+dir) {
		t.Errorf("one filesystem: %v", err)
	}
	if other := elsewhere(t); other != "" {
		open(t, dir, Options{Volumes: []BackingVolumeDir{{"fast", other}}})
	}
}

func TestMarksOfBackingVolumesAreKept(t *testing.T) {
	dir, fast := t.TempDir(), t.TempDir()
	mark := func(want uint64) {
		t.Helper()
		s, err := Open(dir, testIdent, shared(BackingVolumeDir{"fast", fast}))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		v, _ := s.Volume("fast")
		if v.Mark() != want || s.Default().Mark() != 0 {
			t.Errorf("mark %d, not %d", v.Mark(), want)
		}
		if err := s.SetMarks(want + 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(5) {
		mark(i)
	}
	// A torn write of the one that comes next takes nothing away.
	path := filepath.Join(fast, markName)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 24 { // 5 is in the second block, 4 in the first, where 6 goes
		raw[i] ^= 0x55
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	mark(5)
	mark(6)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mark(0) // lost
	boom := errors.New("boom")
	s := open(t, t.TempDir(), Options{Volumes: []BackingVolumeDir{{"fast", t.TempDir()}}, SharedFilesystem: true,
		Faults: func(op, path string, _, _ int64) error {
			if op == FaultMark && path == "volumes/fast/mark" {
				return boom
			}
			return nil
		}})
	if err := s.SetMarks(1); !errors.Is(err, boom) || s.Failed() == nil {
		t.Errorf("%v, failed %v", err, s.Failed())
	}
}

// A volume without space refuses its own writes; the other one, and the trust in the store, stay.
func TestSpaceIsTheVolumesOwn(t *testing.T) {
	s := open(t, t.TempDir(), Options{Volumes: []BackingVolumeDir{{"fast", t.TempDir()}}, SharedFilesystem: true,
		Faults: func(op, path string, _, _ int64) error {
			if strings.HasPrefix(path, "volumes/fast/") && op != FaultRead {
				return syscall.ENOSPC
			}
			return nil
		}})
	v, _ := s.Volume("fast")
	if err := v.CreateLUN(lunA, 1<<20, NoBirth); !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "volumes/fast/luns") {
		t.Errorf("%v", err)
	}
	if err := s.Default().CreateLUN(lunA, 1<<20, NoBirth); err != nil || s.Failed() != nil {
		t.Errorf("%v, failed %v", err, s.Failed())
	}
}
