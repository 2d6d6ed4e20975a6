// Package fd is what is done to files by their descriptors, and to their folders.
package fd

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Control runs fn with a descriptor, which stays open meanwhile, and repeats it when a signal cut
// it short. os.ErrClosed: the file is closed, and fn did not run.
func Control(raw syscall.RawConn, fn func(fd int) error) error {
	for {
		var err error
		if cerr := Raw(raw, func(fd uintptr) { err = fn(int(fd)) }); cerr != nil {
			return cerr
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Raw is raw.Control of a file. That fails for one reason only, and its error can be told from
// others only by its text.
func Raw(raw syscall.RawConn, fn func(fd uintptr)) error {
	if err := raw.Control(fn); err != nil {
		return fmt.Errorf("%w: %w", os.ErrClosed, err)
	}
	return nil
}

// With is Control for a file.
func With(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return Control(raw, fn)
}

// Datasync makes the data of a file durable, and what is needed to read them back.
func Datasync(f *os.File) error { return With(f, unix.Fdatasync) }

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
