package sums

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"
)

// The header, the first page of a sums file, little-endian:
//
//	 0  8  magic "GMLSUMS\0"
//	 8  2  format, 1
//	10  2  zero
//	12  4  BlockSize
//	16 16  uuid of the LUN or snapshot
//	32 16  id of the store
//	48 16  seed of the sectors
//	64  8  adopted: blocks from here on are Unknown if their sum is zero
//	72  4  CRC32C of the fields above
//
// It lies in one sector, so that a power loss leaves the old one or the new one.
const (
	headerFormat = 1
	headerCRCAt  = 72
	headerSize   = 76
)

var headerMagic = [8]byte{'G', 'M', 'L', 'S', 'U', 'M', 'S', 0}

// ErrDamaged: the file is not the sums file of that LUN in that store, or is damaged. Its sums are
// lost; the LUN's data are not concerned.
var ErrDamaged = errors.New("the checksum file is damaged or belongs to another LUN")

// Owner is the LUN and the store that a checksum file belongs to.
type Owner struct {
	LUN, Store uuid.UUID
}

type header struct {
	owner   Owner
	seed    seed
	adopted int64
}

func (h *header) encode(p []byte) {
	le := binary.LittleEndian
	clear(p)
	copy(p, headerMagic[:])
	le.PutUint16(p[8:], headerFormat)
	le.PutUint32(p[12:], BlockSize)
	copy(p[16:], h.owner.LUN[:])
	copy(p[32:], h.owner.Store[:])
	copy(p[48:], h.seed[:])
	le.PutUint64(p[64:], uint64(h.adopted))
	le.PutUint32(p[headerCRCAt:], crc32.Checksum(p[:headerCRCAt], castagnoli))
}

func (h *header) decode(p []byte, owner Owner) error {
	le := binary.LittleEndian
	switch {
	case len(p) < headerSize || [8]byte(p) != headerMagic:
		return fmt.Errorf("%w: wrong magic", ErrDamaged)
	case le.Uint32(p[headerCRCAt:]) != crc32.Checksum(p[:headerCRCAt], castagnoli):
		return fmt.Errorf("%w: the header does not match its checksum", ErrDamaged)
	case le.Uint16(p[8:]) != headerFormat:
		return fmt.Errorf("%w: format %d, this release supports %d", ErrDamaged, le.Uint16(p[8:]), headerFormat)
	case le.Uint32(p[12:]) != BlockSize:
		return fmt.Errorf("%w: blocks of %d bytes, not %d", ErrDamaged, le.Uint32(p[12:]), BlockSize)
	case uuid.UUID(p[16:32]) != owner.LUN:
		return fmt.Errorf("%w: it belongs to LUN %s", ErrDamaged, uuid.UUID(p[16:32]))
	case uuid.UUID(p[32:48]) != owner.Store:
		return fmt.Errorf("%w: it belongs to store %s", ErrDamaged, uuid.UUID(p[32:48]))
	}
	h.owner, h.seed, h.adopted = owner, seed(p[48:64]), int64(le.Uint64(p[64:]))
	if h.adopted < 0 {
		return fmt.Errorf("%w: adopted up to block %d", ErrDamaged, h.adopted)
	}
	return nil
}
