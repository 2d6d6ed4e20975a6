package nodesim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/node"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// machine is what a node runs on, with what starts the node there. It outlives the node's lives.
type machine struct {
	w    *world
	i    int
	addr string
	disk *disk
	log  *slog.Logger

	mu     sync.Mutex
	cur    *life // nil: none
	dir    string
	number int
	frozen time.Time // programs are stopped until then
	stood  int64     // their clock, meanwhile
	left   int       // lives that ended without a stop
	rate   float64   // how much CPU time its programs use in a second
	used   time.Duration
	usedAt int64
}

// life is one process.
type life struct {
	m      *machine
	number int
	dir    string
	n      *node.Node
	cancel context.CancelFunc
	dead   atomic.Bool
	asked  atomic.Bool   // to stop in an orderly way
	done   chan struct{} // Run has returned
	gone   chan struct{} // the process has ended
	err    error
	began  time.Time
}

func (l *life) isDead() bool { return l.dead.Load() }

// stop asks the process to stop in an orderly way.
func (l *life) stop() {
	l.asked.Store(true)
	l.cancel()
}

// fault is what the store of this life is set to do.
func (l *life) fault(op, path string, off, length int64) error {
	if l.isDead() {
		return syscall.EIO
	}
	l.m.thaw()
	if err := l.m.disk.do(op, path, length); err != nil {
		return err
	}
	l.m.thaw()
	if l.isDead() { // what it had asked for came never: the process has ended
		return syscall.EIO
	}
	return nil
}

// thaw returns when the machine's programs are not stopped.
func (m *machine) thaw() {
	m.mu.Lock()
	wait := time.Until(m.frozen)
	m.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	}
}

// clock is CLOCK_BOOTTIME as the programs of the machine see it: while they are stopped they do not
// look.
func (m *machine) clock() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Before(m.frozen) {
		return m.stood
	}
	return now.Sub(m.w.epoch).Nanoseconds() + int64(time.Hour)*int64(m.i+1)
}

// wall is how far the wall clock is ahead: it is not set here.
func (m *machine) wall() (ns int64, ok bool) { return int64(time.Hour), true }

// freeze stops the machine's programs for a time: nothing comes or goes, the disk's answers wait,
// the clock stops and then leaps.
func (m *machine) freeze(d time.Duration) {
	at := m.clock()
	m.mu.Lock()
	m.stood, m.frozen = at, time.Now().Add(d)
	m.mu.Unlock()
}

const (
	linkAddr = "127.0.0.1:7000"
	iqnHost  = "iqn.2026-11.storage.gemel.test:"
)

var nodeAddr = [2]string{"127.0.0.1", "127.0.0.2"}

func portal(i int) string      { return nodeAddr[i] + ":3260" }
func controlAddr(i int) string { return nodeAddr[i] + ":7001" }

func (m *machine) config(l *life) node.Config {
	c := node.Config{Cluster: "test", Pair: "p0", Node: []string{"a", "b"}[m.i], StateDir: l.dir, Arbiter: "file:of the simulation", FullCopies: true,
		ISCSIListen: []string{portal(m.i)}, Portals: []string{"a=" + portal(0), "b=" + portal(1)}, ControlListen: controlAddr(m.i),
		LinkListen: linkAddr, LinkPeer: linkAddr, CheckpointIdle: node.Duration(300 * time.Millisecond), ISCSIMemory: 64 << 20,
		Logger: m.log, Faults: l.fault, Cached: func(path string, _, _ int64) bool { return !l.isDead() && m.disk.cached(path) },
		Outside: node.Outside{Clock: m.clock, Wall: m.wall, CPU: m.cpu, Boot: fmt.Sprintf("boot of %d", m.i), Arbiter: &access{m.w.record, l},
			Disk:   func(string) (func() (work.Disk, error), error) { return m.disk.counters, nil },
			Listen: func(_ context.Context, _, addr string) (net.Listener, error) { return m.w.net.listen(l, addr) },
			Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
				return m.w.net.dial(ctx, m.addr, l, addr)
			}}}
	c.CPUs = m.w.cpus
	if m.w.members {
		spread(&c, l.dir)
	}
	return c
}

// cpu is the CPU time that the machine's programs have used.
func (m *machine) cpu() time.Duration {
	now := m.clock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += time.Duration(m.rate * float64(now-m.usedAt))
	m.usedAt = now
	return m.used
}

// uses sets how much CPU time the machine's programs use in a second from now on.
func (m *machine) uses(rate float64) {
	m.cpu()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rate = rate
}

// start begins a life.
func (m *machine) start() error {
	m.mu.Lock()
	m.number++
	l := &life{m: m, number: m.number, dir: m.dir, done: make(chan struct{}), gone: make(chan struct{}), began: time.Now()}
	m.mu.Unlock()
	n, err := node.New(m.config(l))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.n, l.cancel = n, cancel
	m.mu.Lock()
	m.cur = l
	m.mu.Unlock()
	m.w.wg.Go(func() {
		l.err = n.Run(ctx)
		close(l.done)
	})
	return nil
}

// live is the latest process, nil if there has been none.
func (m *machine) live() *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cur
}

