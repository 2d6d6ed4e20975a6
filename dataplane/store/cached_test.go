package store

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

func TestReadCached(t *testing.T) {
	_, f := lunFile(t, Options{})
	if f.probing == probeNever {
		t.Skip("skipped: the filesystem of this test's folder cannot tell whether a read would wait")
	}
	want := bytes.Repeat([]byte{0x5a, 0xa5}, 8192)
	if err := f.WriteAt(want, 4096); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if !f.ReadCached(got, 4096) || !bytes.Equal(got, want) {
		t.Error("what has just been written is not read from the page cache")
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	if f.ReadCached(got, size-4096) {
		t.Error("a read beyond the end is complete")
	}
	if n := testing.AllocsPerRun(200, func() {
		if !f.ReadCached(got, 4096) {
			t.Error("not in the page cache")
		}
	}); n != 0 {
		t.Errorf("%v allocations for a read of the page cache", n)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f.ReadCached(got, 4096) {
		t.Error("a closed file is read")
	}
}

// A fault may be a wait, so it is never met by who must not wait.
func TestReadCachedMeetsNoFaults(t *testing.T) {
	met := 0
	_, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultRead {
			met++
		}
		return nil
	}})
	if p := make([]byte, 4096); f.ReadCached(p, 0) || met > 0 {
		t.Errorf("read; %d faults", met)
	} else if err := f.ReadAt(p, 0); err != nil || met != 1 {
		t.Errorf("%v; %d faults", err, met)
	}
}

// A filesystem in memory has nothing to wait for, whether its kernel can tell or not.
func TestReadCachedInMemory(t *testing.T) {
	const shm = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(shm, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Skipf("skipped: %s is no tmpfs here (%v)", shm, err)
	}
	dir, err := os.MkdirTemp(shm, "gemel-test")
	if err != nil {
		t.Skip("skipped: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := openIn(t, dir)
	if f.probing == probeNever {
		t.Error("reads of a tmpfs would go to readers")
	}
	want := bytes.Repeat([]byte{7}, 4096)
	if err := f.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if got := make([]byte, 4096); !f.ReadCached(got, 0) || !bytes.Equal(got, want) {
		t.Error("not read")
	}
}

// A disk that answers nothing holds no one up who asks the page cache.
func TestReadCachedDoesNotWaitForTheDisk(t *testing.T) {
	d := testDisk(t, slowdisk.MinSize)
	f := openIn(t, filepath.Join(d.Mount, "store"))
	want := bytes.Repeat([]byte{1, 2, 3, 4}, 1<<18)
	if err := f.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	forget := func() {
		t.Helper()
		if err := unix.Fadvise(int(f.f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := d.Set(ctx, slowdisk.Knobs{Stuck: true}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	done := make(chan bool, 1)
	go func() { done <- f.ReadCached(got, 512<<10) }()
	select {
	case ok := <-done:
		if ok {
			t.Error("the page cache has what was dropped from it")
		}
	case <-ctx.Done():
		t.Error("it waits for a disk that is stuck")
	}
	if err := d.Set(t.Context(), slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	if err := f.ReadAt(got, 512<<10); err != nil || !bytes.Equal(got, want[512<<10:][:4096]) {
		t.Errorf("once the disk answers: %v", err)
	}
}

func openIn(t *testing.T, dir string) *File {
	t.Helper()
	return newLUN(t, open(t, dir, Options{}), lunA, 8<<20)
}
