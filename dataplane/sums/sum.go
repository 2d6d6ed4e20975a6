package sums

import "hash/crc32"

// BlockSize is how many bytes one checksum is of.
const BlockSize = 4096

// Sum is the checksum of a block: its CRC32C combined with that of a block of zeroes, so that zero
// is that of zeroes. Two values are no checksums.
type Sum uint32

const (
	// Bad is the sum of a block whose content is lost. No block has it.
	Bad Sum = 0xffffffff
	// Unknown is the sum of a block of which nothing is known. No block has it.
	Unknown Sum = 0xfffffffe
	// reserved is how far two checksums are moved so that no block has Bad or Unknown. Two contents
	// share a sum then, which makes one error in 2^32 invisible that would have been seen.
	reserved = 2
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeroBlock  [BlockSize]byte
	zeroCRC    = crc32.Checksum(zeroBlock[:], castagnoli)
)

// Of is the checksum of a block. One that is shorter, the last of a LUN, counts as filled up with
// zeroes.
func Of(block []byte) Sum {
	crc := crc32.Checksum(block, castagnoli)
	if len(block) < BlockSize {
		crc = crc32.Update(crc, castagnoli, zeroBlock[len(block):])
	}
	s := Sum(crc ^ zeroCRC)
	if s >= Unknown {
		s -= reserved
	}
	return s
}

// Blocks is how many blocks n bytes have; the last may be shorter.
func Blocks(n int64) int64 { return (n + BlockSize - 1) / BlockSize }
