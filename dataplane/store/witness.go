package store

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gemel-storage/gemel/internal/fd"
)

// witness is a second descriptor of a LUN's file, for what the kernel says only once. A durable write (RWF_DSYNC) that fails for lack of space has
// found none, and nothing has happened; or what it was to write out did not find any, on a thin volume whose pool is full. The second means that
// earlier writes may be lost, and since the descriptor has been told, a flush of it says no more of that. Every descriptor that was open is
// told once: the witness has not been. It is opened before the first durable write, and is told of all that nobody had been told of by then.
type witness struct {
	mu     sync.Mutex
	f      *os.File
	tried  bool
	closed bool
}

// of returns the descriptor; nil if there is none to be had.
func (w *witness) of(f *os.File) *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tried || w.closed {
		return w.f
	}
	w.tried = true
	raw, err := f.SyscallConn()
	if err == nil {
		err = fd.Control(raw, func(fd int) (err error) { // by its descriptor: another file may have its name by now
			w.f, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
			return err
		})
	}
	if err != nil {
		w.f = nil
	}
	return w.f
}

func (w *witness) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.f == nil {
		return nil
	}
	f := w.f
	w.f = nil
	return f.Close()
}

// notLost asks the witness what a lack of space means. It returns the error as it is if nothing is lost; else it makes the store untrusted.
func (f *File) notLost(w *os.File, noSpace error) error {
	err := fd.Datasync(w)
	switch {
	case err == nil:
		return noSpace
	case errors.Is(err, os.ErrClosed): // so is the LUN
		return err
	}
	err = fmt.Errorf("%w: earlier writes may be lost: %s", ErrMedia, err) // not as a lack of space, which leaves the store trusted
	f.s.fail(fmt.Errorf("write %s: %w", f.path, err))
	return err
}
