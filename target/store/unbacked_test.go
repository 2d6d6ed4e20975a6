package store

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUnbacked(t *testing.T) {
	_, f := lunFile(t, Options{})
	expect := func(what string, off, length, want int64) {
		t.Helper()
		if got, err := f.Unbacked(off, length); err != nil || got != want {
			t.Errorf("%s at %d+%d: %d %v, want %d", what, off, length, got, err, want)
		}
	}
	expect("a new LUN", 0, 8<<20, 8<<20)
	expect("whole blocks of it", 512, 1024, 4096)
	expect("nothing", 4096, 0, 0)
	if err := f.WriteAt(bytes.Repeat([]byte{1}, 1<<20), 1<<20); err != nil {
		t.Fatal(err)
	}
	expect("written, not yet flushed", 0, 8<<20, 7<<20)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	expect("written", 0, 8<<20, 7<<20)
	expect("inside", 1<<20, 1<<20, 0)
	expect("across its end", 2<<20-4096, 8192, 4096)
	if err := f.Discard(1<<20+65536, 65536); err != nil {
		t.Fatal(err)
	}
	expect("with a hole", 1<<20, 1<<20, 65536)
	for _, c := range [][2]int64{{-1, 10}, {0, -1}, {8 << 20, 1}, {1 << 62, 1 << 62}} {
		if _, err := f.Unbacked(c[0], c[1]); !errors.Is(err, ErrRange) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// More extents than one call of the kernel returns, against the list of what was written.
func TestUnbackedOfManyExtents(t *testing.T) {
	_, f := lunFile(t, Options{})
	const block = 4096
	written := make([]bool, 8<<20/block)
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 700 {
		i := rnd.IntN(len(written))
		if err := f.WriteAt(bytes.Repeat([]byte{2}, block), int64(i)*block); err != nil {
			t.Fatal(err)
		}
		written[i] = true
	}
	for range 50 {
		first := rnd.IntN(len(written))
		n := rnd.IntN(len(written)-first) + 1
		want := int64(0)
		for _, w := range written[first : first+n] {
			if !w {
				want += block
			}
		}
		if got, err := f.Unbacked(int64(first)*block, int64(n)*block); err != nil || got != want {
			t.Fatalf("blocks %d+%d: %d %v, want %d", first, n, got, err, want)
		}
		if got, err := f.holes(int64(first)*block, int64(first+n)*block, block); err != nil || got != want {
			t.Fatalf("by holes, blocks %d+%d: %d %v, want %d", first, n, got, err, want)
		}
	}
}

// xfsDir is a folder on XFS with reflink: the temporary one, or a loop mount where this process may make one.
func xfsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if ok, err := probeReflink(dir); err != nil {
		t.Fatal(err)
	} else if ok {
		return dir
	}
	if os.Getuid() != 0 {
		t.Skip("the temporary folder can not share extents, and only root mounts a filesystem that can")
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("the temporary folder can not share extents, and mkfs.xfs is missing (Debian package xfsprogs)")
	}
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	if err := errors.Join(os.Mkdir(mount, 0o700), os.WriteFile(image, nil, 0o600), os.Truncate(image, 512<<20)); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command("mkfs.xfs", "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v: %s", err, b)
	}
	if b, err := exec.Command("mount", "-o", "loop", image, mount).CombinedOutput(); err != nil {
		t.Skipf("the temporary folder can not share extents, and this machine mounts no XFS: %v: %s", err, b)
	}
	t.Cleanup(func() {
		if b, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, b)
		}
	})
	return filepath.Join(mount, "store")
}

func TestUnbackedOfSharedExtents(t *testing.T) {
	s := open(t, xfsDir(t), Options{})
	if !s.Reflink() {
		t.Fatal("no reflink")
	}
	if err := s.CreateLUN(lunA, 8<<20); err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenLUN(lunA)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := bytes.Repeat([]byte{1}, 1<<20)
	expect := func(what string, off, length, want int64) {
		t.Helper()
		if got, err := f.Unbacked(off, length); err != nil || got != want {
			t.Errorf("%s at %d+%d: %d %v, want %d", what, off, length, got, err, want)
		}
	}
	if err := errors.Join(f.WriteAt(p, 0), f.WriteAt(p, 4<<20)); err != nil {
		t.Fatal(err)
	}
	expect("not yet flushed", 0, 8<<20, 6<<20)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	expect("of its own", 0, 8<<20, 6<<20)
	if err := s.Snapshot(context.Background(), lunA, snapA, nil); err != nil {
		t.Fatal(err)
	}
	expect("shared with a snapshot", 0, 8<<20, 8<<20)
	if err := errors.Join(f.WriteAt(p[:65536], 65536), f.Sync()); err != nil {
		t.Fatal(err)
	}
	expect("copied in part", 0, 1<<20, 1<<20-65536)
	expect("the copied part", 65536, 65536, 0)
	if err := s.DeleteSnapshot(snapA); err != nil {
		t.Fatal(err)
	}
	// XFS frees in the background what was deleted; sync waits for it, and its count is right some time after.
	limit := time.Now().Add(20 * time.Second)
	for got := int64(-1); got != 6<<20; {
		if err := f.control(unix.Syncfs); err != nil {
			t.Fatal(err)
		}
		if got, err = f.Unbacked(0, 8<<20); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(limit) {
			t.Fatalf("alone again, %d bytes are still shared", got-6<<20)
		}
	}
}
