package store

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/gemel-storage/gemel/hack/demo/load"
	"github.com/gemel-storage/gemel/internal/slowdisk"
)

// A thin volume whose pool is full fails writes for lack of space when they are written out, long after they have been acknowledged. A durable write
// that hears of it is refused, which is not all: what was written before is lost, and the kernel says so only once.
func TestLackOfSpaceWhileWritingOut(t *testing.T) {
	if err := slowdisk.Available(); err != nil {
		t.Skip("skipped: no slow disk here: ", err)
	}
	d, err := slowdisk.Start(t.Context(), slowdisk.Options{Dir: filepath.Join(t.TempDir(), "disk"), Size: slowdisk.MinSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(filepath.Join(d.Mount, "store"), testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Default().CreateLUN(lunA, 8<<20); err != nil {
		t.Fatal(err)
	}
	f, err := s.Default().OpenLUN(lunA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	data := make([]byte, 64<<10)
	for i := range data {
		data[i] = 0x5a
	}
	for off := int64(0); off < 1<<20; off += int64(len(data)) {
		if err := f.WriteAtDurable(data, off); err != nil {
			t.Fatal(err)
		}
	}
	layout, err := load.LayoutOf(f.f)
	if err != nil {
		t.Fatal(err)
	}
	k := slowdisk.Knobs{WriteErrors: true, NoSpace: true}
	for _, x := range layout {
		k.ErrorsAt = append(k.ErrorsAt, slowdisk.Range{Off: x.Physical, Len: x.Length})
	}
	if err := d.Set(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteAt(data, 0); err != nil { // acknowledged: the page cache has it
		t.Fatal(err)
	}
	if err := f.WriteAtDurable(data, 0); err == nil || errors.Is(err, ErrNoSpace) {
		t.Errorf("a disk that cannot write out is taken for one that is full: %v", err)
	}
	if err := d.Set(t.Context(), slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err == nil || s.Failed() == nil {
		t.Errorf("a write is lost, and the flush says: %v; the store: %v", err, s.Failed())
	}
}
