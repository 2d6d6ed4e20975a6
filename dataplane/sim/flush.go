package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A flush makes durable, by its end and not before, what was written before it began. A power cut
// meanwhile leaves any part of that.

// flush begins one of a LUN or a snapshot, and of its checksums; end is its end.
func (d *disk) flush(l pair.LUNID, sums bool) (end func()) {
	u := d.unit(l)
	was := slices.Clone(u)
	endSums := func() {}
	if sums && d.pages > 0 {
		endSums = d.flushSums(int(l[0]) - 1)
	}
	return func() {
		for i := range was {
			// One that is not dirty was taken by another flush, or its writeback has failed.
			if p := &u[i]; was[i].dirty && p.dirty && was[i].written > p.kept {
				p.stable, p.kept = was[i].cache, was[i].written
				p.dirty = p.written > p.kept
			}
		}
		endSums()
	}
}

// flushSums is the flush of the checksums of an object.
func (d *disk) flushSums(object int) (end func()) {
	list := d.sums[object]
	was := make([]stored, len(list))
	d.sumFlushes++
	number := d.sumFlushes
	for g := range list {
		list[g].cache, was[g] = list[g].mem, list[g].mem
	}
	return func() {
		for g := range was {
			if c := &list[g]; c.kept < number {
				c.stable, c.kept = was[g], number
			}
		}
	}
}
