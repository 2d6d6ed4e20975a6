package extents

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// memory is an image without a disk. before is called before each of its operations, and may fail
// it.
type memory struct {
	p      []byte
	before func(op string, off, length int64) error
}

func newMemory() *memory { return &memory{p: make([]byte, simSize)} }

func (x *memory) do(op string, off, length int64, fn func()) error {
	if x.before != nil {
		if err := x.before(op, off, length); err != nil {
			return err
		}
	}
	fn()
	return nil
}

func (x *memory) ReadAt(p []byte, off int64) error {
	return x.do("read", off, int64(len(p)), func() { copy(p, x.p[off:]) })
}

func (x *memory) WriteAt(p []byte, off int64) error {
	return x.do("write", off, int64(len(p)), func() { copy(x.p[off:], p) })
}

func (x *memory) Punch(off, length int64) error {
	return x.do("punch", off, length, func() { clear(x.p[off : off+length]) })
}

func (x *memory) Sync() error { return x.do("sync", 0, 0, func() {}) }

func (x *memory) Data(off, length int64) (run int64, data bool, err error) {
	err = x.do("look", off, length, func() {
		data = x.p[off] != 0
		for run < length && (x.p[off+run] != 0) == data {
			run++
		}
	})
	return run, data, err
}

// spread makes one over three volumes, of which the first two are those of the rule.
func spread(t *testing.T, hooks *Hooks, cfg Config) (*Spread, [4]*memory) {
	t.Helper()
	m := open(t, create(t, Extents(simSize), 1, 2), Extents(simSize), hooks)
	x := [4]*memory{1: newMemory(), 2: newMemory(), 3: newMemory()}
	s, err := NewSpread(m, map[uint8]Image{1: x[1], 2: x[2], 3: x[3]}, simSize, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, x
}

func write(t *testing.T, s *Spread, off, length int64, with byte) {
	t.Helper()
	p := make([]byte, length)
	for i := range p {
		p[i] = with
	}
	at := int64(0)
	if err := s.Change(off, length, func(x Image, off, n int64) error {
		err := x.WriteAt(p[at:at+n], off)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestRangesAreDividedAtExtents(t *testing.T) {
	s, x := spread(t, nil, Config{})
	write(t, s, Size-100, Size+200, 7)
	if x[1].p[Size-1] != 7 || x[2].p[Size] != 7 || x[2].p[2*Size-1] != 7 || x[1].p[2*Size] != 7 || x[1].p[Size] != 0 || x[2].p[2*Size] != 0 {
		t.Error("the parts are not where the rule says")
	}
	var n int64
	if err := s.Read(0, simSize, func(_ Image, off, length int64) error {
		if off != n {
			t.Errorf("a part begins at %d, want %d", off, n)
		}
		n += length
		return nil
	}); err != nil || n != simSize {
		t.Errorf("%d bytes of %d, %v", n, int64(simSize), err)
	}
}

func TestMoveTakesAnExtent(t *testing.T) {
	paced := int64(0)
	s, x := spread(t, nil, Config{Pace: func(_ context.Context, n int64) error { paced += n; return nil }})
	write(t, s, 0, 300<<10, 1)
	write(t, s, 3<<20, 4096, 2)
	x[3].p[1<<20] = 9 // what an aborted move has left
	if err := s.Move(t.Context(), 0, 3); err != nil {
		t.Fatal(err)
	}
	if x[3].p[0] != 1 || x[3].p[300<<10-1] != 1 || x[3].p[1<<20] != 0 || x[3].p[3<<20] != 2 || s.m.At(0) != 3 {
		t.Error("the extent is not at its new place")
	}
	if run, data, _ := x[1].Data(0, Size); data || run != Size {
		t.Error("the old place is not free")
	}
	if paced != Size {
		t.Errorf("a pause was offered for %d bytes of %d", paced, Size)
	}
	if err := errors.Join(s.Move(t.Context(), 0, 3), s.Move(t.Context(), 0, 1), s.Move(t.Context(), 2, 3)); err != nil {
		t.Fatal(err)
	}
	if x[1].p[0] != 1 || s.m.At(0) != 1 || s.m.At(2) != 3 {
		t.Error("the extent did not come back")
	}
}

// Of an extent whose relative is at the new place only the blocks that differ are written, and
// holes are holes.
func TestLikeWritesWhatDiffers(t *testing.T) {
	s, x := spread(t, nil, Config{})
	write(t, s, 0, Size-64<<10, 1)
	write(t, s, 1<<20+4095, 1, 2) // the last byte of a block
	write(t, s, 2<<20, 12288, 3)
	wrote, punched := int64(0), int64(0)
	x[3].before = func(op string, _, length int64) error {
		switch op {
		case "write":
			wrote += length
		case "punch":
			punched += length
		}
		return nil
	}
	share := func() error {
		for i := range x[3].p[:Size] {
			x[3].p[i] = 1
		}
		return nil
	}
	if err := s.MoveLike(t.Context(), 0, 3, share); err != nil {
		t.Fatal(err)
	}
	if wrote != 4096+12288 || punched != Size+64<<10 {
		t.Errorf("%d bytes were written, %d were punched", wrote, punched)
	}
	want := make([]byte, Size)
	for i := range want[:Size-64<<10] {
		want[i] = 1
	}
	want[1<<20+4095] = 2
	for i := range 12288 {
		want[2<<20+i] = 3
	}
	if s.m.At(0) != 3 || string(x[3].p[:Size]) != string(want) {
		t.Error("the extent is not what it was")
	}
	// What cannot be shared is copied.
	wrote = 0
	write(t, s, 4<<20, 8192, 5)
	if err := s.MoveLike(t.Context(), 1, 3, func() error { x[3].p[Size+9000] = 7; return errors.New("another filesystem") }); err != nil {
		t.Fatal(err)
	}
	if x[3].p[Size] != 5 || x[3].p[Size+9000] != 0 || wrote != 8192 {
		t.Errorf("the extent is not what it was; %d bytes were written", wrote)
	}
}

func TestMoveOfWhatIsNotThere(t *testing.T) {
	s, _ := spread(t, nil, Config{})
	for _, c := range []struct {
		extent int64
		to     uint8
		want   error
	}{{0, 9, ErrNoVolume}, {0, 0, ErrNoVolume}, {-1, 1, ErrRange}, {3, 1, ErrRange}} {
		if err := s.Move(t.Context(), c.extent, c.to); !errors.Is(err, c.want) {
			t.Errorf("extent %d to %d: %v", c.extent, c.to, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Move(ctx, 0, 2); !errors.Is(err, context.Canceled) || s.m.At(0) != 1 {
		t.Errorf("a move that is given up: %v", err)
	}
	if _, err := NewSpread(s.m, map[uint8]Image{1: newMemory()}, simSize, Config{}); !errors.Is(err, ErrNoVolume) {
		t.Errorf("without an image: %v", err)
	}
	if _, err := NewSpread(s.m, map[uint8]Image{1: newMemory()}, 100*Size, Config{}); err == nil {
		t.Error("a LUN that is longer than its map is taken")
	}
}

// A second move of an extent is refused while the first one is under way.
func TestOneMoveOfAnExtent(t *testing.T) {
	s, x := spread(t, nil, Config{})
	write(t, s, 0, 4096, 1)
	x[3].before = func(op string, _, _ int64) error {
		if op == "sync" {
			if err := s.Move(t.Context(), 0, 2); !errors.Is(err, ErrMoving) {
				t.Errorf("a second move: %v", err)
			}
		}
		return nil
	}
	if err := s.Move(t.Context(), 0, 3); err != nil || s.m.At(0) != 3 {
		t.Error(err)
	}
}

// An extent with a block that cannot be read stays where it is: it has to be healed first.
func TestBlockThatCannotBeRead(t *testing.T) {
	s, x := spread(t, nil, Config{})
	write(t, s, 0, 64<<10, 5)
	x[1].before = func(op string, off, length int64) error {
		if op == "read" && off <= 8192 && 8192 < off+length {
			return unix.EIO
		}
		return nil
	}
	if err := s.Move(t.Context(), 0, 3); !errors.Is(err, unix.EIO) || s.m.At(0) != 1 || x[3].p[0] != 0 {
		t.Errorf("volume %d, %v", s.m.At(0), err)
	}
}

// An aborted move, by a full volume or a failed write, leaves nothing behind.
func TestAbortedMoveLeavesNothing(t *testing.T) {
	full := errors.New("full")
	for name, c := range map[string]struct {
		at   int64
		want error
	}{"the target is full": {1 << 20, ErrTargetFull}, "a write fails at the old place": {0, ErrSpoilt}} {
		s, x := spread(t, nil, Config{NoSpace: func(err error) bool { return errors.Is(err, full) }})
		write(t, s, 0, 2<<20, 5)
		failing := false
		x[1].before = func(op string, _, _ int64) error {
			if failing && op == "write" {
				return unix.EIO
			}
			return nil
		}
		x[3].before = func(op string, off, _ int64) error {
			switch {
			case op != "write" || off < 1<<20:
			case c.want == ErrTargetFull:
				return full
			}
			return nil
		}
		if c.want == ErrSpoilt {
			s.cfg.Pace = func(context.Context, int64) error {
				failing = true
				_ = s.Change(0, 4096, func(i Image, off, n int64) error { return i.WriteAt(make([]byte, n), off) })
				failing = false
				return nil
			}
		}
		if err := s.Move(t.Context(), 0, 3); !errors.Is(err, c.want) || s.m.At(0) != 1 {
			t.Errorf("%s: %v", name, err)
		}
		if run, data, _ := x[3].Data(0, Size); data || run != Size {
			t.Errorf("%s: a copy is left", name)
		}
	}
}

// A sweep looks at the map again when it has the extent for itself.
func TestSweepLooksAgain(t *testing.T) {
	s, x := spread(t, nil, Config{})
	write(t, s, 0, 4096, 5)
	if err := s.Move(t.Context(), 0, 3); err != nil {
		t.Fatal(err)
	}
	if err := s.punch(0, 3); err != nil || x[3].p[0] != 5 {
		t.Errorf("the place of an extent was freed: %v", err)
	}
	x[1].p[77], x[2].p[5], x[3].p[2*Size] = 1, 1, 1
	if n, err := s.Sweep(t.Context()); n != 3 || err != nil || x[1].p[77] != 0 || x[2].p[5] != 0 || x[3].p[2*Size] != 0 || x[3].p[0] != 5 {
		t.Errorf("%d places were swept, %v", n, err)
	}
	if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("a second time: %d, %v", n, err)
	}
}

// After a failed write of the map it is not known which place it names: neither is freed.
func TestFailureOfTheMapFreesNothing(t *testing.T) {
	s, x := spread(t, &Hooks{Write: func(string, int64, int64) error { return unix.EIO }}, Config{})
	write(t, s, 0, 4096, 5)
	if err := s.Move(t.Context(), 0, 3); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x[1].p[0] != 5 || x[3].p[0] != 5 {
		t.Error("a place was freed that the map may name")
	}
}
