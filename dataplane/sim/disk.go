package sim

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// blockSize is the unit of a host's write: one value of eight bytes.
const blockSize = 8

// page is one block: what reads see and what is on stable storage. A page whose writeback failed is
// neither dirty nor stable: no later flush writes it, and it may be dropped from the cache at any
// time (R12).
type page struct {
	cache, stable uint64
	dirty         bool
	written, kept uint64 // counts of its writes: the last one, and the last that is on stable storage
	flip          uint64 // what the disk has changed without a write: reads see it until the page is written
}

// disk is a node's store: what is durable, and what the page cache holds on top. A process that
// dies loses neither, a power cut loses the cache.
type disk struct {
	luns       [][]page
	meta       metaState  // durable at once: bbolt
	next       *metaState // durable in its place, and not shown yet
	epoch      uint64
	id         string
	sumFlushes uint64 // counts flushes of checksums
	previous   pair.Incarnation
	bits       []pair.Regions // write-intent bits, by LUN
	copying    []bool         // snapshots whose content is not the source's yet, durable (R14)
	misfit     []bool         // objects whose file is lost
	recreated  []bool         // LUNs whose file was made again and whose content is not the source's yet, durable
	life       pair.State
	lifeID     uint64 // of this process
	record     *pair.Record
	acted      *pair.Record
	untrusted  bool // a write or flush failed in some life; ends with a full copy
	old        bool // an old copy of it was brought back; ends likewise
	pages      int  // of what one checksum is of; 0: it keeps none
	sums       [][]checksum
	puts       []func()          // of what was written just now
	coming     map[[2]int]stored // the same, by object and group: for the one that locks the block next
	copies     []*lazyCopy       // of the present process
	orphan     bool              // what is written is a dead process's, which keeps no checksums any more
}

// suspect tells that the disk is no source, whatever its node believes.
func (d *disk) suspect() bool { return d.untrusted || d.old || d.misfits() != "" }

type unitMeta struct {
	Owner pair.Node `json:"owner"`
	Seq   uint64    `json:"seq"`
}

type metaState struct {
	Index uint64     `json:"index"`
	Units []unitMeta `json:"units"`
	Snaps []snap     `json:"snaps"` // by slot
	Lost  []uint64   `json:"lost"`  // by LUN: the hosts that get MEDIUM ERROR until they publish it again (R8)
	Group groupState `json:"group,omitzero"`
}

func (m metaState) clone() metaState {
	return metaState{m.Index, slices.Clone(m.Units), slices.Clone(m.Snaps), slices.Clone(m.Lost), m.Group}
}

func newDisk(id string, luns, slots, blocks, pages int) *disk {
	d := &disk{id: id, pages: pages, coming: map[[2]int]stored{}, luns: make([][]page, luns+slots), bits: make([]pair.Regions, luns)}
	d.meta.Lost = make([]uint64, luns)
	for i := range d.luns {
		d.luns[i] = make([]page, blocks)
		if pages > 0 {
			d.sums = append(d.sums, make([]checksum, (blocks+pages-1)/pages))
		}
	}
	d.meta.Snaps, d.copying = make([]snap, slots), make([]bool, slots)
	d.misfit, d.recreated = make([]bool, luns+slots), make([]bool, luns)
	for i := range luns {
		d.meta.Units = append(d.meta.Units, unitMeta{Owner: pair.Node(i % 2), Seq: 1})
	}
	return d
}

// image is a copy of the store as it is on stable storage.
func (d *disk) image() *disk {
	c := *d
	c.copies, c.coming = nil, map[[2]int]stored{}
	c.settle()
	c.meta, c.copying = c.meta.clone(), slices.Clone(d.copying)
	c.misfit, c.recreated = slices.Clone(d.misfit), slices.Clone(d.recreated)
	c.bits = make([]pair.Regions, len(d.bits))
	for i, b := range d.bits {
		c.bits[i] = b.Clone()
	}
	c.luns = make([][]page, len(d.luns))
	for i, l := range d.luns {
		c.luns[i] = slices.Clone(l)
	}
	c.sums = make([][]checksum, len(d.sums))
	for i, l := range d.sums {
		c.sums[i] = slices.Clone(l)
	}
	c.cut(func() bool { return false })
	return &c
}

func (d *disk) unit(l pair.LUNID) []page { return d.luns[l[0]-1] }

func (p *page) put(v uint64, durable bool) {
	p.cache, p.dirty, p.flip = v, true, 0
	p.written++
	if durable {
		p.stable, p.dirty, p.kept = v, false, p.written
	}
}

// flushFails is a flush whose writeback failed: nothing became durable, and no later flush tries
// again.
func (d *disk) flushFails(l pair.LUNID) {
	u := d.unit(l)
	for i := range u {
		u[i].dirty = false
	}
}

// evict drops pages that the cache holds without need; those whose writeback failed read as of old
// then.
func (d *disk) evict(chosen func() bool) {
	for _, u := range d.luns {
		for i := range u {
			if p := &u[i]; !p.dirty && p.cache != p.stable && chosen() {
				p.cache = p.stable
			}
		}
	}
}

// cut is a power cut. Some pages may have been written back by chance.
func (d *disk) cut(lucky func() bool) {
	for _, u := range d.luns {
		for i := range u {
			p := &u[i]
			if p.dirty && lucky() {
				p.stable = p.cache
			}
			p.cache, p.dirty, p.flip = p.stable, false, 0
		}
	}
	d.cutSums(lucky)
}

// unflushed tells whether a power cut would lose anything.
func (d *disk) unflushed() bool {
	for _, u := range d.luns {
		for i := range u {
			if u[i].cache != u[i].stable {
				return true
			}
		}
	}
	return false
}

// read appends a range as bytes, eight per block; hole tells that all of it is zero.
func (d *disk) read(to []byte, l pair.LUNID, off, n int64) (out []byte, hole bool) {
	d.beforeRead(l, off, n)
	hole = true
	for _, p := range d.unit(l)[off/blockSize : (off+n)/blockSize] {
		v := p.cache ^ p.flip
		hole = hole && v == 0
		to = binary.BigEndian.AppendUint64(to, v)
	}
	return to, hole
}

// write stores bytes. Of a torn one only the blocks that torn chooses change. An object that was
// removed meanwhile has none.
func (d *disk) write(l pair.LUNID, off int64, data []byte, durable bool, torn func() bool) {
	if !d.exists(l) {
		return
	}
	d.beforeWrite(l, off, int64(len(data)))
	u, pages := d.unit(l), map[int]bool{}
	put := d.written(l, off, int64(len(data)))
	for i := 0; i+8 <= len(data); i += 8 {
		if torn == nil || torn() {
			b := int(off/blockSize) + i/8
			u[b].put(binary.BigEndian.Uint64(data[i:]), durable)
			pages[b] = true
		}
	}
	put(pages)
}

func sum(b []byte) []byte {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum(nil)
}

func (d *disk) diff(o *disk, skip func(lun, block int) bool) string {
	for l := range d.luns {
		for b := range d.luns[l] {
			if x, y := d.luns[l][b].cache, o.luns[l][b].cache; x != y && !skip(l, b) {
				return fmt.Sprintf("LUN %d block %d: %d on a, %d on b", l+1, b, x, y)
			}
		}
	}
	return ""
}
