package sim

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A node begins with an object that is prepared, under its birth, one of a LUN at a time.
func TestBegins(t *testing.T) {
	for _, x := range []struct {
		name string
		was  snap
		born uint64
		want bool
	}{
		{"prepared", snap{Born: 3, Stage: stagePrepared}, 3, true},
		{"another one", snap{Born: 4, Stage: stagePrepared}, 3, false},
		{"marked", snap{Born: 3, Stage: stageMarked}, 3, false},
		{"gone", snap{}, 3, false},
	} {
		h := still().nodes[0]
		h.boot()
		h.disk.meta.Snaps[1] = x.was
		if got := h.begins(1, x.born); got != x.want || len(h.disk.copies) > 0 != x.want {
			t.Errorf("%s: %v, %d copies", x.name, got, len(h.disk.copies))
		}
		if x.want && h.begins(1, x.born) {
			t.Errorf("%s: it begins twice", x.name)
		}
	}
}

// What has begun and is not marked is in the way of the next one of its LUN for a while only.
func TestBegunInVain(t *testing.T) {
	w := still()
	h := w.nodes[0]
	h.boot()
	h.disk.meta.Snaps[0] = snap{Born: 3, Stage: stagePrepared}
	h.disk.meta.Snaps[2] = snap{Born: 4, Stage: stagePrepared}
	if !h.begins(0, 3) || h.begins(2, 4) {
		t.Fatal("two at a time")
	}
	w.now += beginKept
	if !h.begins(2, 4) || h.disk.copyOf(w.shape.luns, 3) != nil {
		t.Fatal("it is still in the way")
	}
	// The entry of the one that was given up comes late: this node has nothing of it.
	if res := h.applySnap(&entry{Snap: 1, Step: snapMark, Born: 3}, 9, false); res != scsi.OK || h.holds(0, 3) != heldVoid {
		t.Fatalf("%v, %v", resultName(res), h.holds(0, 3))
	}
}
