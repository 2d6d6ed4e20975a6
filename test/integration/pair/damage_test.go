package pair

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

const mib = 1 << 20

// damaged is a pair with a LUN of 4 MiB and one of 2 MiB, both full and without unconfirmed
// checksums.
type damaged struct {
	*harness.Pair
	t       *testing.T
	ctx     context.Context
	id      string
	want    []byte
	other   []byte
	d       *initiator.Device
	flushed [2][]byte // the images as they were before the last write
}

func newDamaged(t *testing.T) *damaged {
	t.Helper()
	p, ctx := start(t)
	x := &damaged{Pair: p, t: t, ctx: ctx, want: pattern(4*mib, 1), other: pattern(2*mib, 2)}
	l, m := createLUN(t, ctx, p, 4*mib, "a")
	x.id, x.d = l.Uuid, open(t, ctx, m)
	_, m2 := createLUN(t, ctx, p, 2*mib, "a")
	x.write(pattern(4*mib, 3))
	for i := range harness.Names {
		b, err := os.ReadFile(x.image(i))
		x.must(err)
		x.flushed[i] = b
	}
	x.write(x.want)
	_, err := open(t, ctx, m2).WriteAt(ctx, x.other, 0)
	x.must(err)
	return x
}

func (x *damaged) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *damaged) write(p []byte) {
	x.t.Helper()
	_, err := x.d.WriteAt(x.ctx, p, 0)
	x.must(err)
}

func (x *damaged) image(i int) string {
	return filepath.Join(x.State[i], "volumes", "default", "luns", x.id+".img")
}

func (x *damaged) sums(i int) string {
	return filepath.Join(x.State[i], "sums", "default", "luns", x.id+".sums")
}

// change opens a file and changes it.
func (x *damaged) change(path string, fn func(f *os.File) error) {
	x.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	x.must(err)
	x.must(errors.Join(fn(f), f.Close()))
}

// holds reads all of the LUN over the node that owns it.
func (x *damaged) holds() {
	x.t.Helper()
	got := make([]byte, len(x.want))
	_, err := x.d.ReadAt(x.ctx, got, 0)
	x.must(err)
	if !bytes.Equal(got, x.want) {
		x.t.Fatal("wrong bytes")
	}
}

// owner moves the LUN, and reads it there: the copy of that node.
func (x *damaged) owner(i int) {
	x.t.Helper()
	_, err := x.Client(0).TransferOwnership(x.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{x.id}, ToNode: harness.Names[i]})
	x.must(err)
	x.holds()
}

// scrub compares all blocks until none differs.
func (x *damaged) scrub() {
	x.t.Helper()
	x.must(harness.Wait(x.ctx, "a scrub finds nothing", func() (bool, string) {
		r, err := x.Client(0).Scrub(x.ctx, &targetv1.ScrubRequest{BytesPerSecond: 1 << 30})
		if err != nil || len(r.Shares) == 0 {
			return false, "no share was begun"
		}
		clean, saw := true, ""
		for i := range harness.Names {
			var last *targetv1.Scrub
			err := harness.Wait(x.ctx, "the scrub ends", func() (bool, string) {
				s, err := x.Status(x.ctx, i)
				if err != nil {
					return false, err.Error()
				}
				last = s.LastScrub
				return last.GetId() == r.Shares[0].Id && !s.Scrub.GetActive(), s.Scrub.String()
			})
			x.must(err)
			clean = clean && last.Reason == "" && last.MismatchedRanges == 0 && last.SkippedRanges == 0
			saw += last.String() + "; "
		}
		return clean, saw
	}))
}

// restart stops a node, damages it, and starts it again.
func (x *damaged) restart(i int, damage func()) {
	x.t.Helper()
	x.must(x.Term(i))
	damage()
	x.must(x.StartNode(i))
	x.must(x.WaitInSync(x.ctx))
}

// ends checks that both processes were not restarted, that neither has printed a stack trace, and
// that both copies are equal.
func (x *damaged) ends() {
	x.t.Helper()
	x.owner(0)
	x.owner(1)
	for i := range harness.Names {
		x.must(x.Term(i))
		lastLine(x.t, x.Pair, i, 0)
	}
	a, err := os.ReadFile(x.image(0))
	x.must(err)
	b, err := os.ReadFile(x.image(1))
	x.must(err)
	if !bytes.Equal(a, b) || !bytes.Equal(a, x.want) {
		x.t.Error("the copies are not what was written")
	}
}

