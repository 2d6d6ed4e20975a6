package striped

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/stripe"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var _ Leg = (*initiator.Device)(nil)

// memory is a leg.
type memory struct {
	mu      sync.Mutex
	b       []byte
	block   int
	flushes int
	asked   []string
	fail    error
	before  func() // of each transfer
}

func (m *memory) do(what string, off, n int64, f func([]byte)) error {
	if m.before != nil {
		m.before()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, fmt.Sprintf("%s %d+%d", what, off, n))
	if m.fail != nil {
		return m.fail
	}
	f(m.b[off : off+n])
	return nil
}

func (m *memory) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return len(p), m.do("read", off, int64(len(p)), func(b []byte) { copy(p, b) })
}

func (m *memory) WriteAt(_ context.Context, p []byte, off int64) (int, error) {
	return len(p), m.do("write", off, int64(len(p)), func(b []byte) { copy(b, p) })
}

func (m *memory) Flush(context.Context) error {
	return m.do("flush", 0, 0, func([]byte) { m.flushes++ })
}

func (m *memory) Discard(_ context.Context, off, n int64) error {
	return m.do("discard", off, n, func(b []byte) {
		for i := range b {
			b[i] = 0xdd
		}
	})
}

func (m *memory) WriteZeroes(_ context.Context, off, n int64, mayUnmap bool) error {
	return m.do(fmt.Sprintf("zero %v", mayUnmap), off, n, func(b []byte) { clear(b) })
}

func (m *memory) Rescan(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, "rescan")
	return int64(len(m.b)), m.fail
}

func (m *memory) Size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(len(m.b))
}

func (m *memory) BlockSize() int { return m.block }

func assembled(t *testing.T, l stripe.Layout, size int) (*Volume, []*memory) {
	t.Helper()
	legs, own := make([]Leg, l.Count), make([]*memory, l.Count)
	for i := range own {
		own[i] = &memory{b: make([]byte, size), block: 512}
		legs[i] = own[i]
	}
	v, err := New(l, legs)
	if err != nil {
		t.Fatal(err)
	}
	return v, own
}

// A striped volume reads what was written, discarded and zeroed, as one device would, and each
// request without data is one at each leg.
func TestVolumeIsOneDevice(t *testing.T) {
	rnd, fill := rand.New(rand.NewPCG(3, 4)), rand.NewChaCha8([32]byte{5})
	for range 20 {
		l := stripe.Layout{Count: 2 + rnd.IntN(15), Size: stripe.MinStripe << rnd.IntN(5)}
		v, legs := assembled(t, l, 2*mib)
		model := make([]byte, v.Size())
		for range 40 {
			n := 512 * rnd.Int64N(4*kib)
			off := 512 * rnd.Int64N((v.Size()-n)/512+1)
			want := model[off : off+n]
			for _, m := range legs {
				m.asked = nil
			}
			var err error
			switch rnd.IntN(5) {
			case 0, 1:
				p := make([]byte, n)
				_, _ = fill.Read(p)
				copy(want, p)
				_, err = v.WriteAt(t.Context(), p, off)
			case 2:
				clear(want)
				err = v.WriteZeroes(t.Context(), off, n, rnd.IntN(2) == 0)
			case 3:
				for i := range want {
					want[i] = 0xdd
				}
				err = v.Discard(t.Context(), off, n)
			default:
				got := make([]byte, n)
				if _, err = v.ReadAt(t.Context(), got, off); !bytes.Equal(got, want) {
					t.Fatalf("%+v: %d bytes at %d differ", l, n, off)
				}
			}
			if err != nil {
				t.Fatalf("%+v: %d bytes at %d: %v", l, n, off, err)
			}
			for i, m := range legs {
				if len(m.asked) > 1 && !strings.HasPrefix(m.asked[0], "read") && !strings.HasPrefix(m.asked[0], "write") {
					t.Fatalf("leg %d: %v", i, m.asked)
				}
			}
		}
		got := make([]byte, v.Size())
		if n, err := v.ReadAt(t.Context(), got, 0); err != nil || int64(n) != v.Size() || !bytes.Equal(got, model) {
			t.Fatalf("%+v: the whole volume differs, %v", l, err)
		}
	}
}

// Legs are asked at the same time: neither of two requests ends before the other one has begun.
func TestLegsWorkAtOnce(t *testing.T) {
	v, legs := assembled(t, stripe.Layout{Count: 2, Size: 64 * kib}, mib)
	var begun sync.WaitGroup
	begun.Add(2)
	for _, m := range legs {
		m.before = func() { begun.Done(); begun.Wait() }
	}
	done := make(chan error, 1)
	go func() {
		_, err := v.WriteAt(t.Context(), make([]byte, 128*kib), 0)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("one leg is asked after the other")
	}
}

