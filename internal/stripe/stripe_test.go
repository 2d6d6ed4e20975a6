package stripe

import (
	"errors"
	"math/rand/v2"
	"testing"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// A request of 1 MiB is spread over all LUNs, and no stripe is too small for a disk.
func TestDefault(t *testing.T) {
	for count, want := range map[int]int64{1: mib, 2: 512 * kib, 3: 256 * kib, 4: 256 * kib, 5: 128 * kib, 8: 128 * kib, 9: 64 * kib, 16: 64 * kib, 17: 64 * kib} {
		if l := Default(count); l.Count != count || l.Size != want {
			t.Errorf("%d LUNs: %+v", count, l)
		}
	}
	for count := MinCount; count <= MaxCount; count++ {
		if err := Default(count).Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, x := range []struct {
		l   Layout
		err error
	}{
		{Layout{2, 64 * kib}, nil}, {Layout{16, mib}, nil},
		{Layout{0, mib}, ErrCount}, {Layout{1, mib}, ErrCount}, {Layout{17, mib}, ErrCount}, {Layout{-1, mib}, ErrCount},
		{Layout{4, 0}, ErrStripe}, {Layout{4, 32 * kib}, ErrStripe}, {Layout{4, 2 * mib}, ErrStripe}, {Layout{4, 96 * kib}, ErrStripe}, {Layout{4, -mib}, ErrStripe},
	} {
		if err := x.l.Check(); !errors.Is(err, x.err) {
			t.Errorf("%+v: %v", x.l, err)
		}
	}
}

func TestSizes(t *testing.T) {
	l := Layout{4, 256 * kib}
	if leg, err := l.Leg(64 * mib); err != nil || leg != 16*mib {
		t.Error(leg, err)
	}
	for _, size := range []int64{0, -mib, 64*mib + 256*kib, 64*mib + 1} {
		if _, err := l.Leg(size); !errors.Is(err, ErrSize) {
			t.Errorf("%d: %v", size, err)
		}
	}
	if v := l.Volume(16*mib + 100); v != 64*mib {
		t.Error(v)
	}
}

// byteOf is where a byte of the volume is, by counting alone.
func byteOf(l Layout, at int64) (leg int, off int64) {
	stripe := at / l.Size
	return int(stripe % int64(l.Count)), stripe/int64(l.Count)*l.Size + at%l.Size
}

// Parts cover each range once, in its order, and are where each of their bytes is; spans cover the
// same bytes of each leg.
func TestPartsAndSpans(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		l := Layout{MinCount + rnd.IntN(MaxCount-1), MinStripe << rnd.IntN(5)}
		off, n := rnd.Int64N(64*mib), rnd.Int64N(4*mib)
		at := int64(0)
		covered := map[int][2]int64{} // by leg
		bytes := map[int]int64{}
		for p := range l.Parts(off, n) {
			for _, x := range []int64{0, p.Len - 1} {
				if leg, o := byteOf(l, off+p.At+x); leg != p.Leg || o != p.Off+x {
					t.Fatalf("%+v, %d bytes at %d: %+v", l, n, off, p)
				}
			}
			if p.At != at || p.Len <= 0 || p.Off%l.Size+p.Len > l.Size {
				t.Fatalf("%+v, %d bytes at %d: %+v", l, n, off, p)
			}
			at += p.Len
			c, ok := covered[p.Leg]
			if !ok {
				c = [2]int64{p.Off, p.Off}
			}
			if c[1] != p.Off {
				t.Fatalf("%+v: the stripes of leg %d do not follow each other", l, p.Leg)
			}
			c[1] = p.Off + p.Len
			covered[p.Leg], bytes[p.Leg] = c, bytes[p.Leg]+p.Len
		}
		if at != n {
			t.Fatalf("%+v, %d bytes at %d: parts of %d bytes", l, n, off, at)
		}
		spans := l.Spans(off, n)
		for _, s := range spans {
			if c := covered[s.Leg]; c != [2]int64{s.Off, s.Off + s.Len} {
				t.Fatalf("%+v, %d bytes at %d: %+v, its parts cover %v", l, n, off, s, c)
			}
		}
		if len(spans) != len(covered) {
			t.Fatalf("%+v, %d bytes at %d: %v", l, n, off, spans)
		}
	}
}

func TestPartsMayBeLeftEarly(t *testing.T) {
	for p := range (Layout{2, 64 * kib}).Parts(0, mib) {
		if p.At > 0 {
			t.Fatal(p)
		}
		break
	}
}

func TestTable(t *testing.T) {
	l := Layout{2, 512 * kib}
	if s, err := l.Table(8*mib, []string{"/dev/dm-3", "253:7"}); err != nil || s != "0 16384 striped 2 1024 /dev/dm-3 0 253:7 0" {
		t.Error(s, err)
	}
	for name, f := range map[string]func() (string, error){
		"a leg is missing": func() (string, error) { return l.Table(8*mib, []string{"253:7"}) },
		"odd size":         func() (string, error) { return l.Table(8*mib+512, []string{"253:7", "253:8"}) },
		"no layout":        func() (string, error) { return Layout{1, mib}.Table(8*mib, []string{"253:7"}) },
	} {
		if s, err := f(); err == nil {
			t.Errorf("%s: %q", name, s)
		}
	}
}

// A volume has one LUN for each 50,000 operations a second, half of them on each node.
func TestForIOPS(t *testing.T) {
	for n, want := range map[int]int{1: 1, IOPSPerLUN: 1, IOPSPerLUN + 1: 2, 2 * IOPSPerLUN: 2, 2*IOPSPerLUN + 1: 4, 3 * IOPSPerLUN: 4, 200_000: 4,
		15 * IOPSPerLUN: 16, MaxCount * IOPSPerLUN: MaxCount, MaxCount*IOPSPerLUN + 1: MaxCount + 2} {
		if got := ForIOPS(n); got != want {
			t.Errorf("%d: %d LUNs, not %d", n, got, want)
		}
	}
}
