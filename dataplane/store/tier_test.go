package store

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/extents"
)

func TestCheckTiers(t *testing.T) {
	volumes := []BackingVolumeDir{{"own", "/o"}}
	members := []MemberDir{{"pool", "x", "/x"}, {"pool", "y", "/y"}, {"own", "z", "/z"}, {DefaultBackingVolume, "d", "/d"}}
	for _, c := range []struct {
		tiers []PlaceTier
		want  string // "" if they are good
	}{
		{nil, ""},
		{[]PlaceTier{{"pool", "x", true}}, ""},
		{[]PlaceTier{{"pool", "x", true}, {"pool", "y", false}}, ""},
		{[]PlaceTier{{"own", "z", true}, {DefaultBackingVolume, HomePlace, true}}, ""},
		{[]PlaceTier{{"pond", "x", true}}, "no backing volume of that name"},
		{[]PlaceTier{{"pool", "w", false}}, "no such member; it has x, y"},
		{[]PlaceTier{{"pool", HomePlace, true}}, "no such member"},
		{[]PlaceTier{{"pool", "x", true}, {"pool", "y", true}}, "needs a member beside it that is not fast"},
		{[]PlaceTier{{"pool", "x", true}, {"pool", "x", false}}, "a tier twice"},
	} {
		err := CheckTiers(c.tiers, volumes, members)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrBackingVolume) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.tiers, err, c.want)
		}
	}
}

// What is new goes to places that are not fast, also what a LUN gains, unless they are all drained.
func TestNewDataGoesToCapacity(t *testing.T) {
	dir := t.TempDir()
	opts := Options{Sums: withSums().Sums, SharedFilesystem: true, Members: []MemberDir{{"pool", "x", filepath.Join(dir, "x")}, {"pool", "y", filepath.Join(dir, "y")}},
		Tiers: []PlaceTier{{"pool", "y", true}}}
	s := open(t, filepath.Join(dir, "state"), opts)
	v, err := s.Volume("pool")
	must(t, err)
	if !v.Tiered() || s.Default().Tiered() {
		t.Errorf("tiered: %v, %v", v.Tiered(), s.Default().Tiered())
	}
	const size = 3 * extents.Size
	must(t, v.CreateLUN(lunA, size, 1))
	f, err := v.OpenLUN(lunA)
	must(t, err)
	places := v.Places()
	x, y := places[0].Number, places[1].Number
	if places[0].Fast || !places[1].Fast {
		t.Fatalf("%+v", places)
	}
	at := func() (list []uint8) {
		for e := range f.ExtentCount() {
			list = append(list, f.Where(e))
		}
		return list
	}
	if got := at(); !slices.Equal(got, []uint8{x, x, x}) {
		t.Errorf("a new LUN lies in %v", got)
	}
	must(t, f.MoveExtent(t.Context(), 1, y))
	must(t, v.ResizeLUN(lunA, size, size+extents.Size))
	if got := at(); !slices.Equal(got, []uint8{x, y, x, x}) {
		t.Errorf("a longer LUN lies in %v", got)
	}
	must(t, v.Drain("x", true))
	must(t, v.ResizeLUN(lunA, size+extents.Size, size+2*extents.Size))
	if got := at(); got[4] != y {
		t.Errorf("with capacity drained, it lies in %v", got)
	}
	must(t, f.Close())
}

func TestReadTimeIsThatOfTheDisk(t *testing.T) {
	opts := withSums()
	opts.Faults = func(op, path string, _, _ int64) error {
		if op == FaultRead && strings.Contains(path, "y/") {
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
	s := openSpread(t, t.TempDir(), opts)
	for _, p := range s.Default().Places() {
		took, err := p.ReadTime()
		if slow := p.Name == "y"; err != nil || took <= 0 || (took >= 20*time.Millisecond) != slow {
			t.Errorf("%s: %v, %v", p.Name, took, err)
		}
	}
}
