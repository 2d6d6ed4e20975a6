package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Hosts fill the disk; the metadata can still be changed, and grow.
func TestMetadataHasSpaceOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: mounting a small tmpfs needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("gemel-test", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("skipped: a small tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(filepath.Join(dir, "s"), testIdent, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = filler.Close() }()
	block := make([]byte, 4096)
	for {
		if _, err := filler.Write(block); err != nil {
			break
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Bavail != 0 {
		t.Fatalf("not full: %v %v", fs.Bavail, err)
	}
	put := func(i int) error {
		return s.DB().Update(func(tx *Tx) error { return tx.Put("b", fmt.Sprint(i), make([]byte, 1000)) })
	}
	n := 0
	for ; n < 500; n++ { // half a megabyte
		if err := put(n); err != nil {
			t.Fatalf("entry %d: %v", n, err)
		}
	}
	// When even that is used up, nothing is changed any more in this life. What was there is known,
	// so the next life trusts it.
	for ; n < 20000 && err == nil; n++ {
		err = put(n)
	}
	if !errors.Is(err, syscall.ENOSPC) || s.Failed() == nil || put(0) == nil {
		t.Fatalf("%d entries: %v, failed %v", n, err, s.Failed())
	}
	if err := errors.Join(s.Close(), filler.Truncate(0)); err != nil {
		t.Fatal(err)
	}
	next := open(t, s.Dir(), Options{})
	if why, err := next.Untrusted(); why != "" || err != nil || next.DB().Older() != "" {
		t.Errorf("%q, %v, %q", why, err, next.DB().Older())
	}
	got, err := next.DB().read()
	if err != nil || len(got["b"]) != n-1 {
		t.Errorf("%d entries of %d, %v", len(got["b"]), n-1, err)
	}
}
