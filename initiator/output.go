package initiator

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// Sizes of the output path: headers and small payloads are gathered in an arena, larger payloads
// are sent from where they are. iovMax is the kernel's limit per writev.
const (
	arenaSize = 64 << 10
	copyBelow = 512
	iovMax    = 1024
)

// outBatch is a run of PDUs on their way to the socket, as one writev sees them.
type outBatch struct {
	number uint64
	arena  []byte
	open   int // arena bytes from here on are not yet in iov
	iov    []unix.Iovec
	done   int // entries of iov fully written
}

func (b *outBatch) empty() bool { return len(b.iov) == 0 && b.open == len(b.arena) }

func (b *outBatch) reset(number uint64) {
	clear(b.iov) // no references to callers' buffers are kept
	b.arena, b.iov, b.open, b.done, b.number = b.arena[:0], b.iov[:0], 0, 0, number
}

// space extends the arena by n zeroed bytes. When the arena is full a new one is begun: entries of
// iov keep the old alive.
func (b *outBatch) space(n int) []byte {
	if len(b.arena)+n > cap(b.arena) {
		b.flushArena()
		b.arena, b.open = make([]byte, 0, max(arenaSize, n)), 0
	}
	k := len(b.arena)
	b.arena = b.arena[:k+n]
	s := b.arena[k:]
	clear(s)
	return s
}

// flushArena turns what was gathered since the last payload into an iovec.
func (b *outBatch) flushArena() {
	if b.open < len(b.arena) {
		b.addIov(b.arena[b.open:])
		b.open = len(b.arena)
	}
}

func (b *outBatch) addIov(p []byte) {
	v := unix.Iovec{Base: &p[0]}
	v.SetLen(len(p))
	b.iov = append(b.iov, v)
}

// payload appends a data segment with padding and, if asked for, its digest. It reports whether p
// is referenced.
func (b *outBatch) payload(p []byte, digest bool) (referenced bool) {
	if len(p) == 0 {
		return false
	}
	if len(p) < copyBelow {
		copy(b.space(len(p)), p)
	} else {
		b.flushArena()
		b.addIov(p)
		referenced = true
	}
	pad := pdu.Pad(len(p))
	if pad > 0 {
		b.space(pad)
	}
	if digest {
		pdu.PutDigest(b.space(pdu.DigestLen), pdu.DataDigest(p))
	}
	return referenced
}

// socketWriter writes batches with writev. Its method values are made once so that a write
// allocates nothing.
type socketWriter struct {
	raw   syscall.RawConn
	batch *outBatch
	errno syscall.Errno
	full  bool // the socket buffer is full
	once  func(fd uintptr) bool
	all   func(fd uintptr) bool
}

func newSocketWriter(raw syscall.RawConn) *socketWriter {
	w := &socketWriter{raw: raw}
	w.once = func(fd uintptr) bool { w.step(fd); return true }
	w.all = func(fd uintptr) bool { w.step(fd); return !w.full }
	return w
}

// try writes what the socket takes now; done means all of it. block waits until everything is
// written.
func (w *socketWriter) try(b *outBatch) (done bool, err error) { return w.run(b, w.once) }

func (w *socketWriter) block(b *outBatch) error {
	_, err := w.run(b, w.all)
	return err
}

func (w *socketWriter) run(b *outBatch, f func(uintptr) bool) (bool, error) {
	w.batch, w.errno, w.full = b, 0, false
	if err := w.raw.Write(f); err != nil {
		return false, err
	}
	if w.errno != 0 {
		return false, w.errno
	}
	return !w.full, nil
}

func (w *socketWriter) step(fd uintptr) {
	w.full = false
	b := w.batch
	for b.done < len(b.iov) {
		v := b.iov[b.done:min(len(b.iov), b.done+iovMax)]
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
		switch errno {
		case 0:
			b.advance(uint64(n))
		case syscall.EINTR:
		case syscall.EAGAIN:
			w.full = true
			return
		default:
			w.errno = errno
			return
		}
	}
}

// advance takes n written bytes off the front.
func (b *outBatch) advance(n uint64) {
	for n > 0 {
		v := &b.iov[b.done]
		if l := v.Len; n >= l {
			n -= l
			b.done++
			continue
		}
		v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
		v.SetLen(int(v.Len - n))
		return
	}
}
