package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

const copyTestSize = 12*copyRegion + 5*copyPiece + 3*4096

// pairOf makes a LUN and an empty snapshot beside it, and opens both.
func pairOf(t testing.TB, s *Store, size int64) (lun, snap *File) {
	t.Helper()
	v := s.Default()
	must(t, v.CreateLUN(lunA, size, 1))
	must(t, v.CreateSnapshot(snapA, size, 2))
	lun, err := v.OpenLUN(lunA)
	must(t, err)
	snap, err = v.OpenSnapshot(snapA)
	must(t, err)
	t.Cleanup(func() { _, _ = lun.Close(), snap.Close() })
	return lun, snap
}

// readAll reads a file as hosts do.
func readAll(t testing.TB, f *File, size int64) []byte {
	t.Helper()
	p := make([]byte, size)
	for off := int64(0); off < size; off += 1 << 20 {
		if err := f.ReadAt(p[off:min(off+1<<20, size)], off); err != nil {
			t.Fatalf("read of %s at %d: %v", f.path, off, err)
		}
	}
	return p
}

// firstDifference is where two contents differ, for a message.
func firstDifference(a, b []byte) string {
	for i := range a {
		if a[i] != b[i] {
			return fmt.Sprintf("at %d (region %d, piece %d)", i, i/copyRegion, i%copyRegion/copyPiece)
		}
	}
	return "nowhere"
}

// Whatever is written while a copy is made, and whatever is read of it meanwhile: it is what the
// source was when it began.
func TestCopyIsWhatTheSourceWas(t *testing.T) {
	shared := reflinked.Dir(t, 512<<20)
	for _, c := range []struct {
		name string
		dir  string
		opts Options
	}{
		{"extents are shared", shared + "/plain", Options{}},
		{"extents are shared, with checksums", shared + "/sums", withSums()},
		{"without reflink", t.TempDir(), Options{NoReflink: true}},
		{"without reflink, with checksums", t.TempDir(), Options{NoReflink: true, Sums: &SumsOptions{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, c.dir, c.opts)
			lun, snap := pairOf(t, s, copyTestSize)
			rnd := rand.New(rand.NewPCG(1, 2))
			for i := range 200 { // with holes between
				must(t, lun.WriteAt(content(uint64(i+1), 8192), rnd.Int64N(copyTestSize/4096-1)*4096))
			}
			must(t, lun.Discard(copyRegion+3000, 200_000))
			want := readAll(t, lun, copyTestSize)

			x, err := lun.CopyTo(snap, copyTestSize, false)
			must(t, err)
			if _, err := lun.CopyTo(snap, copyTestSize, false); !errors.Is(err, ErrCopying) {
				t.Fatalf("a second copy at the same time: %v", err)
			}
			must(t, lun.WriteAt(content(7, 4096), 0)) // at least one write comes before all is copied
			var wg sync.WaitGroup
			var stop atomic.Bool
			for i := range 4 {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(3, uint64(i)))
					slot := int64(copyTestSize / 4096 / 4) // each has its part: the caller keeps writes apart
					for n := uint64(0); n < 300 || !stop.Load(); n++ {
						off := (int64(i)*slot + rnd.Int64N(slot-64)) * 4096
						switch n % 10 {
						case 0:
							must(t, lun.Discard(off+100, rnd.Int64N(200_000)))
						case 1:
							must(t, lun.WriteAtDurable(content(n, 4096), off))
						default:
							must(t, lun.WriteAt(content(n, 1000+rnd.IntN(9000)), off+rnd.Int64N(4096)))
						}
					}
				})
			}
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(5, 6))
				for range 50 {
					off := rnd.Int64N(copyTestSize - 100_000)
					p := make([]byte, 1+rnd.IntN(100_000))
					must(t, snap.ReadAt(p, off))
					if !bytes.Equal(p, want[off:off+int64(len(p))]) {
						t.Errorf("a read of the copy at %d+%d while it is made", off, len(p))
					}
				}
			})
			must(t, x.Run(t.Context()))
			stop.Store(true)
			wg.Wait()
			if got := readAll(t, snap, copyTestSize); !bytes.Equal(got, want) {
				t.Fatal("the copy differs", firstDifference(got, want))
			}
			st := x.State()
			if !st.Complete || st.Done != copyTestSize || st.Total != copyTestSize || st.Err != nil || st.Saved == 0 || st.Saved >= st.Done {
				t.Errorf("state %+v", st)
			}
			readAll(t, lun, copyTestSize) // its checksums are right
			must(t, lun.WriteAt(content(9, 4096), 0))
			if _, err := lun.CopyTo(snap, copyTestSize, false); err != nil {
				t.Errorf("a copy after the first one is complete: %v", err)
			}
		})
	}
}

