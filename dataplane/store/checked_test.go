package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDamageIsFound does to real files what disks, controllers and people do.
func TestDamageIsFound(t *testing.T) {
	const size = 8<<20 + 512
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, s *Store, a *os.File)
		want   []Range
	}{
		{"a flipped bit", func(t *testing.T, s *Store, a *os.File) { flip(t, s, lunA, 70000) }, []Range{{69632, 4096}}},
		{"flipped bits side by side", func(t *testing.T, s *Store, a *os.File) {
			flip(t, s, lunA, 69632)
			flip(t, s, lunA, 77823)
			flip(t, s, lunA, 90112)
		}, []Range{{69632, 8192}, {90112, 4096}}},
		{"the short block at the end", func(t *testing.T, s *Store, a *os.File) { flip(t, s, lunA, size-1) }, []Range{{8 << 20, 512}}},
		{"a tail that was cut off", func(t *testing.T, s *Store, a *os.File) {
			must(t, errors.Join(a.Truncate(1<<20-4096), a.Truncate(size)))
		}, []Range{{1<<20 - 4096, 4096}, {8 << 20, 512}}},
		{"an extent that is lost", func(t *testing.T, s *Store, a *os.File) {
			must(t, unix.Fallocate(int(a.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 128<<10, 64<<10))
		}, []Range{{128 << 10, 64 << 10}}},
		{"blocks that have changed places", func(t *testing.T, s *Store, a *os.File) {
			one, two := content(0, 4096), content(0, 4096)
			_, err1 := a.ReadAt(one, 0)
			_, err2 := a.ReadAt(two, 20480)
			_, err3 := a.WriteAt(one, 20480)
			_, err4 := a.WriteAt(two, 0)
			must(t, errors.Join(err1, err2, err3, err4))
		}, []Range{{0, 4096}, {20480, 4096}}},
		{"a block of another LUN at the same place", func(t *testing.T, s *Store, a *os.File) {
			p := make([]byte, 4096)
			_, err1 := imageOf(t, s, lunB).ReadAt(p, 40960)
			_, err2 := a.WriteAt(p, 40960)
			must(t, errors.Join(err1, err2))
		}, []Range{{40960, 4096}}},
		{"a write that never came, where nothing was before", func(t *testing.T, s *Store, a *os.File) {
			_, err := a.WriteAt(make([]byte, 512), 8<<20)
			must(t, err)
		}, []Range{{8 << 20, 512}}},
		{"something where nothing was written", func(t *testing.T, s *Store, a *os.File) {
			_, err := a.WriteAt([]byte{1}, 3<<20)
			must(t, err)
		}, []Range{{3 << 20, 4096}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(dir, testIdent, withSums())
			must(t, err)
			f, g := newLUN(t, s, lunA, size), newLUN(t, s, lunB, size)
			must(t, f.WriteAt(content(1, 1<<20), 0))
			must(t, f.WriteAt(content(2, 512), 8<<20))
			must(t, g.WriteAt(content(3, 1<<20), 0))
			wantWrong(t, f)
			c.damage(t, s, imageOf(t, s, lunA))
			wantWrong(t, f, c.want...)
			wantWrong(t, g)
			if n := s.SumsCounts().Mismatched; n == 0 {
				t.Error("nothing counted")
			}
			// The same when the store is opened again.
			must(t, errors.Join(f.Checkpoint(), g.Checkpoint(), f.Close(), g.Close(), s.Close()))
			f = openLUN(t, open(t, dir, withSums()), lunA)
			wantWrong(t, f, c.want...)
			for _, r := range c.want { // and a write of the whole block ends it
				must(t, f.Heal(content(9, int(r.Len)), r.Off))
			}
			wantWrong(t, f)
			if n := f.s.SumsCounts().Healed; n == 0 {
				t.Error("nothing counted as healed")
			}
		})
	}
}

// TestAnOlderCopyOfAnImageIsFound: everything that it lacks.
func TestAnOlderCopyOfAnImageIsFound(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	f := newLUN(t, s, lunA, 1<<20)
	must(t, f.WriteAt(content(1, 64<<10), 0))
	must(t, f.Checkpoint())
	name := imageOf(t, s, lunA).Name()
	older, err := os.ReadFile(name)
	must(t, err)
	must(t, f.WriteAt(content(2, 8192), 8192))
	must(t, f.WriteAt(content(3, 4096), 512<<10))
	must(t, errors.Join(f.Checkpoint(), f.Close(), s.Close(), os.WriteFile(name, older, 0o600)))
	wantWrong(t, openLUN(t, open(t, dir, withSums()), lunA), Range{8192, 8192}, Range{512 << 10, 4096})
}

