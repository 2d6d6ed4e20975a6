package slowdisk

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	fileNode  = 2    // node id of the file; the root has fuse.FUSE_ROOT_ID
	blockSize = 4096 // what statfs reports: the loop driver takes its discard granularity from it
)

// fileName is the file in the FUSE filesystem: losetup -a shows whose it is.
func fileName(server int) string { return "slowdisk-" + strconv.Itoa(server) }

// forever is how long the kernel may keep attributes: nothing changes them.
const forever = 365 * 24 * time.Hour

// files is the filesystem: a root with one file, the disk.
type files struct {
	fuse.RawFileSystem
	gate  *gate
	image *os.File
	size  uint64
}

func (f *files) String() string { return "slowdisk" }

func (f *files) attr(node uint64, a *fuse.Attr) fuse.Status {
	switch node {
	case fuse.FUSE_ROOT_ID:
		a.Ino, a.Mode, a.Nlink = fuse.FUSE_ROOT_ID, syscall.S_IFDIR|0o500, 2
	case fileNode:
		a.Ino, a.Mode, a.Nlink, a.Blksize = fileNode, syscall.S_IFREG|0o600, 1, blockSize
		a.Size, a.Blocks = f.size, f.size/512
	default:
		return fuse.ENOENT
	}
	return fuse.OK
}

func (f *files) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if h.NodeId != fuse.FUSE_ROOT_ID || name != fileName(os.Getpid()) {
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
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES | fuse.FOPEN_NOFLUSH
	return fuse.OK
}

func (f *files) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = blockSize, blockSize, 255
	out.Blocks = f.size / blockSize
	return fuse.OK
}

// inside says that a range lies within the disk, which does not grow.
func (f *files) inside(node, off, n uint64) bool {
	return node == fileNode && n <= f.size && off <= f.size-n
}

func (f *files) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if !f.inside(in.NodeId, in.Offset, uint64(len(buf))) {
		return nil, fuse.EINVAL
	}
	errno := f.gate.serve(read, in.Offset, len(buf), func() syscall.Errno {
		_, err := f.image.ReadAt(buf, int64(in.Offset))
		return errnoOf(err)
	})
	if errno != 0 {
		return nil, fuse.Status(errno)
	}
	return fuse.ReadResultData(buf), fuse.OK
}

func (f *files) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if !f.inside(in.NodeId, in.Offset, uint64(len(data))) {
		return 0, fuse.EINVAL
	}
	errno := f.gate.serve(write, in.Offset, len(data), func() syscall.Errno {
		_, err := f.image.WriteAt(data, int64(in.Offset))
		return errnoOf(err)
	})
	if errno != 0 {
		return 0, fuse.Status(errno)
	}
	return uint32(len(data)), fuse.OK
}

// Fsync does not flush the sparse file: it is not needed after a crash of the machine, and its disk
// is not to be measured.
func (f *files) Fsync(_ <-chan struct{}, _ *fuse.FsyncIn) fuse.Status {
	return fuse.Status(f.gate.flush())
}

// Fallocate is a discard or a write of zeroes; either leaves zeroes. mkfs.xfs relies on them.
func (f *files) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	mode := in.Mode &^ unix.FALLOC_FL_KEEP_SIZE
	if mode != unix.FALLOC_FL_PUNCH_HOLE && mode != unix.FALLOC_FL_ZERO_RANGE {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	if !f.inside(in.NodeId, in.Offset, in.Length) {
		return fuse.Status(syscall.ENOSPC)
	}
	return fuse.Status(f.gate.serve(write, in.Offset, 0, func() syscall.Errno {
		return errnoOf(unix.Fallocate(int(f.image.Fd()), mode|unix.FALLOC_FL_KEEP_SIZE, int64(in.Offset), int64(in.Length)))
	}))
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return errno
	}
	return syscall.EIO
}
