package pair

import (
	"encoding/binary"
	"math/bits"
)

// Regions is a set of regions of one LUN, a bit each: bit i%64 of word i/64 is region i. It grows
// as needed.
type Regions []uint64

// Has reports whether region i is in the set.
func (r Regions) Has(i int) bool { return i/64 < len(r) && r[i/64]&(1<<(i%64)) != 0 }

// HasAll reports whether the regions first to last are in the set.
func (r Regions) HasAll(first, last int) bool {
	for i := first; i <= last; i++ {
		if !r.Has(i) {
			return false
		}
	}
	return true
}

// Add puts a region into the set.
func (r *Regions) Add(i int) {
	for i/64 >= len(*r) {
		*r = append(*r, 0)
	}
	(*r)[i/64] |= 1 << (i % 64)
}

// AddAll puts the regions first to last into the set.
func (r *Regions) AddAll(first, last int) {
	for i := first; i <= last; i++ {
		r.Add(i)
	}
}

// Drop takes a region out of the set.
func (r Regions) Drop(i int) {
	if i/64 < len(r) {
		r[i/64] &^= 1 << (i % 64)
	}
}

// Or adds all of o.
func (r *Regions) Or(o Regions) {
	for len(*r) < len(o) {
		*r = append(*r, 0)
	}
	for i, w := range o {
		(*r)[i] |= w
	}
}

// And keeps only what is in o as well.
func (r Regions) And(o Regions) {
	for i := range r {
		if i < len(o) {
			r[i] &= o[i]
		} else {
			r[i] = 0
		}
	}
}

// Count is the number of regions in the set.
func (r Regions) Count() (n int) {
	for _, w := range r {
		n += bits.OnesCount64(w)
	}
	return n
}

// Empty reports whether there is none.
func (r Regions) Empty() bool {
	for _, w := range r {
		if w != 0 {
			return false
		}
	}
	return true
}

// Next finds the first region at or after i, -1 if there is none.
func (r Regions) Next(i int) int {
	if i/64 >= len(r) {
		return -1
	}
	if w := r[i/64] >> (i % 64); w != 0 {
		return i + bits.TrailingZeros64(w)
	}
	for j := i/64 + 1; j < len(r); j++ {
		if r[j] != 0 {
			return j*64 + bits.TrailingZeros64(r[j])
		}
	}
	return -1
}

// List names the regions in order.
func (r Regions) List() (out []uint32) {
	for i := r.Next(0); i >= 0; i = r.Next(i + 1) {
		out = append(out, uint32(i))
	}
	return out
}

// Clone copies the set.
func (r Regions) Clone() Regions { return append(Regions(nil), r...) }

// Encode writes the set as runs, eight bytes each: first region and count, big endian.
func (r Regions) Encode() []byte {
	var b []byte
	for i := r.Next(0); i >= 0; {
		n := 1
		for r.Has(i + n) {
			n++
		}
		b = binary.BigEndian.AppendUint32(b, uint32(i))
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		i = r.Next(i + n)
	}
	return b
}

// decodeRegions reads Encode's form; a region at or beyond limit is an error, so that nothing large
// is allocated for a short message.
func decodeRegions(b []byte, limit int) (r Regions, err error) {
	if len(b)%8 != 0 {
		return nil, errWire
	}
	for ; len(b) > 0; b = b[8:] {
		first, n := int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:]))
		if n == 0 || first+n > int64(limit) {
			return nil, errWire
		}
		r.AddAll(int(first), int(first+n-1))
	}
	return r, nil
}
