package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// What a load generator uses of either.
var _ = []interface {
	Submit(*initiator.IO) error
	Size() int64
	Flush(context.Context) error
	ReadAt(context.Context, []byte, int64) (int, error)
	WriteAt(context.Context, []byte, int64) (int, error)
	Close(context.Context) error
}{(*Client)(nil), (*initiator.Device)(nil)}

func TestRequestsOnTheWire(t *testing.T) {
	seen := make(chan request, 1)
	c := dial(t, func(f *fake) {
		for r, ok := f.next(); ok; r, ok = f.next() {
			cookie, n := r.cookie, r.n
			if r.cmd != cmdRead {
				n = 0
			}
			r.cookie = 0
			seen <- r
			f.reply(cookie, 0, n)
		}
	})
	buf := make([]byte, 1024)
	for _, x := range []struct {
		io   *initiator.IO
		want request
	}{
		{&initiator.IO{Op: initiator.OpRead, Off: 512, Buf: buf}, request{cmd: 0, off: 512, n: 1024}},
		{&initiator.IO{Op: initiator.OpWrite, Off: 512, Buf: buf}, request{cmd: 1, off: 512, n: 1024}},
		{&initiator.IO{Op: initiator.OpWrite, Off: 512, Buf: buf, FUA: true}, request{cmd: 1, flags: 1, off: 512, n: 1024}},
		{&initiator.IO{Op: initiator.OpFlush, Off: 512}, request{cmd: 3}},
		{&initiator.IO{Op: initiator.OpDiscard, Off: 512, Len: 4 << 20}, request{cmd: 4, off: 512, n: 4 << 20}},
		{&initiator.IO{Op: initiator.OpWriteZeroes, Off: 0, Len: 8 << 20}, request{cmd: 6, flags: 2, n: 8 << 20}},
		{&initiator.IO{Op: initiator.OpWriteZeroes, Off: 0, Len: 512, MayUnmap: true}, request{cmd: 6, n: 512}},
	} {
		if err := c.wait(short(t), x.io); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != x.want {
			t.Errorf("operation %d: request %+v, want %+v", x.io.Op, got, x.want)
		}
	}
}

// Replies in another order, all in flight at a time.
func TestRepliesInAnotherOrder(t *testing.T) {
	const inFlight = 100
	c := dial(t, func(f *fake) {
		var all []request
		for len(all) < inFlight {
			r, ok := f.next()
			if !ok {
				return
			}
			all = append(all, r)
		}
		for i := range all { // the last comes first; the data says whose it is
			r := all[inFlight-1-i]
			binary.BigEndian.PutUint64(f.out[16:], r.off)
			f.reply(r.cookie, 0, r.n)
		}
		f.obey()
	})
	var wg sync.WaitGroup
	wg.Add(inFlight)
	ios := make([]initiator.IO, inFlight)
	for i := range ios {
		ios[i] = initiator.IO{Op: initiator.OpRead, Off: int64(i) * 4096, Buf: make([]byte, 4096),
			Done: func(*initiator.IO) { wg.Done() }}
		if err := c.Submit(&ios[i]); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	for i := range ios {
		if got := binary.BigEndian.Uint64(ios[i].Buf); ios[i].Err != nil || got != uint64(i)*4096 {
			t.Fatalf("read %d has the data of offset %d (%v)", i, got, ios[i].Err)
		}
	}
}

// A server that does not read delays no one who submits, and Done may submit.
func TestSubmitDoesNotWait(t *testing.T) {
	const writes, size = 64, 1 << 20
	goOn := make(chan struct{})
	c := dial(t, func(f *fake) {
		<-goOn
		f.obey()
	})
	buf := make([]byte, size)
	var wg sync.WaitGroup
	wg.Add(2 * writes)
	ios := make([]initiator.IO, writes)
	for i := range ios {
		again := true
		ios[i] = initiator.IO{Op: initiator.OpWrite, Buf: buf, Done: func(r *initiator.IO) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			if again {
				again = false
				if err := c.Submit(r); err != nil {
					t.Error(err)
					wg.Done()
				}
			}
			wg.Done()
		}}
		if err := c.Submit(&ios[i]); err != nil { // the sockets take a few of them
			t.Fatal(err)
		}
	}
	close(goOn)
	wg.Wait()
}

func TestErrorsOfTheServer(t *testing.T) {
	for errno, want := range map[uint32]error{5: syscall.EIO, 28: syscall.ENOSPC, 1: syscall.EPERM, 4711: syscall.EINVAL} {
		c := dial(t, func(f *fake) {
			r, _ := f.next()
			f.reply(r.cookie, errno, 0)
			f.obey()
		})
		if _, err := c.ReadAt(short(t), make([]byte, 512), 0); !errors.Is(err, want) {
			t.Errorf("error number %d: %v, want %v", errno, err, want)
		}
		if _, err := c.ReadAt(short(t), make([]byte, 512), 0); err != nil {
			t.Errorf("after an error: %v", err)
		}
	}
}

