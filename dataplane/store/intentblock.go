package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"
)

// RegionSize is how many bytes of a LUN one write-intent bit covers (R7). It is recorded in every
// block.
const RegionSize = 4 << 20

// MaxIntentSize is the largest LUN that intents are kept for, in bytes.
const MaxIntentSize = 256 << 40

// A block of an intents file, little-endian:
//
//	 0  8  magic "GMLINTNT"
//	 8  2  format, 1
//	10  2  zero
//	12  4  RegionSize
//	16  4  index of the block in the file
//	20  4  zero
//	24 16  uuid of the LUN
//	40 16  id of the store
//	56  4  zero
//	60  4  CRC32C of the block without this field
//	64     bits: bit i%64 of word i/64 is region index*blockRegions+i
//
// Every block is independent: nothing else in the file must be intact for a block to be read. What
// is torn, misplaced, copied from another LUN or another node, or of another format does not
// decode.
const (
	intentBlock   = 4096
	intentHeader  = 64
	intentFormat  = 1
	blockWords    = (intentBlock - intentHeader) / 8
	blockRegions  = blockWords * 64 // 126 GiB of the LUN
	intentCRCAt   = 60
	intentMagicAt = 0
)

var (
	intentMagic = [8]byte{'G', 'M', 'L', 'I', 'N', 'T', 'N', 'T'}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	// errIntentBlock: the block is not what was written there, so every region of it counts as
	// dirty.
	errIntentBlock = errors.New("write-intent block cannot be used")
)

// intentOwner is whose intents a file holds.
type intentOwner struct {
	lun, store uuid.UUID
}

func intentCRC(p []byte) uint32 {
	crc := crc32.Update(0, castagnoli, p[:intentCRCAt])
	return crc32.Update(crc, castagnoli, p[intentHeader:])
}

// encode fills p, a whole block, from at most blockWords words.
func (o *intentOwner) encode(p []byte, index uint32, words []uint64) {
	clear(p)
	le := binary.LittleEndian
	copy(p[intentMagicAt:], intentMagic[:])
	le.PutUint16(p[8:], intentFormat)
	le.PutUint32(p[12:], RegionSize)
	le.PutUint32(p[16:], index)
	copy(p[24:], o.lun[:])
	copy(p[40:], o.store[:])
	for i, w := range words {
		le.PutUint64(p[intentHeader+8*i:], w)
	}
	le.PutUint32(p[intentCRCAt:], intentCRC(p))
}

// decode fills words, at most blockWords of them, from p. On an error words are as they were.
func (o *intentOwner) decode(p []byte, index uint32, words []uint64) error {
	le := binary.LittleEndian
	switch {
	case len(p) != intentBlock:
		return fmt.Errorf("%w: %d bytes", errIntentBlock, len(p))
	case [8]byte(p) != intentMagic:
		return fmt.Errorf("%w: wrong magic", errIntentBlock)
	case intentCRC(p) != le.Uint32(p[intentCRCAt:]):
		return fmt.Errorf("%w: checksum", errIntentBlock)
	case le.Uint16(p[8:]) != intentFormat:
		return fmt.Errorf("%w: format %d, this release supports %d", errIntentBlock, le.Uint16(p[8:]), intentFormat)
	case le.Uint32(p[12:]) != RegionSize:
		return fmt.Errorf("%w: regions of %d bytes, not %d", errIntentBlock, le.Uint32(p[12:]), RegionSize)
	case le.Uint32(p[16:]) != index:
		return fmt.Errorf("%w: it has number %d instead of %d", errIntentBlock, le.Uint32(p[16:]), index)
	case uuid.UUID(p[24:40]) != o.lun:
		return fmt.Errorf("%w: it belongs to LUN %s", errIntentBlock, uuid.UUID(p[24:40]))
	case uuid.UUID(p[40:56]) != o.store:
		return fmt.Errorf("%w: it belongs to store %s", errIntentBlock, uuid.UUID(p[40:56]))
	}
	intentWords(p, words)
	return nil
}

// intentWords reads the bits of a block.
func intentWords(p []byte, words []uint64) {
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(p[intentHeader+8*i:])
	}
}

// regionsOf is how many regions a LUN of size bytes has; the last may be shorter.
func regionsOf(size int64) int64 { return (size + RegionSize - 1) / RegionSize }

// wordsFor is how many words hold n bits, blocksFor how many blocks.
func wordsFor(n int64) int  { return int((n + 63) / 64) }
func blocksFor(n int64) int { return int((n + blockRegions - 1) / blockRegions) }

// setBits sets the bits from first to last, both included.
func setBits(words []uint64, first, last int64) {
	for i := first; i <= last; {
		if i%64 == 0 && last-i >= 63 {
			words[i/64] = ^uint64(0)
			i += 64
			continue
		}
		words[i/64] |= 1 << (i % 64)
		i++
	}
}
