package chaos

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// Errors of the data of LUNs leave the rest of the disk alone, and a filesystem that has shut
// itself down is known.
func TestBrokenDisk(t *testing.T) {
	if unsupported != nil {
		t.Skip("skipped: ", unsupported)
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
	r := &rig{w: io.Discard, rec: newRecorder(), rot: newRot(false), slow: [2]*slowdisk.Disk{d}, disks: [2]string{d.Mount}, pair: &harness.Pair{}}
	r.pair.State[0] = filepath.Join(d.Mount, "state")
	lun, meta := filepath.Join(r.pair.State[0], "luns", "x.img"), filepath.Join(r.pair.State[0], "meta.db")
	if err := os.MkdirAll(filepath.Dir(lun), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name string) error {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(make([]byte, 1<<20), 0)
		return errors.Join(err, f.Sync(), f.Close())
	}
	if err := errors.Join(write(lun), write(meta)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k := errorKnobs(WriteErrors)
	if k.ErrorsAt, err = r.parts(0, errorsInLUNs); err != nil || len(k.ErrorsAt) == 0 {
		t.Fatal(k.ErrorsAt, err)
	}
	all, err := r.parts(0, errorsInFiles)
	if err != nil || len(all) <= len(k.ErrorsAt) || !slices.Contains(all, k.ErrorsAt[0]) {
		t.Fatal(all, err)
	}
	if err := d.Set(ctx, k); err != nil {
		t.Fatal(err)
	}
	if err := write(lun); !errors.Is(err, syscall.EIO) {
		t.Errorf("a LUN on bad blocks: %v", err)
	}
	if err := write(meta); err != nil || r.shutDown(0) {
		t.Errorf("another file: %v, and the filesystem has shut down: %v", err, r.shutDown(0))
	}
	k = errorKnobs(ReadErrors)
	if k.ErrorsAt, err = r.parts(0, errorsInLUNs); err != nil {
		t.Fatal(err)
	}
	if err := d.Set(ctx, k); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(lun); err != nil {
		t.Errorf("what the page cache has: %v", err)
	}
	r.dropCaches(0)
	if _, err := os.ReadFile(lun); !errors.Is(err, syscall.EIO) {
		t.Errorf("what only the disk has: %v", err)
	}
	if err := d.Set(ctx, errorKnobs(FullPool)); err != nil {
		t.Fatal(err)
	}
	if err := write(meta + ".new"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a pool that is full: %v", err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(d.Mount, "folder"), 0o700), syncOf(d.Mount)); err == nil {
		t.Error("a folder on a disk that takes nothing")
	}
	if err := d.Set(ctx, slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	if !r.shutDown(0) {
		t.Error("a filesystem that could not write its log goes on")
	}
	if err := d.Remount(ctx); err != nil || r.shutDown(0) {
		t.Errorf("mounted again: %v, shut down %v", err, r.shutDown(0))
	}
}

func syncOf(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
