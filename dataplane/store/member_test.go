package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/extents"
)

// pool opens a store with one pool of members, whose home is bare, on one filesystem.
func pool(dir string, lost []string, names ...string) (*Store, error) {
	opts := withSums()
	opts.SharedFilesystem, opts.Lost = true, lost
	for _, name := range names {
		opts.Members = append(opts.Members, MemberDir{Of: "p", Name: name, Dir: filepath.Join(dir, name)})
	}
	return Open(filepath.Join(dir, "state"), testIdent, opts)
}

func blocksOf(st os.FileInfo) int64 { return st.Sys().(*syscall.Stat_t).Blocks }

// idOf is that of the volume in a directory.
func idOf(t *testing.T, dir string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, volumeFile))
	must(t, err)
	var rec volumeRecord
	must(t, json.Unmarshal(raw, &rec))
	return rec.ID
}

func pattern(size int64) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(i>>12) | 1
	}
	return p
}

// A pool whose home is bare has nothing of its data there.
func TestBareHome(t *testing.T) {
	dir := t.TempDir()
	s, err := pool(dir, nil, "a", "b")
	must(t, err)
	defer func() { must(t, s.Close()) }()
	v, err := s.Volume("p")
	must(t, err)
	const size = 4 * extents.Size
	must(t, v.CreateLUN(lunA, size, 7))
	f, err := v.OpenLUN(lunA)
	must(t, err)
	must(t, f.WriteAt(pattern(size), 0))
	must(t, f.Sync())
	must(t, f.Close())
	x, err := v.LUN(lunA)
	must(t, err)
	if x.Size != size || x.Lost != "" || x.Born != 7 || x.Allocated < size || x.Allocated > size+1<<20 {
		t.Errorf("%+v", x)
	}
	home, err := os.Stat(filepath.Join(dir, "state", "volumes", "p", string(kindLUN), lunA+imgSuffix))
	must(t, err)
	if n := blocksOf(home); n > 1 {
		t.Errorf("%d blocks are at home", n)
	}
	total, free, err := v.Capacity()
	must(t, err)
	of, _, err := s.Default().Capacity()
	must(t, err)
	if total != 2*of || free <= 0 {
		t.Errorf("the pool has %d bytes, its members %d each", total, of)
	}
}

// A volume that has LUNs gets its first member: they stay as they are, and their extents can move
// there. A release that knows no members does not open it any more.
func TestFirstMemberOfAVolumeWithLUNs(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	opts := withSums()
	opts.SharedFilesystem = true
	s, err := Open(state, testIdent, opts)
	must(t, err)
	const size = 3*extents.Size + 4096
	f := newLUN(t, s, lunA, size)
	p := pattern(size)
	must(t, f.WriteAt(p, 0))
	must(t, f.Checkpoint())
	must(t, s.Default().Snapshot(t.Context(), lunA, snapA, 9, nil))
	must(t, f.Close())
	must(t, s.Close())
	rec, err := os.ReadFile(filepath.Join(state, identityFile))
	must(t, err)
	if !bytes.Contains(rec, []byte(`"format": 1`)) {
		t.Errorf("a store without members has %s", rec)
	}

	opts.Members = []MemberDir{{DefaultBackingVolume, "m", filepath.Join(dir, "m")}}
	s, err = Open(state, testIdent, opts)
	must(t, err)
	rec, err = os.ReadFile(filepath.Join(state, identityFile))
	must(t, err)
	if !bytes.Contains(rec, []byte(`"format": 2`)) {
		t.Errorf("a store with members has %s", rec)
	}
	f, err = s.Default().OpenLUN(lunA)
	must(t, err)
	for e := range extents.Extents(size) {
		if f.places.m.At(e) != homeNumber {
			t.Errorf("extent %d is not at home", e)
		}
	}
	for _, e := range []int64{0, 3} {
		must(t, f.places.spread.Move(t.Context(), e, 2))
	}
	g, err := s.Default().OpenSnapshot(snapA)
	must(t, err)
	for what, x := range map[string]*File{"LUN": f, "snapshot": g} {
		got := make([]byte, size)
		must(t, x.ReadAt(got, 0))
		if !bytes.Equal(got, p) {
			t.Errorf("the %s is not what it was", what)
		}
		must(t, x.Close())
	}
	must(t, s.Close())
}

