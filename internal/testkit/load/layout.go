package load

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Layout says where the content of a file is on its block device, so that it can be read there
// without the filesystem. It is valid as long as the file's blocks do not move: it was filled and
// synced before.
type Layout []Extent

// Extent is one run of a file, in bytes.
type Extent struct{ Logical, Physical, Length int64 }

// FIEMAP, include/uapi/linux/fiemap.h.
const (
	fsIocFiemap = 0xc020660b
	fmHeader    = 32
	fmExtent    = 56
	fmBatch     = 64

	fiemapFlagSync     = 1
	fiemapLast         = 0x1
	fiemapUnknown      = 0x2
	fiemapDelalloc     = 0x4
	fiemapUnwritten    = 0x800
	fiemapInlineOrTail = 0x200 | 0x400
)

// LayoutOf asks the filesystem. What is preallocated and not written is left out: it reads as zero.
func LayoutOf(f *os.File) (Layout, error) {
	var l Layout
	buf := make([]byte, fmHeader+fmBatch*fmExtent)
	for at := uint64(0); ; {
		clear(buf)
		binary.NativeEndian.PutUint64(buf, at)
		binary.NativeEndian.PutUint64(buf[8:], ^uint64(0)-at)
		binary.NativeEndian.PutUint32(buf[16:], fiemapFlagSync)
		binary.NativeEndian.PutUint32(buf[24:], fmBatch)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(unsafe.SliceData(buf)))); e != 0 {
			return nil, fmt.Errorf("fiemap %s: %w", f.Name(), e)
		}
		n := int(binary.NativeEndian.Uint32(buf[20:]))
		if n == 0 {
			return l, nil
		}
		for i := range n {
			e := buf[fmHeader+i*fmExtent:]
			x := Extent{int64(binary.NativeEndian.Uint64(e)), int64(binary.NativeEndian.Uint64(e[8:])), int64(binary.NativeEndian.Uint64(e[16:]))}
			flags := binary.NativeEndian.Uint32(e[40:])
			switch {
			case flags&(fiemapUnknown|fiemapDelalloc|fiemapInlineOrTail) != 0:
				return nil, fmt.Errorf("fiemap %s: the place of %d+%d is not settled (flags %#x)", f.Name(), x.Logical, x.Length, flags)
			case flags&fiemapUnwritten == 0:
				l = append(l, x)
			}
			at = uint64(x.Logical + x.Length)
			if flags&fiemapLast != 0 {
				return l, nil
			}
		}
	}
}

// On reads the file's content from the device.
func (l Layout) On(dev io.ReaderAt) io.ReaderAt { return &mapped{l, dev} }

type mapped struct {
	l   Layout
	dev io.ReaderAt
}

func (m *mapped) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	end := off + int64(len(p))
	for _, x := range m.l {
		from, to := max(off, x.Logical), min(end, x.Logical+x.Length)
		if from >= to {
			continue
		}
		part := p[from-off : to-off]
		if n, err := m.dev.ReadAt(part, x.Physical+from-x.Logical); err != nil || n != len(part) {
			return 0, fmt.Errorf("read of the device at %d: %d bytes of %d: %w", x.Physical+from-x.Logical, n, len(part), err)
		}
	}
	return len(p), nil
}