func TestUnalignedReads(t *testing.T) {
	const size = 1<<20 + 1536
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, size)
	model := content(1, size)
	must(t, f.WriteAt(model, 0))
	flip(t, s, lunA, 200<<10)
	flip(t, s, lunA, size-1)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 600 {
		off := rnd.Int64N(size) &^ 511
		n := min(512+rnd.Int64N(20000)&^511, size-off)
		if rnd.IntN(4) == 0 {
			off = max(0, off&^4095-512)
			n = min(n, size-off)
		}
		hit := func(at, length int64) bool { return off < at+length && at < off+n }
		var want []Range
		if hit(200<<10, 4096) {
			want = append(want, Range{200 << 10, 4096})
		}
		if hit(1<<20, 1536) {
			want = append(want, Range{1 << 20, 1536})
		}
		if got := wrong(t, f, off, n); !reflect.DeepEqual(got, want) {
			t.Fatalf("read %d+%d: %v, want %v", off, n, got, want)
		}
		p := make([]byte, n)
		ok := f.ReadCached(p, off)
		if want == nil {
			reads(t, f, off, model[off:off+n])
		}
		if ok && (want != nil || !bytes.Equal(p, model[off:off+n])) {
			t.Fatalf("read %d+%d of the page cache is not what was written", off, n)
		}
		if !ok && want == nil && f.probing != probeNever {
			t.Fatalf("read %d+%d is not in the page cache", off, n)
		}
	}
	for _, x := range []Range{{size, 512}, {size - 512, 1024}, {1 << 20, 4096}, {size + 4096, 4096}, {size + 512, 512}} {
		if err := f.ReadAt(make([]byte, x.Len), x.Off); !errors.Is(err, ErrRange) {
			t.Errorf("read %v: %v", x, err)
		}
		if f.ReadCached(make([]byte, x.Len), x.Off) {
			t.Errorf("read %v", x)
		}
	}
}

func TestReadMarked(t *testing.T) {
	const size = 1<<20 + 512
	for _, opts := range []Options{withSums(), {}} {
		s := open(t, t.TempDir(), opts)
		f := newLUN(t, s, lunA, size)
		model := content(1, size)
		must(t, f.WriteAt(model, 0))
		must(t, f.SetBad(8192, 4096))
		flip(t, s, lunA, 12288)
		flip(t, s, lunA, size-1)
		p := make([]byte, size)
		bad, err := f.ReadMarked(p, 0)
		must(t, err)
		var want []Range
		if f.obj != nil {
			want = []Range{{8192, 8192}, {1 << 20, 512}}
		} else {
			model[12288] ^= 4
			model[size-1] ^= 4
		}
		for _, r := range want {
			clear(model[r.Off:][:r.Len])
		}
		if !reflect.DeepEqual(bad, want) || !bytes.Equal(p, model) {
			t.Errorf("%v, want %v, equal %v", bad, want, bytes.Equal(p, model))
		}
		for _, x := range []Range{{512, 4096}, {0, 512}, {1 << 20, 1024}, {-4096, 4096}} {
			if _, err := f.ReadMarked(make([]byte, x.Len), x.Off); !errors.Is(err, ErrRange) {
				t.Errorf("%v: %v", x, err)
			}
			if err := f.Heal(make([]byte, x.Len), x.Off); !errors.Is(err, ErrRange) {
				t.Errorf("heal %v: %v", x, err)
			}
			if err := f.SetBad(x.Off, x.Len); !errors.Is(err, ErrRange) {
				t.Errorf("mark %v: %v", x, err)
			}
			if _, err := f.Accept(x.Off, x.Len); !errors.Is(err, ErrRange) {
				t.Errorf("accept %v: %v", x, err)
			}
		}
		must(t, f.Heal(content(5, 4096), 8192))
		reads(t, f, 8192, content(5, 4096))
		must(t, f.Checkpoint())
	}
}

