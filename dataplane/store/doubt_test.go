package store

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
)

func TestDoubtAgainstAModel(t *testing.T) {
	const blocks = 5*doubtBlocks + 17
	rnd := rand.New(rand.NewPCG(1, 9))
	var d doubt
	model := map[int64]bool{}
	for range 2000 {
		first := rnd.Int64N(blocks)
		n := min(1+rnd.Int64N(100), blocks-first)
		switch rnd.IntN(8) {
		case 0:
			n = min(rnd.Int64N(3*doubtBlocks)+1, blocks-first)
		case 1:
			first &^= doubtBlocks - 1
			n = min(doubtBlocks, blocks-first)
		}
		any := false
		for b := first; b < first+n; b++ {
			any = any || model[b]
		}
		if got := d.any(first, n); got != any {
			t.Fatalf("%d+%d in doubt: %v", first, n, got)
		}
		if rnd.IntN(2) == 0 {
			d.add(first, n)
			for b := first; b < first+n; b++ {
				model[b] = true
			}
		} else {
			was := int64(0)
			for b := first; b < first+n; b++ {
				if model[b] {
					was++
				}
				delete(model, b)
			}
			if got := d.clear(first, n); got != was {
				t.Fatalf("cleared %d of %d+%d, want %d", got, first, n, was)
			}
		}
		if d.blocks() != int64(len(model)) {
			t.Fatalf("%d in doubt, want %d", d.blocks(), len(model))
		}
	}
	for b := range int64(blocks) {
		if d.any(b, 1) != model[b] {
			t.Fatalf("block %d", b)
		}
	}
	d.clear(0, blocks)
	if len(d.maps) != 0 || d.blocks() != 0 {
		t.Errorf("%d maps, %d blocks are left", len(d.maps), d.blocks())
	}
}

// TestAWholeLUNInDoubtIsSmall: a store that was not trusted has all of its LUNs in doubt.
func TestAWholeLUNInDoubtIsSmall(t *testing.T) {
	var d doubt
	d.add(0, 1<<28) // 1 TiB
	for key, m := range d.maps {
		if m != nil {
			t.Fatalf("a bitmap for %d", key)
		}
	}
	d.clear(1000, 1<<27)
	if d.blocks() != 1<<27 {
		t.Errorf("%d", d.blocks())
	}
}

// TestDoubtIsSettled by whatever reads or writes a block, and until then accepts it.
func TestDoubtIsSettled(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, 16<<20+512)
	model := content(1, 16<<20+512)
	must(t, f.WriteAt(model, 0))
	g := openLUN(t, s, lunA)
	if f.DoubtedIn(0, 16<<20) || f.DoubtedBlocks() != 0 {
		t.Error("in doubt from the beginning")
	}
	f.Doubt(4<<20, 4<<20)
	f.Doubt(16<<20, 1<<20) // beyond the end
	f.Doubt(-5, 4)
	f.Doubt(5, 0)
	if g.DoubtedBlocks() != 1025 || !g.DoubtedIn(8<<20-512, 512) || g.DoubtedIn(8<<20, 8<<20) || !g.DoubtedIn(16<<20, 512) || g.DoubtedIn(0, 4<<20) {
		t.Errorf("%d blocks in doubt", g.DoubtedBlocks())
	}
	rot := func(at int64) { flip(t, s, lunA, at); model[at] ^= 4 }
	for _, at := range []int64{4 << 20, 5 << 20, 5<<20 + 4096, 6 << 20, 7 << 20, 7<<20 + 9000} {
		rot(at)
	}
	flip(t, s, lunA, 9<<20) // not in doubt
	if p := make([]byte, 4096); f.ReadCached(p, 4<<20) {
		t.Error("what is in doubt and does not check is read without being settled")
	}
	reads(t, f, 4<<20, model[4<<20:][:4096])
	if n := g.DoubtedBlocks(); n != 1024 || g.DoubtedIn(4<<20, 4096) {
		t.Errorf("%d in doubt after a read of one", n)
	}
	flip(t, s, lunA, 4<<20+1) // it is believed now
	if got := wrong(t, g, 4<<20, 4096); len(got) != 1 {
		t.Errorf("%v", got)
	}
	must(t, f.Heal(model[4<<20:][:4096], 4<<20))
	reads(t, f, 5<<20+512, model[5<<20+512:][:4096]) // parts of two
	if n := g.DoubtedBlocks(); n != 1022 {
		t.Errorf("%d in doubt", n)
	}
	p := content(3, 512)
	must(t, f.WriteAt(p, 6<<20+1024)) // the rest of the block is taken as it is
	copy(model[6<<20+1024:], p)
	must(t, f.WriteAt(content(4, 8192), 7<<20))
	copy(model[7<<20:], content(4, 8192))
	must(t, f.Discard(7<<20+12288, 4096))
	clear(model[7<<20+12288:][:4096])
	if n := g.DoubtedBlocks(); n != 1018 {
		t.Errorf("%d in doubt", n)
	}
	must(t, f.SetBad(8<<20-4096, 4096)) // who says so knows
	wantWrong(t, f, Range{8<<20 - 4096, 4096}, Range{9 << 20, 4096})
	if n := g.DoubtedBlocks(); n != 0 {
		t.Errorf("%d in doubt when all was read", n)
	}
	reads(t, f, 4<<20, model[4<<20:8<<20-4096])
	wantWrong(t, g, Range{8<<20 - 4096, 4096}, Range{9 << 20, 4096})
	if s.SumsCounts().Settled == 0 {
		t.Error("nothing counted")
	}
}

