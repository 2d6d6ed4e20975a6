package store

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// A thin volume whose pool is full fails writes for lack of space when they are written out, long
// after they have been acknowledged. A durable write that hears of it is refused, which is not all:
// what was written before is lost, and the kernel says so only once.
func TestLackOfSpaceWhileWritingOut(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	s, err := Open(filepath.Join(d.Mount, "store"), testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := newLUN(t, s, lunA, 8<<20)
	data := make([]byte, 64<<10)
	for i := range data {
		data[i] = 0x5a
	}
	for off := int64(0); off < 1<<20; off += int64(len(data)) {
		if err := f.WriteAtDurable(data, off); err != nil {
			t.Fatal(err)
		}
	}
	k := slowdisk.Knobs{WriteErrors: true, NoSpace: true, ErrorsAt: placesOf(t, f)}
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

// The kernel keeps what it has to say of a lost write for the next one who opens the file. One
// failure of a disk costs one life, however many LUNs have lost something.
func TestLossesOfAnEarlierLife(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	dir := filepath.Join(d.Mount, "store")
	s, err := Open(dir, testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{lunA, lunB, "0f5ad2a4-52a1-4b8e-9d39-0d9f8f6f4c01"}
	data := make([]byte, 64<<10)
	var files []*File
	k := slowdisk.Knobs{WriteErrors: true}
	for i, name := range names {
		f := newLUN(t, s, name, 8<<20)
		files = append(files, f)
		data[0] = byte(i + 1)
		if err := f.WriteAtDurable(data, 0); err != nil {
			t.Fatal(err)
		}
		k.ErrorsAt = append(k.ErrorsAt, placesOf(t, f)...)
	}
	if err := d.Set(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := f.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := load.LayoutOf(f.f); err == nil { // it has the kernel write out, as it does some time anyway
			t.Fatal("the disk took what it was to refuse")
		}
	}
	if err := files[0].Sync(); err == nil || s.Failed() == nil {
		t.Fatal("a flush that fails is not noticed")
	}
	if err := d.Set(t.Context(), slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir, testIdent, Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if why, err := s.Untrusted(); err != nil || why == "" {
		t.Errorf("the store is trusted again (%v)", err)
	}
	for _, name := range names {
		f, err := s.Default().OpenLUN(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if err := f.WriteAtDurable(data, 0); err != nil {
			t.Errorf("LUN %s: a durable write of the next life: %v", name, err)
		}
		if err := f.Sync(); err != nil || s.Failed() != nil {
			t.Errorf("LUN %s: a flush of the next life: %v", name, err)
		}
	}
}

// testDisk is a disk of so many bytes, or a reason to skip the test.
func testDisk(t *testing.T, size int64) *slowdisk.Disk {
	t.Helper()
	if err := slowdisk.Available(); err != nil {
		t.Skip("skipped: no slow disk here: ", err)
	}
	d, err := slowdisk.Start(t.Context(), slowdisk.Options{Dir: filepath.Join(t.TempDir(), "disk"), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// newLUN is a new LUN of so many bytes, opened.
func newLUN(t *testing.T, s *Store, name string, size int64) *File {
	t.Helper()
	if err := s.Default().CreateLUN(name, size, NoBirth); err != nil {
		t.Fatal(err)
	}
	f, err := s.Default().OpenLUN(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// placesOf is where a LUN's data is on the disk.
func placesOf(t *testing.T, f *File) (places []slowdisk.Range) {
	t.Helper()
	layout, err := load.LayoutOf(f.f)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range layout {
		places = append(places, slowdisk.Range{Off: x.Physical, Len: x.Length})
	}
	return places
}
