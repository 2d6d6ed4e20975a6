// Package reflinked gives tests a folder of a filesystem that shares extents.
package reflinked

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/loopdev"
)

// Dir is such a folder, of a new XFS of so many bytes, for as long as the test takes. Where this
// machine cannot mount one the test is skipped, with the reason.
func Dir(t testing.TB, size int64) string {
	t.Helper()
	if err := loopdev.CanMountXFS(); err != nil {
		t.Skipf("no filesystem that shares extents: %v", err)
	}
	top := t.TempDir()
	dir := filepath.Join(top, "xfs")
	if err := loopdev.MountXFS(t.Context(), filepath.Join(top, "image"), dir, size, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}
