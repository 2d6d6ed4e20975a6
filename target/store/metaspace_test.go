package store

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Hosts fill the disk; the metadata can still be changed, and grow.
func TestMetadataHasSpaceOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: mounting a small tmpfs needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("gemel-test", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("skipped: a small tmpfs can not be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(filepath.Join(dir, "s"), Identity{Cluster: "c", Pair: "p", Node: "a"}, Options{})
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
	for i := range 500 { // half a megabyte
		if err := s.DB().Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			return b.Put(fmt.Append(nil, i), make([]byte, 1000))
		}); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}
