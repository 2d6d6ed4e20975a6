package extents

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

var owner = Owner{uuid.MustParse("7b0e5a3c-6a64-4a38-9d0b-0c7a3c1f9e01"), uuid.MustParse("57a0788f-1883-407c-b535-ad21e99beda5")}

const testExtents = 2*PairExtents + 100

func create(t *testing.T, extents int64, rule ...uint8) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lun.map")
	if err := Create(path, owner, rule, extents*Size); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string, extents int64, hooks *Hooks) *Map {
	t.Helper()
	m, err := Open(path, owner, extents*Size, hooks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func set(t *testing.T, m *Map, volume uint8, list ...int64) {
	t.Helper()
	if err := m.Set(list, volume); err != nil {
		t.Fatal(err)
	}
}

// same compares with a map that is kept beside: what differs from the rule.
func same(t *testing.T, m *Map, want map[int64]uint8) {
	t.Helper()
	for e := range m.Extents() {
		w, ok := want[e]
		if !ok {
			w = m.ByRule(e)
		}
		if got := m.At(e); got != w {
			t.Fatalf("extent %d is said to lie in volume %d, not %d", e, got, w)
		}
	}
}

func TestRuleRotates(t *testing.T) {
	m := open(t, create(t, testExtents, 3, 1, 9), testExtents, nil)
	for e, want := range map[int64]uint8{0: 3, 1: 1, 2: 9, 3: 3, testExtents - 1: m.Rule()[(testExtents-1)%3], testExtents: 0, -1: 0} {
		if got := m.At(e); got != want {
			t.Errorf("extent %d is said to lie in volume %d, not %d", e, got, want)
		}
	}
	if m.Extents() != testExtents || m.Writes() != 0 || m.Torn() != 0 {
		t.Errorf("%d extents, %d writes, %d torn", m.Extents(), m.Writes(), m.Torn())
	}
}

func TestPlacesAreDurable(t *testing.T) {
	path := create(t, testExtents, 1, 2)
	m := open(t, path, testExtents, nil)
	want := map[int64]uint8{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		e, v := r.Int64N(testExtents), uint8(1+r.IntN(5))
		set(t, m, v, e)
		want[e] = v
	}
	set(t, m, 7, 5, PairExtents+5, 2*PairExtents+5)
	want[5], want[PairExtents+5], want[2*PairExtents+5] = 7, 7, 7
	same(t, m, want)
	if n := m.Writes(); n < 200 || n > 303 {
		t.Errorf("%d writes", n)
	}
	n := m.Writes()
	if set(t, m, 7, 5); m.Writes() != n {
		t.Error("a place that an extent has was written again")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, open(t, path, testExtents, nil), want)
}

// A crash within a write leaves what was there before it, or all that it was to write.
func TestTornWriteLosesNothing(t *testing.T) {
	path := create(t, testExtents, 1, 2)
	var before []byte
	var at int64
	m := open(t, path, testExtents, &Hooks{Write: func(_ string, off, length int64) (err error) {
		if length != block {
			t.Errorf("a write of %d bytes", length)
		}
		at = off
		before, err = os.ReadFile(path)
		return err
	}})
	r := rand.New(rand.NewPCG(3, 4))
	was := map[int64]uint8{}
	torn := 0
	for range 60 {
		now := map[int64]uint8{}
		for e, v := range was {
			now[e] = v
		}
		list, v := []int64{}, uint8(3+r.IntN(200))
		first := r.Int64N(3) * PairExtents
		for range 1 + r.IntN(4) {
			e := first + r.Int64N(min(PairExtents, testExtents-first))
			list, now[e] = append(list, e), v
		}
		set(t, m, v, list...)
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, cut := range []int{0, 1, 512, 4095, block, r.IntN(block)} {
			for _, early := range []bool{true, false} { // the beginning or the end is there
				image := append([]byte(nil), before...)
				if early {
					copy(image[at:], after[at:at+int64(cut)])
				} else {
					copy(image[at+block-int64(cut):], after[at+block-int64(cut):at+block])
				}
				name := filepath.Join(t.TempDir(), "torn")
				if err := os.WriteFile(name, image, 0o600); err != nil {
					t.Fatal(err)
				}
				x := open(t, name, testExtents, nil)
				want := was
				if x.At(list[0]) == v {
					want = now
				} else if cut == block {
					t.Fatal("a whole write is lost")
				}
				same(t, x, want)
				torn += x.Torn()
				x.Close()
			}
		}
		was = now
	}
	if torn < 100 {
		t.Errorf("%d blocks were torn", torn)
	}
}

// A LUN grows within a pair and over pairs, while places change and are read.
func TestMapGrowsWhileItIsUsed(t *testing.T) {
	path := create(t, 10, 1, 2)
	m := open(t, path, 10, nil)
	set(t, m, 5, 3)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := int64(0); i == 0 || !stop.Load(); i++ {
			if m.At(3) != 5 || m.At(i%10) == 0 {
				t.Error("a place is lost while the map grows")
				return
			}
		}
	})
	last := uint8(0)
	wg.Go(func() {
		for i := 0; i == 0 || !stop.Load(); i++ {
			last = uint8(10 + i%100)
			if err := m.Set([]int64{7}, last); err != nil {
				t.Error(err)
				return
			}
			if m.At(7) != last {
				t.Error("a place that was set is not read")
				return
			}
		}
	})
	for n := int64(11); n < 3*PairExtents; n += PairExtents / 7 {
		if err := m.Grow(n * Size); err != nil {
			t.Fatal(err)
		}
		if m.Extents() != n || m.At(n-1) != m.ByRule(n-1) {
			t.Errorf("%d extents of %d", m.Extents(), n)
		}
		set(t, m, 6, n-1)
	}
	stop.Store(true)
	wg.Wait()
	n := m.Extents()
	if err := m.Grow(Size); err != nil || m.Extents() != n {
		t.Errorf("a map became shorter: %d, %v", m.Extents(), err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	x := open(t, path, n+PairExtents, nil) // a crash came before the map grew with the LUN
	if x.Extents() != n+PairExtents || x.At(7) != last || x.At(3) != 5 || x.At(n-1) != 6 {
		t.Errorf("%d extents; %d %d %d", x.Extents(), x.At(7), x.At(3), x.At(n-1))
	}
	x.Close()
	if y := open(t, path, 5, nil); y.Extents() != n+PairExtents { // and before the LUN was said to be larger
		t.Errorf("%d extents", y.Extents())
	}
}

// Without space a map stays as it was, and is used on.
func TestGrowWithoutSpace(t *testing.T) {
	path := create(t, 10, 1, 2)
	full := false
	m := open(t, path, 10, &Hooks{Write: func(string, int64, int64) error {
		if full {
			return unix.ENOSPC
		}
		return nil
	}})
	full = true
	if err := m.Grow(2 * PairExtents * Size); !errors.Is(err, unix.ENOSPC) || m.Extents() != 10 {
		t.Errorf("%d extents, %v", m.Extents(), err)
	}
	full = false
	set(t, m, 4, 9)
	if err := m.Grow(2 * PairExtents * Size); err != nil || m.Extents() != 2*PairExtents || m.At(9) != 4 {
		t.Errorf("%d extents, %v", m.Extents(), err)
	}
}

func TestChangesShareWrites(t *testing.T) {
	path := create(t, testExtents, 1, 2)
	m := open(t, path, testExtents, nil)
	want := map[int64]uint8{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	const workers, each = 16, 40
	for w := range int64(workers) {
		wg.Go(func() {
			for i := range int64(each) {
				e, v := w*each+i, uint8(3+i)
				if err := m.Set([]int64{e, PairExtents + e}, v); err != nil {
					t.Error(err)
					return
				}
				if m.At(e) != v || m.At(PairExtents+e) != v {
					t.Error("a place that was set is not read")
				}
				mu.Lock()
				want[e], want[PairExtents+e] = v, v
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	same(t, m, want)
	t.Logf("%d writes for %d changes", m.Writes(), 2*workers*each)
	if m.Writes() > 2*workers*each*9/10 {
		t.Errorf("%d writes for %d changes", m.Writes(), 2*workers*each)
	}
	m.Close()
	same(t, open(t, path, testExtents, nil), want)
}

func BenchmarkAt(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x")
	if err := Create(path, owner, []uint8{1, 2, 3}, testExtents*Size); err != nil {
		b.Fatal(err)
	}
	m, err := Open(path, owner, testExtents*Size, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	n := int64(0)
	for b.Loop() {
		n += int64(m.At(n % testExtents))
	}
}