// TestHealVerified: what a joiner has is written only if it is what the checksums say that the
// blocks were.
func TestHealVerified(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, 1<<20)
	was, older := content(1, 8192), content(2, 8192)
	must(t, f.WriteAt(was, 4096))
	spoil := func() {
		t.Helper()
		must(t, f.writeRaw(content(3, 8192), 4096))
	}
	damaged := func(err error) bool { return errors.Is(err, ErrChecksum) }
	spoil()
	if err := f.HealVerified(older, 4096); !damaged(err) {
		t.Errorf("older content: %v", err)
	}
	if err := f.HealVerified(append(was[:4096:4096], older[4096:]...), 4096); !damaged(err) {
		t.Errorf("one block is older: %v", err)
	}
	if err := f.ReadAt(make([]byte, 8192), 4096); !damaged(err) {
		t.Errorf("written all the same: %v", err)
	}
	must(t, f.HealVerified(was, 4096))
	reads(t, f, 4096, was)
	spoil()
	f.Doubt(4096, 8192)
	if err := f.HealVerified(was, 4096); !damaged(err) {
		t.Errorf("in doubt: %v", err)
	}
	must(t, f.SetBad(4096, 8192))
	if err := f.HealVerified(was, 4096); !damaged(err) {
		t.Errorf("known to be lost: %v", err)
	}
	if err := f.HealVerified(was, 512); !errors.Is(err, ErrRange) {
		t.Errorf("not whole blocks: %v", err)
	}
	plain := newLUN(t, open(t, t.TempDir(), Options{}), lunA, 1<<20)
	if err := plain.HealVerified(was, 4096); !damaged(err) {
		t.Errorf("without checksums: %v", err)
	}
}

func TestHoleOfUnwrittenAndDiscardedRanges(t *testing.T) {
	for _, opts := range []Options{withSums(), {}} {
		s := open(t, t.TempDir(), opts)
		f := newLUN(t, s, lunA, 4<<20+512)
		must(t, f.WriteAt(content(1, 256<<10), 1<<20))
		is := func(want bool, off, length int64) {
			t.Helper()
			if got, err := f.Hole(off, length); err != nil || got != want {
				t.Errorf("%d+%d is a hole: %v, %v", off, length, got, err)
			}
		}
		is(true, 0, 1<<20)
		is(false, 0, 2<<20)
		is(false, 1<<20, 4096)
		is(true, 2<<20, 2<<20+512)
		must(t, f.Discard(1<<20, 128<<10))
		is(true, 1<<20, 128<<10)
		must(t, unix.Fallocate(int(imageOf(t, s, lunA).Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20+128<<10, 64<<10))
		is(f.obj == nil, 1<<20+128<<10, 64<<10)
		if f.obj != nil {
			f.Doubt(1<<20+128<<10, 64<<10)
			is(true, 1<<20+128<<10, 64<<10)
			if f.DoubtedBlocks() != 0 {
				t.Errorf("%d in doubt", f.DoubtedBlocks())
			}
			is(true, 1<<20+128<<10, 64<<10) // it is settled
			reads(t, f, 1<<20+128<<10, make([]byte, 64<<10))
		}
	}
}

// rotSector makes the checksums of 126 blocks unknown, of a LUN that is not open.
func rotSector(t *testing.T, dir, id string, sector int64) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, sumsDir, DefaultBackingVolume, "luns", id+sumsSuffix), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("rotten"), 4096+sector*512+100)
	must(t, errors.Join(err, f.Close()))
}

// unreadable is a disk with a block that it cannot read.
func unreadable(at int64) FaultFunc {
	return func(op, _ string, off, length int64) error {
		if op == FaultRead && off < at+4096 && at < off+length {
			return syscall.EIO
		}
		return nil
	}
}

func TestNoAllocationWithChecksums(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, 8<<20)
	p := content(1, 4096)
	must(t, f.WriteAt(p, 4096))
	n := testing.AllocsPerRun(200, func() {
		if f.WriteAt(p, 4096) != nil || f.ReadAt(p, 4096) != nil || f.probing != probeNever && !f.ReadCached(p, 4096) {
			t.Error("I/O failed")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per write and reads", n)
	}
}

// BenchmarkBlock is what 4 KiB in the page cache cost, with checksums in memory and without.
func BenchmarkBlock(b *testing.B) {
	for name, opts := range map[string]Options{"plain": {}, "sums": {Sums: &SumsOptions{Budget: 64 << 20}}} {
		s, err := Open(b.TempDir(), testIdent, opts)
		must(b, err)
		must(b, s.Default().CreateLUN(lunA, 64<<20, NoBirth))
		f, err := s.Default().OpenLUN(lunA)
		must(b, err)
		p := content(1, 64<<20)
		must(b, errors.Join(f.WriteAt(p, 0), f.Checkpoint()))
		for what, do := range map[string]func(off int64) error{
			"ReadAt": func(off int64) error { return f.ReadAt(p[:4096], off) },
			"ReadCached": func(off int64) error {
				if !f.ReadCached(p[:4096], off) {
					return errors.New("not cached")
				}
				return nil
			},
			"WriteAt": func(off int64) error { return f.WriteAt(p[:4096], off) },
		} {
			b.Run(what+"/"+name, func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				for b.Loop() {
					must(b, do(r.Int64N(16<<10)*4096))
				}
			})
		}
		must(b, errors.Join(f.Close(), s.Close()))
	}
}
