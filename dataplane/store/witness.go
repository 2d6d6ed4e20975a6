package store

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gemel-storage/gemel/internal/fd"
)

// witness is a second descriptor of a LUN's file, for errors that the kernel reports only once for
// each open descriptor. A durable write (RWF_DSYNC) that fails for lack of space either found no
// space for its own data, and nothing has happened; or earlier data found no space when it was
// written out, on a thin volume whose pool is full. The second means that earlier writes may be
// lost, and a later flush of the same descriptor does not report that again. A flush of the witness
// does: it is opened before the first durable write, and an error since then was not reported to it
// yet.
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

// notLost asks the witness what a lack of space means. It returns the error as it is if nothing is
// lost; else it makes the store untrusted.
func (f *image) notLost(w *os.File, noSpace error) error {
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