// running is the present process, nil if there is none or it has been killed.
func (m *machine) running() *life {
	if l := m.live(); l != nil && !l.isDead() {
		return l
	}
	return nil
}

func (m *machine) view() (v pair.View, ok bool) {
	l := m.running()
	if l == nil {
		return v, false
	}
	return l.n.View(), true
}

// backOff is between the end of a process and the next; it doubles up to maxBackOff while they do
// not last.
const (
	backOff    = time.Second
	maxBackOff = 10 * time.Second
)

// keep starts the node's process again whenever it has ended without a stop, as its supervisor
// would, until the history stops it.
func (m *machine) keep() {
	wait := backOff
	for {
		l := m.live()
		select {
		case <-l.done:
		case <-l.gone:
		case <-m.w.stopping:
			return
		}
		if !l.isDead() { // without a stop, for a killed one has been seen to
			if m.w.stopped() {
				return
			}
			switch {
			case errors.Is(l.err, node.ErrLeft):
				m.mu.Lock()
				m.left++
				m.mu.Unlock()
				m.w.rare("a node left")
				m.w.trace("node %s left: %v", name(m.i), l.err)
			case errors.Is(l.err, node.ErrStop) && l.asked.Load() && m.disk.hangs():
				m.w.rare("a stop that its disk held up")
				m.w.trace("node %s: %v", name(m.i), l.err)
			case l.err != nil || !l.asked.Load():
				m.w.fail("node %s ended without a stop, with %v", name(m.i), l.err)
				return
			}
			m.w.end(m, l)
		}
		if time.Since(l.began) > 3*maxBackOff {
			wait = backOff
		}
		for again := false; ; again = true {
			time.Sleep(wait)
			wait = min(2*wait, maxBackOff)
			if m.w.stopped() {
				return
			}
			err := m.start()
			if err == nil {
				break
			}
			m.w.trace("node %s does not start: %v", name(m.i), err)
			if errors.Is(err, syscall.ENOSPC) {
				m.w.fail("node %s does not start without room for more files: %v", name(m.i), err)
				return
			}
			if again && m.w.isQuiet() {
				m.w.fail("node %s does not start: %v", name(m.i), err)
				return
			}
		}
		m.w.trace("node %s starts", name(m.i))
	}
}

func name(i int) string { return []string{"a", "b"}[i] }

// end is the end of a process, at a moment at which it executes nothing: its sockets are closed,
// and the next life has the files as they are now, while what is left of this one works on others.
// It returns false if the process has ended already: two faults may kill it at the same moment.
func (w *world) end(m *machine, l *life) bool {
	ended := false
	w.still(func() {
		if l.dead.Swap(true) {
			return
		}
		ended = true
		next := filepath.Join(w.dir, fmt.Sprintf("%s-%d", name(m.i), l.number+1))
		if err := copyTree(next, l.dir); err != nil {
			w.fail("copy of a store: %v", err)
		}
		m.mu.Lock()
		m.dir = next
		m.mu.Unlock()
	})
	if !ended {
		return false
	}
	close(l.gone)
	w.net.die(l)
	l.cancel()
	return true
}

// kill ends the process of a node if one is running. It returns whether it did.
func (w *world) kill(i int) bool {
	l := w.nodes[i].running()
	return l != nil && w.end(w.nodes[i], l)
}

// stopBound is for an orderly stop: handing over, logging hosts out, closing the store.
const stopBound = 12 * time.Second

// stopAndWait asks the process of a node for an orderly stop, if one is running, and waits for its
// end. A stop that exceeds its bound is a violation, and the process is killed; so is one that
// gives up, unless its disk does not answer. It returns whether a process was running.
func (w *world) stopAndWait(i int) bool {
	l := w.nodes[i].running()
	if l == nil {
		return false
	}
	l.stop()
	select {
	case <-l.done:
		if l.err != nil && !l.isDead() && !errors.Is(l.err, node.ErrLeft) && !l.m.disk.hangs() {
			w.fail("node %s: an orderly stop ends with %v", name(i), l.err)
		}
	case <-time.After(stopBound):
		w.fail("node %s: an orderly stop has not ended after %v", name(i), stopBound)
		w.end(w.nodes[i], l)
	}
	return true
}

// copyTree copies a folder with its sparse files.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dest := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(dest, 0o700)
		}
		return copyFile(dest, path)
	})
}

func copyFile(to, from string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_RDWR|os.O_TRUNC, info.Mode())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if err := copyBirth(dst, src); err != nil {
		return err
	}
	if err := dst.Truncate(info.Size()); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for off := int64(0); ; {
		data, err := unix.Seek(int(src.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for off = data; off < hole; {
			n, err := src.ReadAt(buf[:min(int64(len(buf)), hole-off)], off)
			if n == 0 {
				return err
			}
			if _, err := dst.WriteAt(buf[:n], off); err != nil {
				return err
			}
			off += int64(n)
		}
	}
}

// copyBirth copies what an image says of when it was made, if it does.
func copyBirth(to, from *os.File) error {
	const attr = "user.gemel.born"
	var born [32]byte
	n, err := unix.Fgetxattr(int(from.Fd()), attr, born[:])
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err == nil {
		err = unix.Fsetxattr(int(to.Fd()), attr, born[:n], 0)
	}
	return err
}
