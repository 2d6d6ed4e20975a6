package extents

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

func TestDamageIsNoticed(t *testing.T) {
	path := create(t, testExtents, 1, 2)
	m := open(t, path, testExtents, nil)
	set(t, m, 9, 4)
	set(t, m, 8, 4)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, change func(p []byte) []byte, o Owner) (*Map, error) {
		t.Helper()
		if err := os.WriteFile(path, change(append([]byte(nil), good...)), 0o600); err != nil {
			t.Fatal(err)
		}
		x, err := Open(path, o, testExtents*Size, nil)
		if err == nil {
			t.Cleanup(func() { x.Close() })
		} else if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		return x, err
	}
	flip := func(at ...int) func([]byte) []byte {
		return func(p []byte) []byte {
			for _, i := range at {
				p[i] ^= 0x20
			}
			return p
		}
	}
	pair1 := 2 * block // generations: 3 at its first block, 4 at its second one
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		i := r.IntN(block)
		if x, err := try("the older block", flip(pair1+i), owner); err != nil || x.At(4) != 8 || x.Torn() != 1 {
			t.Fatalf("a bit at %d of the older block: %v", i, err)
		}
		if x, err := try("the newer block", flip(pair1+block+i), owner); err != nil || x.At(4) != 9 || x.Torn() != 1 {
			t.Fatalf("a bit at %d of the newer block: %v", i, err)
		}
		if _, err := try("both blocks", flip(pair1+i, pair1+block+r.IntN(block)), owner); err == nil {
			t.Fatalf("a bit at %d of both blocks is not noticed", i)
		}
	}
	for name, change := range map[string]func(p []byte) []byte{
		"both blocks of the rule": flip(100, block+100),
		"half of the file":        func(p []byte) []byte { return p[:len(p)/2] },
		"all but the last byte":   func(p []byte) []byte { return p[:len(p)-1] },
		"nothing":                 func([]byte) []byte { return nil },
		"zeroes":                  func(p []byte) []byte { clear(p); return p },
		"two pairs that have changed places": func(p []byte) []byte {
			copy(p[2*block:], good[4*block:6*block])
			copy(p[4*block:], good[2*block:4*block])
			return p
		},
		"one block twice": func(p []byte) []byte { copy(p[2*block:], good[3*block:4*block]); return p },
	} {
		if _, err := try(name, change, owner); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	for _, o := range []Owner{{uuid.New(), owner.Store}, {owner.LUN, uuid.New()}} {
		if _, err := try("another owner", func(p []byte) []byte { return p }, o); err == nil {
			t.Error("the map of another LUN or store is taken")
		}
	}
	// A map without a rule, or of another length than it can have, is none.
	for name, head := range map[string][]byte{"no rule": headOf(testExtents, nil), "volume 0": headOf(testExtents, []uint8{1, 0}), "no extents": headOf(0, []uint8{1}), "too many": headOf(1<<40, []uint8{1})} {
		_, err := try(name, func(p []byte) []byte {
			owner.encode(p[:block], 0, 7, head)
			return p
		}, owner)
		if err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// After a failed write nothing more is written, and places are those from before.
func TestFailureIsFinal(t *testing.T) {
	path := create(t, testExtents, 1, 2)
	failing, told := false, 0
	m := open(t, path, testExtents, &Hooks{
		Write: func(string, int64, int64) error {
			if failing {
				return unix.EIO
			}
			return nil
		},
		Failed: func(error) { told++ },
	})
	set(t, m, 3, 0)
	failing = true
	if err := m.Set([]int64{0}, 4); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
	failing = false
	if err := m.Set([]int64{1}, 4); !errors.Is(err, unix.EIO) {
		t.Errorf("a later change: %v", err)
	}
	if err := m.Grow(3 * PairExtents * Size); !errors.Is(err, unix.EIO) {
		t.Errorf("growth: %v", err)
	}
	if m.At(0) != 3 || m.At(1) != 2 || told != 1 {
		t.Errorf("volumes %d, %d; told %d times", m.At(0), m.At(1), told)
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for name, err := range map[string]error{
		"no size":   Create(path, owner, []uint8{1}, 0),
		"too large": Create(path, owner, []uint8{1}, MaxSize+1),
		"no rule":   Create(path, owner, nil, Size),
		"volume 0":  Create(path, owner, []uint8{1, 0}, Size),
		"too many":  Create(path, owner, make([]uint8, 256), Size),
		"no folder": Create(filepath.Join(dir, "none", "x"), owner, []uint8{1}, Size),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Open(path, owner, Size, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a map that is not there: %v", err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("%v are left", list)
	}
	path = create(t, 10, 1)
	if _, err := Open(path, owner, -1, nil); err == nil {
		t.Error("a size below 0 is taken")
	}
	m := open(t, path, 10, nil)
	for _, e := range []int64{-1, 10} {
		if err := m.Set([]int64{e}, 1); !errors.Is(err, ErrRange) {
			t.Errorf("extent %d: %v", e, err)
		}
	}
	if err := m.Set([]int64{1}, 0); err == nil {
		t.Error("volume 0 is taken")
	}
	if err := m.Grow(MaxSize + 1); err == nil {
		t.Error("a size above the limit is taken")
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if err := m.Set([]int64{1}, 2); !errors.Is(err, os.ErrClosed) || m.At(1) != 1 {
		t.Errorf("a change of a closed map: %v", err)
	}
	if err := m.Grow(20 * Size); !errors.Is(err, os.ErrClosed) {
		t.Errorf("growth of a closed map: %v", err)
	}
}
