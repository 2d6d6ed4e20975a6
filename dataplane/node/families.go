package node

import (
	"cmp"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// relation is a LUN or snapshot whose extents can move, and what it may share extents with.
type relation struct {
	file   *store.File
	family string // the uuid of the LUN that it comes from, over all copies
	born   uint64
}

// relations are those of LUNs and snapshots of a volume of which extents can move.
func (n *Node) relations(v *store.BackingVolume) (list []relation) {
	name := meta.VolumeOf(v.Name())
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	t, s := n.md.tables.Load(), n.md.state
	for _, e := range t.units {
		if e.lun.Volume == name && e.file.Spread() {
			list = append(list, relation{e.file, familyOf(s, e.lun.UUID), e.lun.Born})
		}
	}
	for id, f := range t.snapshots {
		if x := s.Snapshots[id.String()]; x != nil && x.Volume == name && f.Spread() {
			list = append(list, relation{f, familyOf(s, x.UUID), x.Born})
		}
	}
	return list
}

// byFamily puts families together, the oldest of each first.
func byFamily(a, b relation) int {
	return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.born, b.born))
}

// familyOf follows copies to what they come from. What is deleted ends the way: what comes from
// there is a family of its own.
func familyOf(s *meta.State, id string) string {
	for range len(s.LUNs) + len(s.Snapshots) { // or the metadata go in circles
		from := ""
		if l := s.LUNs[id]; l != nil {
			from = cmp.Or(l.SourceLUN, l.SourceSnapshot)
		} else if x := s.Snapshots[id]; x != nil {
			from = x.Source
		}
		if from == "" {
			break
		}
		id = from
	}
	return id
}

// spreadFiles are the files of relations.
func (n *Node) spreadFiles(v *store.BackingVolume) (list []*store.File) {
	for _, x := range n.relations(v) {
		list = append(list, x.file)
	}
	return list
}

// like is the relative of one that an extent of it is best shared with, and its place: the nearest
// of its family that has the extent where extents may go; nil: there is none. The list is in the
// order of byFamily.
func like(list []relation, at int, extent int64, may func(place uint8) bool) (*store.File, uint8) {
	look := func(i int) bool {
		x := &list[i]
		return extent < x.file.ExtentCount() && may(x.file.Where(extent))
	}
	inFamily := func(i int) bool { return i >= 0 && i < len(list) && list[i].family == list[at].family }
	for d := 1; inFamily(at-d) || inFamily(at+d); d++ {
		for _, i := range []int{at - d, at + d} {
			if inFamily(i) && look(i) {
				return list[i].file, list[i].file.Where(extent)
			}
		}
	}
	return nil, 0
}
