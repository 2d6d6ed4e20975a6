package extents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"
)

// Size is the length of an extent in bytes: that of the regions of write-intent bits (R7).
const Size = 4 << 20

// PairExtents is how many extents one pair of blocks has, 15.75 GiB of a LUN.
const PairExtents = block - header

const (
	block  = 4096
	header = 64
	format = 1
	crcAt  = 60
)

var (
	magic      = [8]byte{'G', 'M', 'L', 'E', 'X', 'T', 'N', 'T'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// ErrDamaged: the file does not say where the extents lie.
var ErrDamaged = errors.New("the map of extents is damaged")

// Owner is whose map it is: a copy from another LUN or another node does not decode.
type Owner struct{ LUN, Store uuid.UUID }

func checksum(p []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, p[:crcAt]), castagnoli, p[header:])
}

// encode fills p, a whole block.
func (o *Owner) encode(p []byte, pair uint32, generation uint64, content []byte) {
	clear(p)
	le := binary.LittleEndian
	copy(p, magic[:])
	le.PutUint16(p[8:], format)
	le.PutUint16(p[10:], uint16(len(content)))
	le.PutUint32(p[12:], Size)
	le.PutUint32(p[16:], pair)
	le.PutUint64(p[24:], generation)
	copy(p[32:], o.LUN[:])
	copy(p[48:crcAt], o.Store[:])
	copy(p[header:], content)
	le.PutUint32(p[crcAt:], checksum(p))
}

// decode returns what a block holds; content is a part of p.
func (o *Owner) decode(p []byte, pair uint32) (generation uint64, content []byte, err error) {
	le := binary.LittleEndian
	switch {
	case len(p) != block:
		return 0, nil, fmt.Errorf("%d bytes", len(p))
	case [8]byte(p) != magic:
		return 0, nil, errors.New("wrong magic")
	case checksum(p) != le.Uint32(p[crcAt:]):
		return 0, nil, errors.New("checksum")
	case le.Uint16(p[8:]) != format:
		return 0, nil, fmt.Errorf("format %d, this release supports %d", le.Uint16(p[8:]), format)
	case le.Uint32(p[12:]) != Size:
		return 0, nil, fmt.Errorf("extents of %d bytes, not %d", le.Uint32(p[12:]), Size)
	case le.Uint32(p[16:]) != pair:
		return 0, nil, fmt.Errorf("it has number %d instead of %d", le.Uint32(p[16:]), pair)
	case uuid.UUID(p[32:48]) != o.LUN:
		return 0, nil, fmt.Errorf("it belongs to LUN %s", uuid.UUID(p[32:48]))
	case [12]byte(p[48:crcAt]) != [12]byte(o.Store[:]):
		return 0, nil, errors.New("it belongs to another store")
	}
	n := le.Uint16(p[10:])
	if generation = le.Uint64(p[24:]); generation == 0 || n > PairExtents {
		return 0, nil, fmt.Errorf("generation %d, %d bytes", generation, n)
	}
	return generation, p[header : header+int(n)], nil
}
