package store

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/extents"
)

// spillRoom is how much more room than the full place has, in bytes, another one needs to have to
// take an extent from it.
const spillRoom = 2 * extents.Size

// withRoom does a change again when its extents had no room where they lie, and lie elsewhere
// since: a full member fills no LUN as long as another one has room. The caller keeps other changes
// of the range away; it waits for the copy of an extent, which of a fresh one is nothing.
func (f *File) withRoom(off, length int64, do func() error) error {
	err := do()
	if !errors.Is(err, ErrNoSpace) || !f.Spread() {
		return err
	}
	for e := off / extents.Size; e <= (off+length-1)/extents.Size; e++ {
		if !f.spill(e) {
			return err
		}
	}
	return do()
}

// spill moves an extent away from a place that has no room, to the one that has most. It returns
// true also if the extent need not move.
func (f *File) spill(extent int64) bool {
	from, room := f.Where(extent), map[uint8]int64{}
	list := f.places.v.Places()
	for _, p := range list {
		if _, free, err := p.Room(); err == nil && (!p.Draining || p.Number == from) {
			room[p.Number] = free
		}
	}
	slices.SortStableFunc(list, func(a, b Place) int { return cmp.Compare(room[b.Number], room[a.Number]) })
	if room[from] >= room[list[0].Number]-spillRoom { // there is room, or none anywhere
		return room[from] >= spillRoom
	}
	for _, p := range list {
		if p.Number == from || room[p.Number] < room[from]+spillRoom {
			continue
		}
		err := f.MoveExtent(context.Background(), extent, p.Number)
		if err == nil || errors.Is(err, extents.ErrMoving) && f.Where(extent) != from {
			return true
		}
		if !errors.Is(err, extents.ErrTargetFull) {
			return false
		}
	}
	return false
}