// What is behind the copied part stays a hole, and a copy outlives the store.
func TestCopyIntoALongerLUN(t *testing.T) {
	dir := reflinked.Dir(t, 512<<20)
	s, err := Open(dir, testIdent, withSums())
	must(t, err)
	lun, snap := pairOf(t, s, copyRegion)
	must(t, snap.Close())
	must(t, lun.WriteAt(content(1, copyRegion), 0))
	must(t, s.Default().CreateLUN(lunB, 2*copyRegion, 3))
	to, err := s.Default().OpenLUN(lunB)
	must(t, err)
	x, err := lun.CopyTo(to, copyRegion, true)
	must(t, err)
	must(t, to.WriteAt(content(7, 4096), copyRegion)) // behind what is copied
	must(t, x.Run(t.Context()))
	must(t, errors.Join(lun.Close(), to.Close(), s.Close()))

	s = open(t, dir, withSums())
	if to, err = s.Default().OpenLUN(lunB); err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	want := append(content(1, copyRegion), make([]byte, copyRegion)...)
	copy(want[copyRegion:], content(7, 4096))
	if got := readAll(t, to, 2*copyRegion); !bytes.Equal(got, want) {
		t.Fatal("the copy differs", firstDifference(got, want))
	}
}

// The damage of the source is the copy's as well, and is seen there, too.
func TestCopyKeepsDamage(t *testing.T) {
	for _, share := range []bool{true, false} {
		t.Run(fmt.Sprintf("shared %v", share), func(t *testing.T) {
			o := withSums()
			o.NoReflink = !share
			s := open(t, reflinked.Dir(t, 512<<20), o)
			lun, snap := pairOf(t, s, copyRegion)
			must(t, lun.WriteAt(content(1, copyRegion), 0))
			must(t, lun.SetBad(8*4096, 4096))
			flip(t, s, lunA, 5000)
			lun.Doubt(20*4096, 4096)
			flip(t, s, lunA, 20*4096) // in doubt: its checksum is not believed
			x, err := lun.CopyTo(snap, copyRegion, false)
			must(t, err)
			must(t, lun.WriteAt(content(2, 4096), 4096)) // and it is whole again in the source
			must(t, x.Run(t.Context()))
			wantWrong(t, snap, Range{4096, 4096}, Range{8 * 4096, 4096})
			wantWrong(t, lun, Range{8 * 4096, 4096})
		})
	}
}

// No space for a copy fails the copy, and no write.
func TestCopyWithoutSpace(t *testing.T) {
	for _, op := range []string{FaultWrite, FaultClone, FaultSums} {
		t.Run(op, func(t *testing.T) {
			var full atomic.Bool
			o := withSums()
			o.Faults = func(at, path string, off, n int64) error {
				if full.Load() && at == op && bytes.Contains([]byte(path), []byte(snapA)) {
					return syscall.ENOSPC
				}
				return nil
			}
			s := open(t, reflinked.Dir(t, 512<<20), o)
			lun, snap := pairOf(t, s, 2*copyRegion)
			must(t, lun.WriteAt(content(1, 2*copyRegion), 0))
			x, err := lun.CopyTo(snap, 2*copyRegion, false)
			must(t, err)
			full.Store(true)
			must(t, lun.WriteAt(content(2, 4096), 0)) // fails the copy, if it is a write of data
			if err := x.Run(t.Context()); !errors.Is(err, ErrCopyFailed) || !errors.Is(err, ErrNoSpace) {
				t.Fatalf("run: %v", err)
			}
			if st := x.State(); st.Complete || !errors.Is(st.Err, ErrNoSpace) {
				t.Errorf("state %+v", st)
			}
			must(t, lun.WriteAt(content(3, 4096), copyRegion))
			must(t, s.Failed())
			if err := snap.ReadAt(make([]byte, 4096), copyRegion+64<<10); !errors.Is(err, ErrCopyFailed) && op != FaultSums {
				t.Errorf("a read of a copy that has failed: %v", err)
			}
			full.Store(false)
			x.Drop()
			must(t, snap.Discard(0, 2*copyRegion)) // an ordinary file
			if got := readAll(t, snap, 2*copyRegion); !AllZero(got) {
				t.Error("it is not")
			}
		})
	}
}

// A copy that is dropped touches nothing any more, and its source can have another one.
func TestDropWaitsForWhatIsUnderWay(t *testing.T) {
	began, free := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o := Options{NoReflink: true, Faults: func(op, path string, _, _ int64) error {
		if op == FaultWrite && bytes.Contains([]byte(path), []byte(snapA)) {
			once.Do(func() { close(began); <-free })
		}
		return nil
	}}
	s := open(t, t.TempDir(), o)
	lun, snap := pairOf(t, s, copyRegion)
	must(t, lun.WriteAt(content(1, copyRegion), 0))
	x, err := lun.CopyTo(snap, copyRegion, false)
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { must(t, lun.WriteAt(content(2, 4096), 0)) })
	<-began
	dropped := make(chan struct{})
	go func() { x.Drop(); close(dropped) }()
	select {
	case <-dropped:
		t.Fatal("dropped while a piece is copied")
	case <-time.After(20 * time.Millisecond):
	}
	close(free)
	<-dropped
	wg.Wait()
	if err := x.Run(context.Background()); !errors.Is(err, ErrCopyFailed) {
		t.Errorf("run after that: %v", err)
	}
	must(t, snap.WriteAt(content(5, 4096), 0))
	must(t, lun.WriteAt(content(6, 4096), 0))
	if got := readAll(t, snap, 4096); !bytes.Equal(got, content(5, 4096)) {
		t.Error("what was dropped writes on")
	}
	if _, err := lun.CopyTo(snap, copyRegion, false); err != nil {
		t.Errorf("another copy: %v", err)
	}
}