// TestDamageOfAnImage makes each kind of damage of docs/operations.md (Damaged blocks) that an
// image can have while two processes are well or one of them is stopped: hosts read what they
// wrote, at either node.
func TestDamageOfAnImage(t *testing.T) {
	at := func(off int64, b []byte) func(*os.File) error {
		return func(f *os.File) error { _, err := f.WriteAt(b, off); return err }
	}
	running := map[string]func(x *damaged, i int) func(*os.File) error{
		"bits flipped": func(x *damaged, _ int) func(*os.File) error {
			b := bytes.Clone(x.want[mib : mib+512])
			b[77] ^= 4
			return at(mib, b)
		},
		"zeroes":                func(*damaged, int) func(*os.File) error { return at(2*mib, make([]byte, 64<<10)) },
		"noise":                 func(*damaged, int) func(*os.File) error { return at(mib+12345, pattern(100_000, 9)) },
		"blocks of another LUN": func(x *damaged, _ int) func(*os.File) error { return at(mib, x.other[:8192]) },
		"blocks of another place": func(x *damaged, _ int) func(*os.File) error {
			return at(mib, x.want[3*mib:3*mib+8192])
		},
		"a write that was lost": func(x *damaged, i int) func(*os.File) error { return at(mib, x.flushed[i][mib:mib+4096]) },
		"a hole": func(*damaged, int) func(*os.File) error {
			return func(f *os.File) error {
				return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, mib, 512<<10)
			}
		},
		"cut off": func(*damaged, int) func(*os.File) error {
			return func(f *os.File) error { return f.Truncate(mib + 512) }
		},
	}
	for name, damage := range running {
		for i, node := range harness.Names {
			t.Run(name+" while node "+node+" runs", func(t *testing.T) {
				t.Parallel()
				x := newDamaged(t)
				x.change(x.image(i), damage(x, i))
				x.holds()
				x.scrub()
				x.ends()
			})
		}
	}
	stopped := map[string]func(x *damaged, i int){
		"missing": func(x *damaged, i int) { x.must(os.Remove(x.image(i))) },
		"cut off": func(x *damaged, i int) { x.change(x.image(i), func(f *os.File) error { return f.Truncate(mib) }) },
		"something appended": func(x *damaged, i int) {
			x.change(x.image(i), func(f *os.File) error { return f.Truncate(5 * mib) })
		},
		"an older copy": func(x *damaged, i int) {
			x.change(x.image(i), func(f *os.File) error { _, err := f.WriteAt(x.flushed[i], 0); return err })
		},
		"no checksums": func(x *damaged, i int) { x.must(os.Remove(x.sums(i))) },
		"damaged checksums": func(x *damaged, i int) {
			x.change(x.sums(i), func(f *os.File) error { _, err := f.WriteAt(pattern(700, 8), 4096+100); return err })
		},
		"a stranger's file": func(x *damaged, i int) {
			x.must(os.Remove(x.image(i)))
			x.must(os.WriteFile(x.image(i), pattern(4*mib, 7), 0o600))
		},
	}
	for name, damage := range stopped {
		for i, node := range harness.Names {
			t.Run(name+" while node "+node+" is stopped", func(t *testing.T) {
				t.Parallel()
				x := newDamaged(t)
				x.restart(i, func() { damage(x, i) })
				x.holds()
				x.scrub()
				x.ends()
			})
		}
	}
}

// TestDamageOfTheOnlyCopy: no host gets wrong bytes of a block without another copy; the other
// blocks are served.
func TestDamageOfTheOnlyCopy(t *testing.T) {
	t.Run("a block", func(t *testing.T) {
		t.Parallel()
		x := newDamaged(t)
		x.must(x.Term(1))
		x.must(x.WaitPhase(x.ctx, 0, targetv1.Phase_PHASE_ALONE))
		b := bytes.Clone(x.want[mib : mib+512])
		b[3] ^= 1
		x.change(x.image(0), func(f *os.File) error { _, err := f.WriteAt(b, mib); return err })
		if _, err := x.d.ReadAt(x.ctx, make([]byte, 4096), mib); !errors.Is(err, initiator.ErrMedium) {
			t.Fatalf("want a MEDIUM ERROR, got %v", err)
		}
		got := make([]byte, mib)
		if _, err := x.d.ReadAt(x.ctx, got, 2*mib); err != nil || !bytes.Equal(got, x.want[2*mib:3*mib]) {
			t.Fatalf("other blocks: %v", err)
		}
		x.must(x.StartNode(1)) // which has the block
		x.must(x.WaitInSync(x.ctx))
		x.holds()
		x.ends()
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		x := newDamaged(t)
		x.must(x.Term(1))
		x.must(x.WaitPhase(x.ctx, 0, targetv1.Phase_PHASE_ALONE))
		x.must(x.Term(0))
		kept := x.image(0) + ".kept"
		x.must(os.Rename(x.image(0), kept))
		x.must(x.StartNode(0))
		x.must(x.WaitPhase(x.ctx, 0, targetv1.Phase_PHASE_ALONE))
		ctx, cancel := context.WithTimeout(x.ctx, 10*time.Second)
		defer cancel()
		if _, err := x.d.ReadAt(ctx, make([]byte, 4096), 0); !errors.Is(err, initiator.ErrMedium) {
			t.Fatalf("want a MEDIUM ERROR, got %v", err)
		}
		s, err := x.Status(x.ctx, 0)
		x.must(err)
		if !strings.Contains(s.String(), x.id) {
			t.Errorf("the status does not name the LUN: %v", s)
		}
		x.must(x.Term(0))
		x.must(os.Rename(kept, x.image(0)))
		x.must(x.StartNode(0))
		x.must(x.StartNode(1))
		x.must(x.WaitInSync(x.ctx))
		x.holds()
		x.ends()
	})
}
