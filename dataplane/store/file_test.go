package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

func lunFile(t *testing.T, opts Options) (*Store, *File) {
	t.Helper()
	s := open(t, t.TempDir(), opts)
	return s, newLUN(t, s, lunA, 8<<20)
}

func TestFileAgainstAModel(t *testing.T) {
	_, f := lunFile(t, Options{})
	model := make([]byte, 8<<20)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		off := rnd.Int64N(8<<20-70000) &^ 511
		n := (rnd.Int64N(70000) + 512) &^ 511
		p := make([]byte, n)
		for j := range p {
			p[j] = byte(rnd.Uint32())
		}
		var err error
		switch i % 4 {
		case 0:
			err = f.WriteAt(p, off)
			copy(model[off:], p)
		case 1:
			err = f.WriteAtDurable(p, off)
			copy(model[off:], p)
		case 2:
			err = f.Discard(off, n)
			clear(model[off : off+n])
		case 3:
			err = f.Zero(off, n)
			clear(model[off : off+n])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(model))
	if err := f.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, model) {
		t.Fatal("the file differs from the model")
	}
}

func TestReadBeyondTheEnd(t *testing.T) {
	s, f := lunFile(t, Options{})
	if err := f.ReadAt(make([]byte, 1024), 8<<20-512); !errors.Is(err, ErrRange) {
		t.Fatalf("%v", err)
	}
	if s.Failed() != nil {
		t.Fatal("a bad offset failed the store")
	}
}

func TestExtentsAndAllocation(t *testing.T) {
	_, f := lunFile(t, Options{})
	if n, err := f.Allocated(); err != nil || n > 64<<10 {
		t.Fatalf("a new LUN occupies %d: %v", n, err)
	}
	if err := f.WriteAt(bytes.Repeat([]byte{1}, 1<<20), 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off, length, run int64
		data             bool
	}{
		{0, 8 << 20, 1 << 20, false},
		{1 << 20, 7 << 20, 1 << 20, true},
		{1 << 20, 4096, 4096, true},
		{2 << 20, 6 << 20, 6 << 20, false},
		{3 << 20, 512, 512, false},
	} {
		run, data, err := f.Extents(c.off, c.length)
		if err != nil || run != c.run || data != c.data {
			t.Errorf("at %d+%d: run %d data %v %v, want %d %v", c.off, c.length, run, data, err, c.run, c.data)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	full, _ := f.Allocated()
	if err := f.Discard(1<<20, 1<<20); err != nil {
		t.Fatal(err)
	}
	if n, _ := f.Allocated(); n >= full {
		t.Errorf("discard freed nothing: %d, then %d", full, n)
	}
	if run, data, err := f.Extents(0, 8<<20); err != nil || data || run != 8<<20 {
		t.Errorf("after discard: %d %v %v", run, data, err)
	}
}

func TestNoAllocationOnTheIOPath(t *testing.T) {
	_, f := lunFile(t, Options{})
	p := make([]byte, 4096)
	n := testing.AllocsPerRun(200, func() {
		if f.WriteAt(p, 4096) != nil || f.ReadAt(p, 4096) != nil {
			t.Error("I/O failed")
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations per write and read", n)
	}
}

func TestFailedFlushIsNeverRetriedIntoSuccess(t *testing.T) {
	var broken atomic.Bool
	dir := t.TempDir()
	s, err := Open(dir, testIdent, Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultSync && broken.Load() {
			return syscall.EIO
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Default().CreateLUN(lunA, 1<<20, NoBirth); err != nil {
		t.Fatal(err)
	}
	f, err := s.Default().OpenLUN(lunA)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	if err := f.Sync(); !errors.Is(err, ErrMedia) {
		t.Fatalf("first: %v", err)
	}
	broken.Store(false) // the disk recovers, as disks do after having dropped a page
	if err := f.Sync(); err == nil {
		t.Fatal("a later flush succeeded")
	}
	if err := f.WriteAt(make([]byte, 512), 0); !errors.Is(err, ErrFailed) {
		t.Fatalf("write: %v", err)
	}
	select {
	case <-s.FailedC():
	default:
		t.Fatal("FailedC is open")
	}
	f.Close()
	s.Close()
	s = open(t, dir, Options{})
	if why, err := s.Untrusted(); err != nil || why == "" {
		t.Fatalf("after a restart the store is trusted: %q %v", why, err)
	}
	if err := s.Trust(); err != nil {
		t.Fatal(err)
	}
	if why, err := s.Untrusted(); err != nil || why != "" {
		t.Fatalf("%q %v", why, err)
	}
}

func TestErrorClasses(t *testing.T) {
	for _, c := range []struct {
		name   string
		inject error
		op     string
		want   error
		failed bool
	}{
		{"full disk", syscall.ENOSPC, FaultWrite, ErrNoSpace, false},
		{"quota", syscall.EDQUOT, FaultWrite, ErrNoSpace, false},
		{"bad write", syscall.EIO, FaultWrite, ErrMedia, true},
		{"bad discard", syscall.EIO, FaultDiscard, ErrMedia, true},
		{"bad read", syscall.EIO, FaultRead, ErrMedia, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := lunFile(t, Options{Faults: func(op, _ string, _, _ int64) error {
				if op == c.op {
					return &os.PathError{Op: op, Err: c.inject}
				}
				return nil
			}})
			p := make([]byte, 512)
			err := map[string]func() error{
				FaultRead:    func() error { return f.ReadAt(p, 0) },
				FaultWrite:   func() error { return f.WriteAt(p, 0) },
				FaultDiscard: func() error { return f.Discard(0, 512) },
			}[c.op]()
			if !errors.Is(err, c.want) || !errors.Is(err, c.inject) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := s.Failed() != nil; got != c.failed {
				t.Errorf("failed is %v: %v", got, s.Failed())
			}
		})
	}
}

// A caller is served only by a flush that began after it asked; callers that ask during one flush
// share the next.
func TestFlushesAreCoalesced(t *testing.T) {
	var g syncGroup
	var flushes atomic.Int32
	entered, release := make(chan struct{}), make(chan struct{})
	flush := func() error {
		if flushes.Add(1) == 1 {
			close(entered)
			<-release
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.do(flush) })
	<-entered
	for range 20 {
		wg.Go(func() { g.do(flush) })
	}
	// All twenty wait now or will soon; none may return before a second flush.
	if n := flushes.Load(); n != 1 {
		t.Fatalf("%d flushes while the first runs", n)
	}
	close(release)
	wg.Wait()
	if n := flushes.Load(); n < 2 || n > 21 {
		t.Fatalf("%d flushes", n)
	}
	boom := errors.New("boom")
	if err := g.do(func() error { return boom }); err != boom {
		t.Fatal(err)
	}
	if err := g.do(flush); err != boom {
		t.Fatalf("the failure was forgotten: %v", err)
	}
}