// The disk of a member is lost, and another one takes its place: what lay there is lost, and said
// to be, over restarts, until it is made again; what lay elsewhere is not.
func TestMemberThatIsReplaced(t *testing.T) {
	dir := t.TempDir()
	s, err := pool(dir, nil, "a", "b")
	must(t, err)
	v, err := s.Volume("p")
	must(t, err)
	const size = 2 * extents.Size
	for _, id := range []string{lunA, lunB} {
		must(t, v.CreateLUN(id, size, 7))
	}
	p := pattern(size)
	f, err := v.OpenLUN(lunB)
	must(t, err)
	must(t, f.WriteAt(p, 0))
	must(t, f.places.spread.Move(t.Context(), 1, 2)) // all of it is in a
	must(t, f.Close())
	must(t, s.Close())

	b := filepath.Join(dir, "b")
	id := idOf(t, b)
	must(t, os.RemoveAll(b))
	_, err = pool(dir, nil, "a", "b")
	if !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), "--lost-volume "+id) {
		t.Fatalf("a member that is another one: %v", err)
	}
	_, err = pool(dir, nil, "a")
	if !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), "--lost-volume "+id) {
		t.Fatalf("a member that is missing: %v", err)
	}
	for range 2 { // the flag stays
		s, err = pool(dir, []string{id}, "a", "b")
		must(t, err)
		v, err = s.Volume("p")
		must(t, err)
		list, err := v.ListLUNs()
		must(t, err)
		for _, x := range list {
			switch {
			case x.UUID == lunA && (x.Lost == "" || x.Size != 0):
				t.Errorf("what had an extent in the lost member: %+v", x)
			case x.UUID == lunB && (x.Lost != "" || x.Size != size):
				t.Errorf("what had nothing there: %+v", x)
			}
		}
		f, err = v.OpenLUN(lunA)
		must(t, err)
		for what, err := range map[string]error{"read": f.ReadAt(make([]byte, 4096), 0), "write": f.WriteAt(make([]byte, 4096), 0), "durable": f.WriteAtDurable(make([]byte, 4096), 0)} {
			if !errors.Is(err, ErrMedia) {
				t.Errorf("%s of what is lost: %v", what, err)
			}
		}
		must(t, f.Close())
		must(t, s.Failed())
		f, err = v.OpenLUN(lunB)
		must(t, err)
		got := make([]byte, size)
		must(t, f.ReadAt(got, 0))
		if !bytes.Equal(got, p) {
			t.Error("what lay elsewhere is not what it was")
		}
		must(t, f.Close())
		must(t, s.Close())
	}
	s, err = pool(dir, []string{id}, "a", "b")
	must(t, err)
	v, err = s.Volume("p")
	must(t, err)
	must(t, v.DeleteLUN(lunA))
	must(t, v.CreateLUN(lunA, size, 7))
	if x, err := v.LUN(lunA); err != nil || x.Lost != "" || x.Size != size {
		t.Errorf("made again: %+v, %v", x, err)
	}
	must(t, s.Close())
	s, err = pool(dir, nil, "a", "b")
	must(t, err)
	must(t, s.Close())
}

// What somebody has removed, cut or damaged of an object is found when the store is opened.
func TestPartsThatAreGone(t *testing.T) {
	const size = 4 * extents.Size
	for name, spoil := range map[string]func(home, member string) error{
		"the map is missing":  func(home, _ string) error { return os.Remove(strings.TrimSuffix(home, imgSuffix) + mapSuffix) },
		"the map is cut":      func(home, _ string) error { return os.Truncate(strings.TrimSuffix(home, imgSuffix)+mapSuffix, 4096) },
		"an image is missing": func(_, member string) error { return os.Remove(member) },
		"an image is cut":     func(_, member string) error { return os.Truncate(member, size/2) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := pool(dir, nil, "a", "b")
			must(t, err)
			v, err := s.Volume("p")
			must(t, err)
			must(t, v.CreateLUN(lunA, size, 7))
			must(t, v.CreateLUN(lunB, size, 7))
			must(t, s.Close())
			must(t, spoil(filepath.Join(dir, "state", "volumes", "p", string(kindLUN), lunA+imgSuffix), filepath.Join(dir, "b", string(kindLUN), lunA+imgSuffix)))
			for range 2 {
				s, err = pool(dir, nil, "a", "b")
				must(t, err)
				v, err = s.Volume("p")
				must(t, err)
				x, err := v.LUN(lunA)
				must(t, err)
				y, err := v.LUN(lunB)
				must(t, err)
				if x.Lost == "" || x.Size != 0 || y.Lost != "" || y.Size != size {
					t.Errorf("%+v, %+v", x, y)
				}
				f, err := v.OpenLUN(lunA)
				must(t, err)
				if err := f.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrMedia) {
					t.Errorf("a read of it: %v", err)
				}
				must(t, f.Close())
				must(t, s.Close())
			}
		})
	}
}

