package store

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A write to a shared extent goes elsewhere, and XFS reserves the 128 KiB around it for the next
// ones. Blocks that are written at random, as those of a LUN are, get a whole reservation each: a
// thin image takes up to all of its size until XFS looks for what was not used, half an hour later,
// and such writes take nearly twice as long. So images reserve one block (docs/decisions/0073).

// fsxattr is struct fsxattr of linux/fs.h: sizes in bytes.
type fsxattr struct {
	flags, extSize, extents, project, cowExtSize uint32
	_                                            [8]byte
}

const (
	fsGetXattr     = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr     = 0x401c5820 // FS_IOC_FSSETXATTR
	flagCowExtSize = 0x00010000 // FS_XFLAG_COWEXTSIZE
)

// reserveOneBlock sets it. A filesystem that has no such attribute reserves nothing, and one that
// refuses it is slower: neither is a reason not to serve a LUN.
func (f *image) reserveOneBlock() {
	_ = f.control(func(fd int) error {
		var fs unix.Statfs_t
		var x fsxattr
		if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.XFS_SUPER_MAGIC {
			return err
		}
		if err := xattr(fd, fsGetXattr, &x); err != nil || x.cowExtSize == uint32(fs.Bsize) {
			return err
		}
		x.flags, x.cowExtSize = x.flags|flagCowExtSize, uint32(fs.Bsize)
		return xattr(fd, fsSetXattr, &x)
	})
}

func xattr(fd int, op uintptr, x *fsxattr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), op, uintptr(unsafe.Pointer(x))); errno != 0 {
		return errno
	}
	return nil
}
