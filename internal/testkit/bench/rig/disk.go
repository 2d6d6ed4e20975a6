package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/bench/load"
)

// DiskName is the system of what Disk serves.
const DiskName = "disk"

// Disk is the LUN's file at node a, read by threads of the load generator with pread: what the
// disk, the filesystem and the page cache give with no target and no network in between. It can
// only be read.
func (l *LUN) Disk() (*Served, error) {
	d, err := newDisk(filepath.Join(l.pair.State[0], "volumes", "default", "luns", l.UUID+".img"))
	if err != nil {
		return nil, err
	}
	return &Served{Device: d, Name: DiskName, Flags: fmt.Sprintf("pread by %d threads", diskThreads)}, nil
}

// diskThreads is how many reads are at the disk at once: as many as any of the cold cases has in
// flight.
const diskThreads = 32

var errOnlyRead = errors.New("this device can only be read")

// disk is a file as a load.Device.
type disk struct {
	f    *os.File
	size int64
	todo chan *initiator.IO
	wg   sync.WaitGroup
}

func newDisk(path string) (*disk, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &disk{f: f, size: st.Size(), todo: make(chan *initiator.IO, 1024)}
	for range diskThreads {
		d.wg.Go(func() {
			for io := range d.todo {
				_, io.Err = d.f.ReadAt(io.Buf, io.Off)
				io.Done(io)
			}
		})
	}
	return d, nil
}

var _ load.Device = (*disk)(nil)

func (d *disk) Submit(io *initiator.IO) error {
	if io.Op != initiator.OpRead {
		return errOnlyRead
	}
	d.todo <- io
	return nil
}

func (d *disk) Size() int64                 { return d.size }
func (d *disk) Flush(context.Context) error { return nil }

func (d *disk) ReadAt(_ context.Context, p []byte, off int64) (int, error) { return d.f.ReadAt(p, off) }

func (d *disk) WriteAt(context.Context, []byte, int64) (int, error) { return 0, errOnlyRead }

// Close ends the threads; nothing is submitted after it.
func (d *disk) Close(context.Context) error {
	close(d.todo)
	d.wg.Wait()
	return d.f.Close()
}