// A member is drained, and may be taken away when nothing is left there; its number stays its own.
func TestMemberThatIsTakenAway(t *testing.T) {
	dir := t.TempDir()
	s, err := pool(dir, nil, "a", "b")
	must(t, err)
	v, err := s.Volume("p")
	must(t, err)
	const size = 4 * extents.Size
	must(t, v.CreateLUN(lunA, size, 7))
	for name, want := range map[string]error{"c": ErrNoPlace, HomePlace: ErrNoPlace} {
		if err := v.Drain(name, true); !errors.Is(err, want) {
			t.Errorf("drain of %s: %v", name, err)
		}
	}
	must(t, v.Drain("b", true))
	must(t, v.Drain("b", true))
	if err := v.Drain("a", true); !errors.Is(err, ErrLastPlace) {
		t.Errorf("drain of the last one: %v", err)
	}
	must(t, v.CreateLUN(lunB, size, 7))
	f, err := v.OpenLUN(lunB)
	must(t, err)
	if n := f.CountExtents(); n[2] != 4 {
		t.Errorf("a new LUN has %d extents in a", n[2])
	}
	must(t, f.Close())
	must(t, s.Close())
	if _, err := pool(dir, nil, "a"); !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), "before it was empty") {
		t.Fatalf("a member that is not empty is taken away: %v", err)
	}
	s, err = pool(dir, nil, "a", "b")
	must(t, err)
	v, err = s.Volume("p")
	must(t, err)
	f, err = v.OpenLUN(lunA)
	must(t, err)
	for e := range f.ExtentCount() {
		must(t, f.MoveExtent(t.Context(), e, 2))
	}
	must(t, v.ResizeLUN(lunA, size, 2*size))
	if n := f.CountExtents(); n[2] != 8 {
		t.Errorf("a longer LUN has %d extents in a", n[2])
	}
	must(t, f.Close())
	must(t, s.Close())
	for range 2 {
		s, err = pool(dir, nil, "a")
		must(t, err)
		must(t, s.Close())
	}
	s, err = pool(dir, nil, "a", "c")
	must(t, err)
	defer func() { must(t, s.Close()) }()
	v, err = s.Volume("p")
	must(t, err)
	if list := v.Places(); len(list) != 2 || list[1].Name != "c" || list[1].Number != 4 {
		t.Errorf("%+v", list)
	}
	f, err = v.OpenLUN(lunA)
	must(t, err)
	must(t, f.MoveExtent(t.Context(), 1, 4))
	must(t, f.Close())
}

func TestMembersThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	m := func(of, name, d string) MemberDir { return MemberDir{of, name, filepath.Join(dir, d)} }
	for name, list := range map[string][]MemberDir{
		"a name twice":        {m("p", "a", "a"), m("p", "a", "b")},
		"a directory twice":   {m("p", "a", "a"), m("p", "b", "a")},
		"one in another":      {m("p", "a", "a"), m("p", "b", "a/b")},
		"in the store":        {m("p", "a", "state/a")},
		"no name of a volume": {m("P!", "a", "a")},
		"no name":             {m("p", "", "a")},
		"no directory":        {{"p", "a", ""}},
	} {
		if err := CheckVolumes(filepath.Join(dir, "state"), nil, list); !errors.Is(err, ErrBackingVolume) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var many []MemberDir
	for i := range MaxMembers + 1 {
		many = append(many, m("p", strings.Repeat("a", i+1)[:min(i+1, 30)]+string(rune('a'+i%26)), "d"+strings.Repeat("x", i+1)))
	}
	if err := CheckVolumes(filepath.Join(dir, "state"), nil, many); !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), "at most 32") {
		t.Errorf("33 members: %v", err)
	}
	opts := Options{Members: []MemberDir{m("p", "a", "a"), m("p", "b", "b")}}
	if _, err := Open(filepath.Join(dir, "state"), testIdent, opts); !errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), "same filesystem") {
		t.Errorf("two on one filesystem: %v", err)
	}
}
