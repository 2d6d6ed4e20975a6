package sim

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/gemel-storage/gemel/target/pair"
)

// blockSize is what hosts write at once: one value of eight bytes.
const blockSize = 8

// disk is a node's store: what is durable, and what the page cache holds on top. A process that dies loses
// neither, a power cut loses the cache.
type disk struct {
	cache, stable map[pair.LUNID]map[int64]uint64
	meta          metaState // durable at once: bbolt
	epoch         uint64
	id            string
	previous      pair.Incarnation
	intents       map[pair.LUNID]pair.Regions
	life          pair.Life
	lifeID        uint64
	record, acted *pair.Record
	empty         bool
}

type unitMeta struct {
	Owner pair.Node `json:"owner"`
	Seq   uint64    `json:"seq"`
}

type metaState struct {
	Index uint64     `json:"index"`
	Units []unitMeta `json:"units"`
}

func (s metaState) clone() metaState { return metaState{s.Index, slices.Clone(s.Units)} }

func newDisk(id string, luns int) *disk {
	d := &disk{id: id, intents: map[pair.LUNID]pair.Regions{}, cache: map[pair.LUNID]map[int64]uint64{}, stable: map[pair.LUNID]map[int64]uint64{}, empty: true}
	for i := range luns {
		d.meta.Units = append(d.meta.Units, unitMeta{Owner: pair.Node(i % 2), Seq: 1})
	}
	return d
}

func (d *disk) get(l pair.LUNID, b int64) uint64 { return d.cache[l][b] }

func (d *disk) put(l pair.LUNID, b int64, v uint64, durable bool) {
	set := func(m map[pair.LUNID]map[int64]uint64) {
		if m[l] == nil {
			m[l] = map[int64]uint64{}
		}
		m[l][b] = v
	}
	set(d.cache)
	if durable {
		set(d.stable)
	}
}

// flush makes everything durable that was written before.
func (d *disk) flush(l pair.LUNID) {
	if d.cache[l] != nil {
		d.stable[l] = maps.Clone(d.cache[l])
	}
}

func (d *disk) flushAll() {
	for l := range d.cache {
		d.flush(l)
	}
}

// cut is a power cut. Some pages may have been written back by chance.
func (d *disk) cut(lucky func() bool) {
	for _, l := range slices.SortedFunc(maps.Keys(d.cache), func(a, b pair.LUNID) int { return int(a[0]) - int(b[0]) }) {
		m := d.cache[l]
		for _, b := range slices.Sorted(maps.Keys(m)) {
			if lucky() {
				d.put(l, b, m[b], true)
			}
		}
	}
	d.cache = map[pair.LUNID]map[int64]uint64{}
	for l, m := range d.stable {
		d.cache[l] = maps.Clone(m)
	}
}

// read encodes a range as bytes, eight per block; nil if all of it is a hole.
func (d *disk) read(l pair.LUNID, off, n int64) []byte {
	var out []byte
	some := false
	for b := off / blockSize; b < (off+n)/blockSize; b++ {
		v := d.get(l, b)
		some = some || v != 0
		out = binary.BigEndian.AppendUint64(out, v)
	}
	if !some {
		return nil
	}
	return out
}

func (d *disk) write(l pair.LUNID, off int64, data []byte, durable bool) {
	for i := 0; i+8 <= len(data); i += 8 {
		d.put(l, off/blockSize+int64(i/8), binary.BigEndian.Uint64(data[i:]), durable)
	}
}

func sum(b []byte) []byte {
	h := fnv.New128a()
	_, _ = h.Write(b)
	return h.Sum(nil)
}

func (d *disk) diff(o *disk) string {
	for _, x := range []*disk{d, o} {
		for l, m := range x.cache {
			for b := range m {
				if d.get(l, b) != o.get(l, b) {
					return fmt.Sprintf("LUN %d block %d: %x on a, %x on b", l[0], b, d.get(l, b), o.get(l, b))
				}
			}
		}
	}
	return ""
}