// Run stops with its context; what is not there yet is still copied when it has to be.
func TestRunStops(t *testing.T) {
	s := open(t, t.TempDir(), Options{NoReflink: true})
	lun, snap := pairOf(t, s, copyRegion)
	must(t, lun.WriteAt(content(1, copyRegion), 0))
	x, err := lun.CopyTo(snap, copyRegion, false)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("run: %v", err)
	}
	must(t, lun.WriteAt(content(2, 4096), 0))
	if got := readAll(t, snap, copyRegion); !bytes.Equal(got, content(1, copyRegion)) {
		t.Fatal("the copy differs", firstDifference(got, content(1, copyRegion)))
	}
	if x.State().Complete {
		t.Error("complete, and it is not durable")
	}
}

func TestCopyRefuses(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	lun, snap := pairOf(t, s, copyRegion)
	if _, err := lun.CopyTo(snap, copyRegion+1, false); !errors.Is(err, ErrRange) {
		t.Errorf("more than there is: %v", err)
	}
	_, err := lun.CopyTo(snap, copyRegion, false)
	must(t, err)
	must(t, s.Default().CreateLUN(lunB, copyRegion, 3))
	to, err := s.Default().OpenLUN(lunB)
	must(t, err)
	defer to.Close()
	if _, err := snap.CopyTo(to, copyRegion, true); !errors.Is(err, ErrCopying) {
		t.Errorf("a copy of what is not complete: %v", err)
	}
}

// A write waits for the piece that somebody else copies, and does not change what that one reads.
func TestWriteWaitsForAPieceThatIsBeingCopied(t *testing.T) {
	began, free := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s := open(t, t.TempDir(), Options{NoReflink: true, Faults: func(op, path string, _, _ int64) error {
		if op == FaultWrite && bytes.Contains([]byte(path), []byte(snapA)) {
			once.Do(func() { close(began); <-free })
		}
		return nil
	}})
	lun, snap := pairOf(t, s, copyPiece)
	must(t, lun.WriteAt(content(1, copyPiece), 0))
	x, err := lun.CopyTo(snap, copyPiece, false)
	must(t, err)
	ran := make(chan error, 1)
	go func() { ran <- x.Run(context.Background()) }()
	<-began
	wrote := make(chan error, 1)
	go func() { wrote <- lun.WriteAt(content(2, 4096), 0) }()
	select {
	case <-wrote:
		t.Fatal("a write did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	close(free)
	must(t, errors.Join(<-wrote, <-ran))
	if got := readAll(t, snap, copyPiece); !bytes.Equal(got, content(1, copyPiece)) {
		t.Error("the copy differs", firstDifference(got, content(1, copyPiece)))
	}
}

// Complete means durable, the checksums too.
func TestCompleteIsDurable(t *testing.T) {
	var x atomic.Pointer[Copy]
	var synced, sums atomic.Bool
	o := Options{NoReflink: true, Sums: &SumsOptions{}, Faults: func(op, path string, _, _ int64) error {
		if c := x.Load(); c != nil && bytes.Contains([]byte(path), []byte(snapA)) {
			if (op == FaultSync || op == FaultSumsSync) && c.State().Complete {
				t.Errorf("%s of %s after it was complete", op, path)
			}
			synced.Store(synced.Load() || op == FaultSync)
			sums.Store(sums.Load() || op == FaultSumsSync)
		}
		return nil
	}}
	s := open(t, t.TempDir(), o)
	lun, snap := pairOf(t, s, copyRegion)
	must(t, lun.WriteAt(content(1, copyRegion), 0))
	c, err := lun.CopyTo(snap, copyRegion, false)
	must(t, err)
	x.Store(c)
	must(t, c.Run(t.Context()))
	if !synced.Load() || !sums.Load() {
		t.Errorf("flushed: data %v, checksums %v", synced.Load(), sums.Load())
	}
	x.Store(nil)
}

// A copy of what is mostly holes takes no space for its checksums where there are no data.
func TestCopyOfHolesTakesNoSpace(t *testing.T) {
	const size = 64 << 30
	s := open(t, reflinked.Dir(t, 512<<20), withSums())
	lun, snap := pairOf(t, s, size)
	must(t, lun.WriteAt(content(1, 4096), size/2))
	x, err := lun.CopyTo(snap, size, false)
	must(t, err)
	must(t, x.Run(t.Context()))
	var st unix.Stat_t
	must(t, unix.Stat(s.Default().sumsPath(kindSnapshot, snapA), &st))
	if took := st.Blocks * 512; took > 256<<10 {
		t.Errorf("the checksums of one block take %d bytes", took)
	}
	must(t, snap.ReadAt(make([]byte, 4096), size/2))
}
