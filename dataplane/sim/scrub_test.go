package sim

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A flipped block reads as something else until it is written, or taken back; what is durable is
// not touched by it.
func TestFlippedBlock(t *testing.T) {
	w := still()
	d := w.nodes[1].disk
	l := w.luns[0]
	d.luns[0][1].put(5, true)
	read := func() byte {
		b, _ := d.read(nil, l, 0, 16)
		return b[15]
	}
	d.luns[0][1].flip, w.flips = 1<<3, 1
	if read() != 13 || d.flipped() != "LUN 1 block 1" || d.luns[0][1].stable != 5 {
		t.Fatalf("%d %q", read(), d.flipped())
	}
	w.unflip()
	if read() != 5 || d.flipped() != "" {
		t.Fatalf("%d %q", read(), d.flipped())
	}
	d.luns[0][1].flip = 1
	if d.luns[0][1].put(6, false); read() != 6 {
		t.Fatal(read())
	}
	d.luns[0][0].flip = 1
	if _, hole := d.read(nil, l, 0, 8); hole {
		t.Fatal("a hole that has changed is none")
	}
}

// A scrub that ends without having found what changed is a violation; one that skipped something
// claims nothing.
func TestScrubIsJudged(t *testing.T) {
	for _, x := range []struct {
		name string
		view pair.ScrubView
		flip uint64
		fail bool
	}{
		{"missed", pair.ScrubView{}, 1, true},
		{"found", pair.ScrubView{}, 0, false},
		{"skipped", pair.ScrubView{Skipped: 1}, 1, false},
		{"stopped", pair.ScrubView{Reason: "the peer is not a member any more"}, 1, false},
		{"active", pair.ScrubView{Active: true}, 1, false},
	} {
		w := still()
		h := w.nodes[0]
		h.m = pair.New(pair.Config{})
		h.scrubbing, h.scrubAt = []scrubbedObject{{0, 0}}, 1
		w.nodes[1].disk.luns[0][0].flip = x.flip
		h.lookAtScrub(&pair.View{Scrub: x.view})
		if (w.res.Err != nil) != x.fail || (h.scrubbing != nil) != x.view.Active {
			t.Errorf("%s: %v", x.name, w.res.Err)
		}
	}
}

// A snapshot that was made during the scrub, in the place of one that was compared, was not
// compared.
func TestScrubIsNotJudgedByALaterSnapshot(t *testing.T) {
	for born, fail := range map[uint64]bool{7: true, 8: false} {
		w := still()
		h, slot := w.nodes[0], w.shape.luns
		h.m = pair.New(pair.Config{})
		w.nodes[1].disk.meta.Snaps[0].Born = 7
		h.scrubbing, h.scrubAt = []scrubbedObject{{slot, born}}, 1
		w.nodes[1].disk.luns[slot][0].flip = 1
		h.lookAtScrub(&pair.View{})
		if (w.res.Err != nil) != fail {
			t.Errorf("born %d: %v", born, w.res.Err)
		}
	}
}

// Two members are alike: a difference that no fault made is a violation.
func TestScrubFindsOnlyWhatWasChanged(t *testing.T) {
	for _, x := range []struct {
		flips int
		fail  bool
	}{{0, true}, {1, false}} {
		w := still()
		w.flips = x.flips
		h := w.nodes[0]
		h.m = pair.New(pair.Config{})
		h.m.Stats.ScrubMismatches = 1
		h.lookAtScrub(&pair.View{})
		if (w.res.Err != nil) != x.fail {
			t.Errorf("%d flips: %v", x.flips, w.res.Err)
		}
	}
}
