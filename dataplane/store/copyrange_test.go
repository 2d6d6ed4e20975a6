package store

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

// What is zero stays a hole where that saves space; otherwise one piece is one extent.
func TestWriteNonzero(t *testing.T) {
	for name, c := range map[string]struct {
		blocks string // of a piece: x has data
		want   int64  // blocks that are allocated
	}{
		"nothing":           {"....", 0},
		"all":               {"xxxx", 4},
		"the ends are zero": {".xx.", 2},
		"half of it":        {"x.x.", 3},
		"two of four, far":  {"x..x", 4},
		"one":               {"..x.", 1},
		"few, far apart":    {"x..........x", 2},
		"one, and no other": {"x", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, reflinked.Dir(t, 512<<20), Options{})
			size := int64(len(c.blocks)) * 4096
			_, f := pairOf(t, s, size)
			p := make([]byte, size)
			for i, x := range c.blocks {
				if x == 'x' {
					copy(p[i*4096:], content(uint64(i+1), 4096))
				}
			}
			must(t, f.writeNonzero(p, 0))
			must(t, f.Sync())
			if got := readAll(t, f, size); !bytes.Equal(got, p) {
				t.Error("it reads as something else", firstDifference(got, p))
			}
			var st unix.Stat_t
			full, _, err := s.Default().path(kindSnapshot, snapA)
			must(t, errors.Join(err, unix.Stat(full, &st)))
			if got := st.Blocks / 8; got != c.want {
				t.Errorf("%d blocks are allocated, %d expected", got, c.want)
			}
		})
	}
}

// A write that has to have a piece copied first is not prompt: that may take a read of the disk.
func TestFirstWriteIsNotPrompt(t *testing.T) {
	for name, opts := range map[string]Options{"plain": {NoReflink: true}, "with checksums": {NoReflink: true, Sums: &SumsOptions{}}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir(), opts)
			lun, snap := pairOf(t, s, 4*copyPiece)
			must(t, lun.WriteAt(content(1, 4*copyPiece), 0))
			prompt := func(what string, off, length int64, want bool) {
				t.Helper()
				if got := lun.Prompt(off, length); got != want {
					t.Errorf("%s: prompt is %v", what, got)
				}
			}
			prompt("before", 0, 4096, true)
			x, err := lun.CopyTo(snap, 4*copyPiece, false)
			must(t, err)
			prompt("a first write", copyPiece, 4096, false)
			must(t, lun.WriteAt(content(2, 4096), copyPiece))
			prompt("a second write", copyPiece+8192, 4096, true)
			prompt("a write to two pieces of which one is there", copyPiece, 2*copyPiece, false)
			must(t, x.Run(context.Background()))
			prompt("after", 0, 4*copyPiece, true)
		})
	}
}

// Copies in the background of one backing volume take turns. A first write does not wait for a
// turn.
func TestCopiesTakeTurns(t *testing.T) {
	arrived, free := make(chan string), make(chan struct{})
	var on atomic.Bool
	s := open(t, t.TempDir(), Options{NoReflink: true, Faults: func(op, path string, _, _ int64) error {
		if op == FaultWrite && on.Load() && strings.Contains(path, string(kindSnapshot)) {
			arrived <- path
			<-free
		}
		return nil
	}})
	v := s.Default()
	var luns []*File
	ran := make(chan error, 2)
	for i, ids := range [][2]string{{lunA, snapA}, {lunB, snapB}} {
		must(t, v.CreateLUN(ids[0], copyPiece, uint64(2*i+1)))
		must(t, v.CreateSnapshot(ids[1], copyPiece, uint64(2*i+2)))
		lun, err := v.OpenLUN(ids[0])
		must(t, err)
		snap, err := v.OpenSnapshot(ids[1])
		must(t, err)
		defer lun.Close()
		defer snap.Close()
		must(t, lun.WriteAt(content(1, copyPiece), 0))
		x, err := lun.CopyTo(snap, copyPiece, false)
		must(t, err)
		luns = append(luns, lun)
		on.Store(true)
		go func() { ran <- x.Run(context.Background()) }()
		if i == 0 {
			<-arrived
		}
	}
	select {
	case path := <-arrived:
		t.Fatalf("%s is copied at the same time", path)
	case <-time.After(20 * time.Millisecond):
	}
	wrote := make(chan error, 1)
	go func() { wrote <- luns[1].WriteAt(content(2, 4096), 0) }()
	<-arrived
	close(free)
	must(t, errors.Join(<-wrote, <-ran, <-ran))
}

// What is dirty is written out before pieces are shared, and no write waits for that.
func TestWriteGoesOnWhileACopyCleans(t *testing.T) {
	arrived, free := make(chan struct{}, 16), make(chan struct{})
	var on atomic.Bool
	s := open(t, reflinked.Dir(t, 512<<20), Options{Faults: func(op, _ string, _, _ int64) error {
		if op == FaultWriteback && on.Load() {
			arrived <- struct{}{}
			<-free
		}
		return nil
	}})
	lun, snap := pairOf(t, s, 4*copyPiece)
	must(t, lun.WriteAt(content(1, 4*copyPiece), 0))
	x, err := lun.CopyTo(snap, 4*copyPiece, false)
	must(t, err)
	on.Store(true)
	ran := make(chan error, 1)
	go func() { ran <- x.Run(context.Background()) }()
	<-arrived
	wrote := make(chan error, 1)
	go func() { wrote <- lun.WriteAt(content(2, 4096), 0) }()
	select {
	case err := <-wrote:
		must(t, err)
	case <-time.After(10 * time.Second):
		t.Error("a write waits until what is dirty has been written out")
	}
	on.Store(false)
	close(free)
	must(t, <-ran)
	if got := readAll(t, snap, 4*copyPiece); !bytes.Equal(got, content(1, 4*copyPiece)) {
		t.Error("the copy differs", firstDifference(got, content(1, 4*copyPiece)))
	}
}
