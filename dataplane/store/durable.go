package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// Durable writes that meet share one flush. One of them at a time leads; those that come meanwhile
// write into the page cache and join the next leader.
//
// A leader alone writes with RWF_DSYNC, which writes its own blocks, then has the journal written
// and the disk's cache emptied. With others it flushes the file, if nothing else of the file is
// dirty: all writes of a node without its partner are durable. Else that would write what nobody
// waits for, for long: so the leader waits until the blocks of those that have joined are at the
// disk, and then does its own with RWF_DSYNC, which covers theirs.
type durables struct {
	mu      sync.Mutex
	running bool
	next    *Durable   // leads next
	joined  []*Durable // whom the next leader takes along
}

// Durable is a write that is to be durable (File.WriteDurable).
type Durable struct {
	P   []byte
	Off int64
	Tag any // the caller's
	By  Ender

	Err error // how it has ended

	lead chan struct{} // it leads now
	put  *image        // where it is in the page cache, and joins a leader
}

// Ender hears of durable writes that have ended together.
type Ender interface{ Ended(list []*Durable) }

// WriteDurable writes d.P so that it and what is needed to read it back are on stable storage, and
// then tells d.By, from this goroutine or another one, which may be after WriteDurable has
// returned. It says nothing of earlier writes, unless they are lost: then the store has failed.
// Writes that come together share a flush of the disk, and are told together. Errors are those of
// WriteAt.
func (f *File) WriteDurable(d *Durable) {
	d.Err = f.changeBy(opDurable, d.P, d.Off, int64(len(d.P)), func() error { return f.writeDurableRaw(d) })
	if d.Err != nil || d.put == nil {
		d.By.Ended([]*Durable{d})
		return
	}
	d.put.join(d)
}

// join has a leader make a write durable that is in the page cache.
func (f *image) join(d *Durable) {
	g := &f.durables
	g.mu.Lock()
	if g.running {
		g.joined = append(g.joined, d)
		g.mu.Unlock()
		return
	}
	g.running = true // the one that it was to join has ended
	g.mu.Unlock()
	f.leadJoined([]*Durable{d})
}

// WriteAtDurable is WriteDurable that waits.
func (f *File) WriteAtDurable(p []byte, off int64) error {
	done := make(single, 1)
	f.WriteDurable(&Durable{P: p, Off: off, By: done})
	return <-done
}

type single chan error

func (c single) Ended(list []*Durable) {
	for _, d := range list {
		c <- d.Err
	}
}

func (f *image) writeDurableRaw(d *Durable) error {
	w := f.witness.of(f.f)
	if w == nil {
		if err := f.writeRaw(d.P, d.Off); err != nil {
			return err
		}
		return f.Sync()
	}
	if err := f.beforeWrite(FaultWrite, d.Off, int64(len(d.P))); err != nil {
		return err
	}
	g := &f.durables
	g.mu.Lock()
	switch {
	case !g.running:
		g.running = true
		g.mu.Unlock()
	case g.next == nil:
		d.lead = make(chan struct{})
		g.next = d
		g.mu.Unlock()
		<-d.lead
	default:
		g.mu.Unlock()
		d.put = f
		return f.durableError(f.put(d.P, d.Off, 0))
	}
	return f.lead(d)
}

// writeThrough is a durable write that joins no others.
func (f *image) writeThrough(p []byte, off int64) error {
	if f.witness.of(f.f) == nil {
		if err := f.writeRaw(p, off); err != nil {
			return err
		}
		return f.Sync()
	}
	if err := f.beforeWrite(FaultWrite, off, int64(len(p))); err != nil {
		return err
	}
	return f.durableError(f.put(p, off, unix.RWF_DSYNC))
}

// lead makes durable what has joined, and a write of its own.
func (f *image) lead(d *Durable) error {
	joined := f.takeJoined()
	var err, theirs error
	if len(joined) > 0 && f.clean() {
		err = f.durableError(f.put(d.P, d.Off, 0))
		if theirs = f.Sync(); err == nil {
			err = theirs
		}
	} else {
		theirs = f.writeOutAll(joined)
		if err = f.durableError(f.put(d.P, d.Off, unix.RWF_DSYNC)); err != nil && theirs == nil && len(joined) > 0 {
			theirs = f.Sync()
		}
	}
	endAll(joined, theirs)
	f.handLead()
	return err
}

// leadJoined leads writes that are all in the page cache already.
func (f *image) leadJoined(joined []*Durable) {
	var err error
	if f.clean() {
		err = f.Sync()
	} else {
		last := joined[len(joined)-1]
		if err = f.writeOutAll(joined[:len(joined)-1]); err == nil {
			err = f.durableError(f.put(last.P, last.Off, unix.RWF_DSYNC)) // once more, for what that does beside it
		}
	}
	endAll(joined, err)
	f.handLead()
}

func (f *image) takeJoined() []*Durable {
	g := &f.durables
	g.mu.Lock()
	defer g.mu.Unlock()
	joined := g.joined
	g.joined = nil
	return joined
}

// clean reports that nothing of the file is dirty but durable writes, as far as is known.
func (f *image) clean() bool { return !f.wb.has(f) && !f.sync.busy() }

// endAll tells the outcome of writes, of those of one Ender together.
func endAll(list []*Durable, err error) {
	for _, d := range list {
		d.Err = err
	}
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].By == list[0].By {
			n++
		}
		list[0].By.Ended(list[:n])
		list = list[n:]
	}
}

// handLead gives the lead to the next one. Those who came for a leader that had begun have nobody
// to lead them: a goroutine does.
func (f *image) handLead() {
	g := &f.durables
	g.mu.Lock()
	defer g.mu.Unlock()
	switch next, joined := g.next, g.joined; {
	case next != nil:
		g.next = nil
		close(next.lead)
	case len(joined) > 0:
		g.joined = nil
		f.wb.wg.Go(func() { f.leadJoined(joined) })
	default:
		g.running = false
	}
}

// writeOutAll has the blocks of writes written to the disk, side by side, and waits for that. A
// failure is final: it says nothing of whose blocks are lost.
func (f *image) writeOutAll(list []*Durable) error {
	for _, d := range list {
		f.startOut(d.Off, int64(len(d.P)))
	}
	for _, d := range list {
		if whole, err := f.writeOut(d.Off, int64(len(d.P))); whole || err != nil {
			return err
		}
	}
	return nil
}

// put is pwritev2 of all of p.
func (f *image) put(p []byte, off int64, flags int) (err error) {
	for len(p) > 0 && err == nil {
		var n int
		cerr := fd.Raw(f.raw, func(fd uintptr) { n, err = unix.Pwritev2(int(fd), [][]byte{p}, off, flags) })
		switch {
		case cerr != nil:
			return cerr
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && n == 0:
			err = io.ErrShortWrite
		case err == nil:
			p, off = p[n:], off+int64(n)
		}
	}
	return err
}

// durableError classifies a failure of put.
func (f *image) durableError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed):
		return fmt.Errorf("write %s: %w", f.path, err)
	case noSpace(err):
		if w := f.witness.of(f.f); w != nil {
			err = f.notLost(w, err)
		}
	}
	return f.writeError("write", err)
}