// TestDoubtOutlivesItsFiles: a LUN that is closed and opened again in the same life of a node is as
// much in doubt as it was.
func TestDoubtOutlivesItsFiles(t *testing.T) {
	s := open(t, t.TempDir(), withSums())
	f := newLUN(t, s, lunA, 1<<20)
	must(t, f.WriteAt(content(1, 1<<20), 0))
	f.Doubt(0, 8192)
	must(t, f.Close())
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	flip(t, s, lunA, 0)
	f = openLUN(t, s, lunA)
	if f.DoubtedBlocks() != 2 {
		t.Errorf("%d in doubt", f.DoubtedBlocks())
	}
	wantWrong(t, f)
	if len(s.Default().opened.all) != 1 {
		t.Error("two objects")
	}
	must(t, f.Close())
	if len(s.Default().opened.all) != 0 {
		t.Error("an object is kept that knows nothing more than its file")
	}
}

// TestCheckpointedBlocksAreTrustedAfterACrash: what a checkpoint covered is believed; what was
// written after it is not, where the caller says so, and is accepted.
func TestCheckpointedBlocksAreTrustedAfterACrash(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, withSums())
	f := newLUN(t, s, lunA, 16<<20)
	model := content(1, 16<<20)
	must(t, f.WriteAt(model, 0))
	must(t, f.Checkpoint())
	write := func(off int64, n int) {
		t.Helper()
		p := content(uint64(off), n)
		must(t, f.WriteAt(p, off))
		copy(model[off:], p)
	}
	write(4<<20, 64<<10)
	write(5<<20+512, 512)
	must(t, f.Discard(6<<20, 64<<10))
	clear(model[6<<20:][:64<<10])
	must(t, f.Sync())
	flip(t, s, lunA, 12<<20)
	x := crashed(t, dir, withSums())
	g := openLUN(t, x, lunA)
	if n := len(wrong(t, g, 4<<20, 4<<20)); n == 0 {
		t.Error("checksums that were only in memory are there after a crash")
	}
	g.Doubt(4<<20, 4<<20) // whose write-intent bit is set
	wantWrong(t, g, Range{12 << 20, 4096})
	reads(t, g, 0, model[:12<<20])
	must(t, g.Checkpoint())
	must(t, g.Close())
	g = openLUN(t, x, lunA)
	wantWrong(t, g, Range{12 << 20, 4096})
	reads(t, g, 0, model[:12<<20])
}
