package sim

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// copying is a disk with one LUN of four blocks, values 1 to 4, and an object of it that has been
// marked. A checksum is of two blocks.
func copying(pages int) (d *disk, c *lazyCopy, lun, object pair.LUNID) {
	d = newDisk("x", 1, 1, 4, pages)
	lun, object = pair.LUNID{1}, pair.LUNID{2, 15: 7}
	for b := range int64(4) {
		d.write(lun, b*blockSize, value(uint64(b+1)), true, nil)
		d.putting()()
	}
	d.meta.Snaps[0] = snap{Born: 7, Stage: stageMarked}
	c = &lazyCopy{lun: 0, object: 1, born: 7, done: make([]bool, 4/d.groupSize()), room: func() bool { return true }}
	d.copies = append(d.copies, c)
	return d, c, lun, object
}

func value(v uint64) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, byte(v)} }

func (d *disk) shows(t *testing.T, object int, want ...uint64) {
	t.Helper()
	for b, v := range want {
		if got := d.luns[object][b].cache; got != v {
			t.Errorf("object %d block %d holds %d, not %d", object, b, got, v)
		}
	}
}

// What is about to change is copied first, with all that its checksum is of, into the page cache.
func TestBlockIsCopiedBeforeItChanges(t *testing.T) {
	d, c, lun, _ := copying(2)
	d.write(lun, blockSize, value(9), true, nil)
	d.putting()()
	d.shows(t, 0, 1, 9, 3, 4)
	d.shows(t, 1, 1, 2, 0, 0)
	if !c.done[0] || c.done[1] || !d.luns[1][0].dirty || !d.good(1, 0) {
		t.Fatalf("%+v %+v", c, d.sums[1])
	}
	d.write(lun, 0, value(8), true, nil) // what is done is not copied again
	d.shows(t, 1, 1, 2, 0, 0)
	// A torn write may change any of its blocks.
	d.write(lun, 2*blockSize, value(7), false, func() bool { return false })
	d.shows(t, 1, 1, 2, 3, 4)
}

// What is read in the object is copied first; a read of the LUN copies nothing.
func TestBlockIsCopiedBeforeItIsRead(t *testing.T) {
	d, c, lun, object := copying(0)
	if d.read(nil, lun, 0, 32); c.done[0] {
		t.Fatal("a read of the LUN copies")
	}
	if got, _ := d.read(nil, object, 16, 8); string(got) != string(value(3)) || c.done[1] || !c.done[2] {
		t.Fatalf("%v %+v", got, c)
	}
	if d.look(object, 24, 8); !c.done[3] {
		t.Fatal("a look at checksums reads")
	}
}

// A damaged block is copied as reads see it, and does not match there either. A checksum that comes
// a moment after its block is found.
func TestChecksumIsCopiedWithItsBlock(t *testing.T) {
	d, c, lun, object := copying(2)
	d.luns[0][0].flip = 1
	d.write(lun, 24, value(9), true, nil)
	c.done[1] = false // as if the instant had been between the block and its checksum
	if bad := d.look(object, 0, 32); len(bad) != 1 || bad[0].Off != 0 {
		t.Fatalf("%v", bad)
	}
	d.shows(t, 1, 1, 2, 3, 9)
	d.forget(func() bool { return false })
	d.copies = nil
	if d.good(1, 1) {
		t.Fatal("checksums that were not flushed are gone with the process")
	}
}

// No space for a copy fails the copy, not the write.
func TestCopyWithoutSpaceFails(t *testing.T) {
	d, c, lun, _ := copying(0)
	c.room = func() bool { return false }
	d.write(lun, 0, value(9), false, nil)
	d.shows(t, 0, 9)
	d.shows(t, 1, 0)
	if !c.failed || c.done[0] {
		t.Fatalf("%+v", c)
	}
}

// What a process has of an object ends with it, and with an installation.
func TestWhatAProcessHolds(t *testing.T) {
	w := still()
	h := w.nodes[0]
	h.boot()
	h.disk.meta.Index = 7
	h.applySnap(&entry{Snap: 1, Step: snapPrepare}, 7, false)
	if h.holds(0, 7) != heldUnknown {
		t.Fatal("it is not marked")
	}
	if !h.begins(0, 7) {
		t.Fatal("it cannot begin")
	}
	h.applySnap(&entry{Snap: 1, Step: snapMark, Born: 7}, 8, false)
	c := h.disk.copyOf(w.shape.luns, 7)
	for _, x := range []struct {
		set  func()
		want held
	}{
		{func() {}, heldPart},
		{func() { c.sealed = true }, heldSealed},
		{func() { c.failed = true }, heldFailed},
		{func() { h.replaceMeta(h.disk.meta.clone()) }, heldVoid},
		{func() { h.copiedTo() }, heldVoid}, // nothing was compared
		{func() { h.compares(w.snapID(0, 7), 0, int64(w.shape.blocks)*blockSize); h.copiedTo() }, heldWhole},
		{func() { h.kill(false); h.boot() }, heldVoid},
	} {
		if x.set(); h.holds(0, 7) != x.want || h.holds(0, 6) != heldUnknown {
			t.Errorf("%v, not %v", h.holds(0, 7), x.want)
		}
	}
}

// What a joiner makes of an instant is on record as incomplete, and no copy of its own.
func TestJoinerCopiesNothingOfItsOwn(t *testing.T) {
	w := still()
	h := w.nodes[0]
	h.boot()
	h.applySnap(&entry{Snap: 2, Step: snapPrepare}, 7, true)
	h.applySnap(&entry{Snap: 2, Step: snapMark, Born: 7}, 8, true)
	if len(h.disk.copies) != 0 || !h.disk.copying[1] || len(h.incomplete()) != 1 || h.incomplete()[0] != w.snapID(1, 7) {
		t.Fatalf("%v %v", h.disk.copying, h.incomplete())
	}
	if res := h.applySnap(&entry{Snap: 2, Step: snapCommit, Born: 7}, 9, true); res != scsi.OK || h.disk.promised(w.shape.luns+1) {
		t.Fatal("its content is not promised before the resync has ended")
	}
}
