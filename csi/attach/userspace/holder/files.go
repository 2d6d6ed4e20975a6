package holder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/initiator"
)

// files is the filesystem: a root with one file, the volume. Signals do not cancel requests,
// because their buffers belong to the initiator until they end; its deadline bounds them.
type files struct {
	fuse.RawFileSystem
	dev      device
	legs     legs
	name     string
	inode    uint64
	readOnly bool
	log      *slog.Logger
	server   *fuse.Server
	size     atomic.Int64

	dark atomic.Bool // a request has failed without a working path

	reads, writes, zeroes, flushes, errors atomic.Uint64
}

// fileNode is the file's FUSE node ID; the root has fuse.FUSE_ROOT_ID.
const fileNode = 2

// forever is how long the kernel may cache attributes: only a resize changes them, and it notifies
// the kernel.
const forever = 365 * 24 * time.Hour

// blockSize is what statfs reports; the loop driver takes its discard granularity from it.
const blockSize = 4096

func (f *files) String() string { return "gemel" }

func (f *files) attr(node uint64, a *fuse.Attr) fuse.Status {
	switch node {
	case fuse.FUSE_ROOT_ID:
		a.Ino, a.Mode, a.Nlink = fuse.FUSE_ROOT_ID, syscall.S_IFDIR|0o500, 2
	case fileNode:
		a.Ino, a.Mode, a.Nlink, a.Blksize = f.inode, syscall.S_IFREG|0o600, 1, blockSize
		a.Size = uint64(f.size.Load())
		a.Blocks = a.Size / 512
	default:
		return fuse.ENOENT
	}
	return fuse.OK
}

func (f *files) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if h.NodeId != fuse.FUSE_ROOT_ID || name != f.name {
		return fuse.ENOENT
	}
	out.NodeId = fileNode
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	return f.attr(fileNode, &out.Attr)
}

func (f *files) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(forever)
	return f.attr(in.NodeId, &out.Attr)
}

func (f *files) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId != fileNode {
		return fuse.ENOENT
	}
	if f.readOnly && in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return fuse.EROFS
	}
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES | fuse.FOPEN_NOFLUSH
	return fuse.OK
}

func (f *files) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = blockSize, blockSize, 255
	out.Blocks = uint64(f.size.Load()) / blockSize
	return fuse.OK
}

func (f *files) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f.reads.Add(1)
	if in.NodeId != fileNode || in.Offset > uint64(f.size.Load()) {
		return nil, fuse.EINVAL
	}
	if f.lost() {
		return nil, f.status("read", initiator.ErrNoPath)
	}
	n := min(int64(len(buf)), f.size.Load()-int64(in.Offset))
	if _, err := f.dev.ReadAt(context.Background(), buf[:n], int64(in.Offset)); err != nil {
		return nil, f.status("read", err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (f *files) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f.writes.Add(1)
	if in.NodeId != fileNode || in.Offset > uint64(f.size.Load()) {
		return 0, fuse.EINVAL
	}
	if f.readOnly {
		return 0, fuse.EROFS
	}
	if f.lost() {
		return 0, f.status("write", initiator.ErrNoPath)
	}
	if _, err := f.dev.WriteAt(context.Background(), data, int64(in.Offset)); err != nil {
		return 0, f.status("write", err)
	}
	return uint32(len(data)), fuse.OK
}

func (f *files) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f.flushes.Add(1)
	if in.NodeId != fileNode || f.readOnly {
		return fuse.OK
	}
	if f.lost() {
		return f.status("flush", initiator.ErrNoPath)
	}
	return f.status("flush", f.dev.Flush(context.Background()))
}

// Fallocate zeroes, in both modes. The loop driver sends FALLOC_FL_ZERO_RANGE for "write zeroes,
// keep it allocated" and FALLOC_FL_PUNCH_HOLE for discard as well as for "write zeroes, may
// deallocate"; mkfs.xfs relies on the zeroes. So a hole is WRITE SAME with UNMAP rather than the
// UNMAP command, which need not zero (SBC-3 §4.7.3).
func (f *files) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	f.zeroes.Add(1)
	if in.NodeId != fileNode {
		return fuse.EINVAL
	}
	if f.readOnly {
		return fuse.EROFS
	}
	size := uint64(f.size.Load())
	mode := in.Mode &^ unix.FALLOC_FL_KEEP_SIZE
	switch {
	case mode != unix.FALLOC_FL_PUNCH_HOLE && mode != unix.FALLOC_FL_ZERO_RANGE:
		return fuse.Status(syscall.EOPNOTSUPP)
	case in.Length > size || in.Offset > size-in.Length:
		return fuse.Status(syscall.ENOSPC) // a block device does not grow
	}
	if f.lost() {
		return f.status("zero", initiator.ErrNoPath)
	}
	return f.status("zero", f.dev.WriteZeroes(context.Background(), int64(in.Offset), int64(in.Length), mode == unix.FALLOC_FL_PUNCH_HOLE))
}

// lost reports whether a request has failed without a path and there still is none. The next
// requests then fail at once, as with dm-multipath's no_path_retry: a filesystem sends several
// requests one after the other before it shuts down, and each would wait for the whole deadline. A
// working path to every LUN ends this state. If the target reports that the LUN is not mapped, the
// initiator itself fails requests at once, with that reason.
func (f *files) lost() bool {
	if !f.dark.Load() || f.legs.noUnit() {
		return false
	}
	if f.legs.served() {
		f.dark.Store(false)
		return false
	}
	return true
}

// status converts an error to one of the block layer, and counts it.
func (f *files) status(op string, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	n := f.errors.Add(1)
	if n&(n-1) == 0 { // at each power of two, so that a dead device does not fill the disk with log lines
		f.log.Error("I/O error", "op", op, "count", n, "err", err)
	}
	if errors.Is(err, initiator.ErrNoPath) {
		f.dark.Store(true)
	}
	switch {
	case errors.Is(err, initiator.ErrNoSpace):
		return fuse.Status(syscall.ENOSPC)
	case errors.Is(err, initiator.ErrUnaligned), errors.Is(err, initiator.ErrBeyondEnd):
		return fuse.EINVAL
	case errors.Is(err, initiator.ErrDataProtect):
		return fuse.EROFS
	case errors.Is(err, initiator.ErrReservationConflict):
		return fuse.Status(syscall.EBADE) // as the kernel's SCSI layer does
	}
	return fuse.EIO
}

// resize reads the size of the LUN and invalidates the kernel's cached size.
func (f *files) resize(ctx context.Context) (int64, error) {
	size, err := f.dev.Rescan(ctx)
	if size < f.size.Load() {
		if err == nil {
			err = errors.New("the LUN has shrunk")
		}
		return f.size.Load(), err
	}
	f.size.Store(size)
	if st := f.server.InodeNotify(fileNode, -1, 0); !st.Ok() && st != fuse.ENOENT {
		err = errors.Join(err, fmt.Errorf("fuse: invalidate the size: %v", st))
	}
	return size, err
}