func TestMalformedReplies(t *testing.T) {
	for name, play := range map[string]func(f *fake, r request){
		"magic number": func(f *fake, r request) { _, _ = f.Write(make([]byte, 16)) },
		"cookie":       func(f *fake, r request) { f.reply(r.cookie+1, 0, 512) },
		"cookie again": func(f *fake, r request) { f.reply(r.cookie-1<<32, 0, 512) },
	} {
		c := dial(t, func(f *fake) {
			r, _ := f.next()
			play(f, r)
			f.obey()
		})
		if _, err := c.ReadAt(short(t), make([]byte, 512), 0); !errors.Is(err, ErrProtocol) || !errors.Is(err, ErrLost) {
			t.Errorf("%s: error %v, want %v", name, err, ErrProtocol)
		}
		if err := c.Submit(&initiator.IO{Op: initiator.OpFlush, Done: func(*initiator.IO) {}}); !errors.Is(err, ErrLost) {
			t.Errorf("%s: afterwards: %v", name, err)
		}
	}
}

func TestConnectionEnds(t *testing.T) {
	c := dial(t, func(f *fake) {
		r, _ := f.next()
		f.reply(r.cookie, 0, 100) // of 512
	})
	if _, err := c.ReadAt(short(t), make([]byte, 512), 0); !errors.Is(err, ErrLost) {
		t.Errorf("error %v, want %v", err, ErrLost)
	}
	if err := c.Close(short(t)); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestContextEndsRequest(t *testing.T) {
	c := dial(t, func(f *fake) {
		for _, ok := f.next(); ok; _, ok = f.next() { // answers nothing
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	time.AfterFunc(time.Millisecond, func() { cancel(stop) })
	if _, err := c.ReadAt(ctx, make([]byte, 512), 0); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
}

func TestCloseWaitsForRequests(t *testing.T) {
	answer := make(chan struct{})
	c := dial(t, func(f *fake) {
		r, _ := f.next()
		<-answer
		f.reply(r.cookie, 0, 0)
		f.obey()
	})
	done := make(chan error, 1)
	if err := c.Submit(&initiator.IO{Op: initiator.OpFlush, Done: func(r *initiator.IO) { done <- r.Err }}); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close(short(t)) }()
	for refused := false; !refused; { // until Close has begun
		err := c.Submit(&initiator.IO{Op: initiator.OpFlush, Done: func(*initiator.IO) {}})
		refused = errors.Is(err, ErrClosed)
	}
	select {
	case err := <-closed:
		t.Fatalf("closed with a request in flight: %v", err)
	default:
	}
	close(answer)
	if err := errors.Join(<-done, <-closed); err != nil {
		t.Error(err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	c := dial(t, func(f *fake) {
		for _, ok := f.next(); ok; _, ok = f.next() { // answers nothing
		}
	})
	done := make(chan error, 1)
	if err := c.Submit(&initiator.IO{Op: initiator.OpFlush, Done: func(r *initiator.IO) { done <- r.Err }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("request: %v, want %v", err, ErrClosed)
	}
}

func TestSubmitRefuses(t *testing.T) {
	c := dial(t, (*fake).obey)
	nothing := func(*initiator.IO) {}
	for name, r := range map[string]*initiator.IO{
		"without Done":             {Op: initiator.OpFlush},
		"unknown operation":        {Op: 99, Done: nothing},
		"not aligned":              {Op: initiator.OpRead, Off: 100, Buf: make([]byte, 512), Done: nothing},
		"beyond the end":           {Op: initiator.OpRead, Off: fakeSize, Buf: make([]byte, 512), Done: nothing},
		"1024 bytes at":            {Op: initiator.OpRead, Off: fakeSize - 512, Buf: make([]byte, 1024), Done: nothing},
		"0 bytes":                  {Op: initiator.OpRead, Done: nothing},
		"want 1..4194304":          {Op: initiator.OpWrite, Buf: make([]byte, 5<<20), Done: nothing},
		"512 bytes at -512":        {Op: initiator.OpDiscard, Off: -512, Len: 512, Done: nothing},
		"nbd: 100 bytes at 0, blo": {Op: initiator.OpWriteZeroes, Len: 100, Done: nothing},
	} {
		if err := c.Submit(r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one with %q", err, name)
		}
	}
}

// A request must not cost garbage: the peer would be measured with a handicap.
func TestNoAllocations(t *testing.T) {
	c := dial(t, (*fake).obey)
	done := make(chan struct{}, 1)
	r := &initiator.IO{Buf: make([]byte, 4096), Done: func(*initiator.IO) { done <- struct{}{} }}
	for _, op := range []initiator.Op{initiator.OpRead, initiator.OpWrite} {
		r.Op = op
		if n := testing.AllocsPerRun(500, func() {
			if err := c.Submit(r); err != nil {
				t.Fatal(err)
			}
			<-done
		}); n > 0.5 {
			t.Errorf("operation %d: %.1f allocations per request", op, n)
		}
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
}
