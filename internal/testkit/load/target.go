package load

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/initiator"
)

// OpenFile opens a file or block device for direct I/O. A file is made if create is set.
func OpenFile(path string, create bool) (*File, error) {
	flags := os.O_RDWR | unix.O_DIRECT
	if create {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// File is a Target on a file or block device.
type File struct{ *os.File }

// Reserve allocates blocks of a file, so that writes to them change no more than their content once
// they are filled.
func (f *File) Reserve(r Region) error {
	if err := unix.Fallocate(int(f.Fd()), 0, r.Off, int64(r.Blocks)*4096); err != nil {
		return fmt.Errorf("fallocate %s: %w", f.Name(), err)
	}
	return nil
}

// Device is a Target on the userspace initiator.
type Device struct{ D *initiator.Device }

// ReadAt implements Target.
func (d Device) ReadAt(p []byte, off int64) (int, error) {
	return d.D.ReadAt(context.Background(), p, off) // bounded by the device's own deadline
}

// WriteAt implements Target.
func (d Device) WriteAt(p []byte, off int64) (int, error) {
	return d.D.WriteAt(context.Background(), p, off)
}

// Sync implements Target.
func (d Device) Sync() error { return d.D.Flush(context.Background()) }

// Close implements Target: it logs out, and gives up what does not come back within a few seconds.
func (d Device) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return d.D.Close(ctx)
}
