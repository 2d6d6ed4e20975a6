package store

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// metaSpace is the least that is allocated for the metadata database.
const metaSpace = 4 << 20

// reserveMeta gives the metadata database its space ahead: at least metaSpace, and twice what it
// has. LUNs share the filesystem with it, and a change of the pair's metadata, a checkpoint's
// number or an epoch must not fail because hosts have filled the disk: a node that cannot keep them
// is out (R9, R13). bbolt makes its file longer by truncation, which then meets blocks that are
// there.
func reserveMeta(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	want := max(metaSpace, 2*st.Size())
	if err := allocate(f, unix.FALLOC_FL_KEEP_SIZE, 0, want); err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", want, path, err)
	}
	return nil
}
