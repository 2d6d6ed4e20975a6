package store

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

// What is written after a snapshot takes space for what it is, and not for what is around it. Files
// of a version that did not see to it are seen to when they are opened.
func TestWritesAfterASnapshotReserveLittle(t *testing.T) {
	const size, writes, apart = 16 << 20, 64, 256 << 10
	for _, name := range []string{"new", "of an earlier version"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, reflinked.Dir(t, 512<<20), Options{})
			lun, snap := pairOf(t, s, size)
			if name != "new" {
				must(t, lun.control(func(fd int) error {
					x := fsxattr{flags: flagCowExtSize, cowExtSize: 128 << 10}
					return xattr(fd, fsSetXattr, &x)
				}))
				must(t, lun.Close())
				var err error
				lun, err = s.Default().OpenLUN(lunA)
				must(t, err)
				defer lun.Close()
			}
			must(t, lun.WriteAt(content(1, size), 0))
			must(t, lun.Sync())
			x, err := lun.CopyTo(snap, size, false)
			must(t, err)
			must(t, x.Run(context.Background()))
			before := allocated(t, lun)
			for i := range int64(writes) {
				must(t, lun.WriteAt(content(2, 4096), i*apart))
			}
			must(t, lun.Sync())
			if more, most := allocated(t, lun)-before, int64(writes*4096*2); more > most {
				t.Errorf("%d writes of 4 KiB made the LUN take %d KiB more, %d expected at most", writes, more>>10, most>>10)
			}
		})
	}
}

// allocated is what a file takes of its filesystem, in bytes, with what is reserved for it.
func allocated(t testing.TB, f *File) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, f.control(func(fd int) error { return unix.Fstat(fd, &st) }))
	return st.Blocks * 512
}