func TestFlushReachesAllLegs(t *testing.T) {
	v, legs := assembled(t, stripe.Layout{Count: 3, Size: 64 * kib}, mib)
	if err := v.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	legs[1].fail = errors.New("injected by the test")
	if err := v.Flush(t.Context()); !errors.Is(err, legs[1].fail) || !strings.Contains(err.Error(), "leg 1: ") {
		t.Error(err)
	}
	for i, m := range legs {
		if want := 2 - i%2; m.flushes != want {
			t.Errorf("leg %d: %d flushes", i, m.flushes)
		}
	}
}

// One leg that fails fails the request after all of its parts have ended, and the error names the
// leg; ranges without that leg are served.
func TestLegFails(t *testing.T) {
	v, legs := assembled(t, stripe.Layout{Count: 4, Size: 64 * kib}, mib)
	legs[2].fail, legs[3].fail = errors.New("injected by the test"), errors.New("another one")
	for name, f := range map[string]func(off, n int64) error{
		"read":    func(off, n int64) error { _, err := v.ReadAt(t.Context(), make([]byte, n), off); return err },
		"write":   func(off, n int64) error { _, err := v.WriteAt(t.Context(), make([]byte, n), off); return err },
		"zero":    func(off, n int64) error { return v.WriteZeroes(t.Context(), off, n, true) },
		"discard": func(off, n int64) error { return v.Discard(t.Context(), off, n) },
	} {
		for _, m := range legs {
			m.asked = nil
		}
		if err := f(0, 256*kib); !errors.Is(err, legs[2].fail) || !strings.Contains(err.Error(), "leg 2: ") {
			t.Errorf("%s: %v", name, err)
		}
		for i, m := range legs {
			if len(m.asked) != 1 {
				t.Errorf("%s: leg %d: %v", name, i, m.asked)
			}
		}
		if err := f(256*kib, 128*kib); err != nil {
			t.Errorf("%s beside the failed legs: %v", name, err)
		}
	}
}

// The buffers of a request are its caller's again when it returns, so it ends with its last part.
func TestRequestWaitsForAllLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, legs := assembled(t, stripe.Layout{Count: 2, Size: 64 * kib}, mib)
		legs[0].fail = errors.New("injected by the test")
		answer := make(chan struct{})
		legs[1].before = func() { <-answer }
		done := make(chan error, 1)
		go func() {
			_, err := v.ReadAt(t.Context(), make([]byte, 128*kib), 0)
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("it ends with %v while leg 1 is at work", err)
		default:
		}
		close(answer)
		if err := <-done; !errors.Is(err, legs[0].fail) {
			t.Error(err)
		}
	})
}

func TestBeyondTheEnd(t *testing.T) {
	v, _ := assembled(t, stripe.Layout{Count: 2, Size: 64 * kib}, mib)
	for _, x := range [][2]int64{{-1, 1}, {2 * mib, 1}, {2*mib - 512, 1024}, {1 << 62, 512}} {
		if _, err := v.ReadAt(t.Context(), make([]byte, x[1]), x[0]); !errors.Is(err, initiator.ErrBeyondEnd) {
			t.Errorf("%v: %v", x, err)
		}
		if err := v.Discard(t.Context(), x[0], x[1]); !errors.Is(err, initiator.ErrBeyondEnd) {
			t.Errorf("%v: %v", x, err)
		}
	}
	if _, err := v.ReadAt(t.Context(), nil, 2*mib); err != nil {
		t.Error(err)
	}
}

// The volume grows when the last leg has grown.
func TestExpansion(t *testing.T) {
	v, legs := assembled(t, stripe.Layout{Count: 2, Size: 64 * kib}, mib)
	for i, want := range []int64{2 * mib, 4 * mib} {
		legs[i].mu.Lock()
		legs[i].b = append(legs[i].b, make([]byte, mib)...)
		legs[i].mu.Unlock()
		if size, err := v.Rescan(t.Context()); err != nil || size != want || v.Size() != want {
			t.Errorf("leg %d: %d, %v", i, size, err)
		}
	}
	legs[0].fail = errors.New("injected by the test")
	if _, err := v.Rescan(t.Context()); !errors.Is(err, legs[0].fail) {
		t.Error(err)
	}
	if len(legs[1].asked) != 3 {
		t.Errorf("%v", legs[1].asked)
	}
}

func TestLegsMustFit(t *testing.T) {
	l := stripe.Layout{Count: 2, Size: 512 * kib}
	whole, small := &memory{b: make([]byte, mib), block: 4096}, &memory{b: make([]byte, 64*kib), block: 512}
	for name, x := range map[string]struct {
		l    stripe.Layout
		legs []Leg
		says string
	}{
		"a leg is missing": {l, []Leg{whole}, "1 legs for a volume of 2"},
		"too small":        {l, []Leg{whole, small}, "leg 1 has 65536 bytes"},
		"no layout":        {stripe.Layout{Count: 1, Size: mib}, []Leg{whole}, "2 to 16"},
	} {
		if _, err := New(x.l, x.legs); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v, err := New(l, []Leg{whole, &memory{b: make([]byte, mib), block: 512}}); err != nil || v.BlockSize() != 4096 {
		t.Error(err)
	}
}
