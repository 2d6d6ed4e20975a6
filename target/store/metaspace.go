package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// metaSpace is the least that is allocated for the metadata database.
const metaSpace = 4 << 20

// reserveMeta gives the metadata database its space ahead: at least metaSpace, and twice what it has. LUNs share the
// filesystem with it, and a change of the pair's metadata, a checkpoint's number or an epoch must not fail because
// hosts have filled the disk: a node that can not keep them is out (R9, R13). bbolt makes its file longer by truncation,
// which then meets blocks that are there.
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
	for {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, want)
		switch {
		case err == nil || errors.Is(err, unix.EOPNOTSUPP):
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("reserve %d bytes for %s: %w", want, path, err)
		}
	}
}
