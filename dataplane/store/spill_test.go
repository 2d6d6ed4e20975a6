package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// A member that is full fills no LUN as long as another one has room; when none has any, writes
// find no space, and nothing else is wrong.
func TestFullMemberSpills(t *testing.T) {
	a, b := testDisk(t, slowdisk.MinSize), testDisk(t, slowdisk.MinSize+192<<20)
	opts := withSums()
	opts.Members = []MemberDir{{"p", "a", filepath.Join(a.Mount, "v")}, {"p", "b", filepath.Join(b.Mount, "v")}}
	s, err := Open(t.TempDir(), testIdent, opts)
	must(t, err)
	defer func() { must(t, s.Close()) }()
	v, err := s.Volume("p")
	must(t, err)
	_, free, err := v.Capacity()
	must(t, err)
	const size, step = 2 << 30, 1 << 20
	must(t, v.CreateLUN(lunA, size, NoBirth))
	f, err := v.OpenLUN(lunA)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	chunk := func(off int64) []byte {
		p := make([]byte, step)
		for i := range p {
			p[i] = byte(off>>20) ^ byte(i>>9) | 1
		}
		return p
	}
	off := int64(0)
	for ; off < size; off += step {
		if off/step%3 == 2 {
			err = f.WriteAtDurable(chunk(off), off)
		} else {
			err = f.WriteAt(chunk(off), off)
		}
		if err != nil {
			break
		}
	}
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("after %d MiB of %d: %v", off>>20, free>>20, err)
	}
	must(t, s.Failed())
	if off < free*9/10 {
		t.Errorf("no space after %d MiB, of %d that were free", off>>20, free>>20)
	}
	if n := f.CountExtents(); n[3] < n[2]+int64(32) {
		t.Errorf("%d extents in a, %d in b, which is larger", n[2], n[3])
	}
	for at := int64(0); at < off; at += step {
		got := make([]byte, step)
		must(t, f.ReadAt(got, at))
		if string(got) != string(chunk(at)) {
			t.Fatalf("what was written at %d MiB is not there", at>>20)
		}
	}
	// What is freed can be used again.
	must(t, f.Discard(0, 16*extents.Size))
	must(t, f.Sync())
	must(t, f.WriteAt(chunk(off), off))
}

// A drain that cannot be recorded for lack of space is refused as that, and changes nothing.
func TestDrainOnAFullVolume(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	s := openSpread(t, d.Mount, withSums())
	v := s.Default()
	filler := filepath.Join(d.Mount, "filler")
	f, err := os.Create(filler)
	must(t, err)
	for p := make([]byte, 1<<20); err == nil || len(p) > 4096; {
		if _, err = f.Write(p); err != nil && len(p) > 4096 {
			p, err = p[:len(p)/2], nil
		}
	}
	must(t, f.Close())
	drained := func() bool { return slices.ContainsFunc(v.Places(), func(p Place) bool { return p.Draining }) }
	if err := v.Drain("x", true); !errors.Is(err, ErrNoSpace) || drained() || s.Failed() != nil {
		t.Errorf("%v, drained %v, %v", err, drained(), s.Failed())
	}
	must(t, os.Remove(filler))
	must(t, v.Drain("x", true))
	if !drained() {
		t.Error("nothing is drained")
	}
}
