// Package ledger knows what a block may contain: every write has a sequence number that the block
// carries, and every submission and acknowledgement is recorded. After a crash a block holds the
// last acknowledged write, or a later one that was submitted and not acknowledged; anything else is
// a lost write.
package ledger

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// BlockSize is what one write carries, in bytes.
const BlockSize = 4096

// Layout of a block, little endian: magic, volume, block number, sequence, pseudo-random filling
// that follows from those, CRC32C of all before it.
const (
	magic    = 0x314b4c424c4d4547 // "GEMLBLK1"
	headSize = 32
	crcAt    = BlockSize - 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Fill makes p the block that write seq of that block of that volume carries; len(p) is BlockSize.
func Fill(p []byte, volume, block, seq uint64) {
	binary.LittleEndian.PutUint64(p, magic)
	binary.LittleEndian.PutUint64(p[8:], volume)
	binary.LittleEndian.PutUint64(p[16:], block)
	binary.LittleEndian.PutUint64(p[24:], seq)
	x := volume*0x9e3779b97f4a7c15 ^ block*0xbf58476d1ce4e5b9 ^ seq*0x94d049bb133111eb | 1
	i := headSize
	for ; i+8 <= crcAt; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(p[i:], x)
	}
	clear(p[i:crcAt])
	binary.LittleEndian.PutUint32(p[crcAt:], crc32.Checksum(p[:crcAt], castagnoli))
}

// Parse returns the sequence number of a block, or why it is not a whole block of that place.
func Parse(p []byte, volume, block uint64) (seq uint64, fault string) {
	switch {
	case len(p) != BlockSize:
		return 0, "short"
	case binary.LittleEndian.Uint64(p) != magic:
		if len(bytes.Trim(p, "\x00")) == 0 {
			return 0, "empty"
		}
		return 0, "foreign"
	case binary.LittleEndian.Uint32(p[crcAt:]) != crc32.Checksum(p[:crcAt], castagnoli):
		return 0, "torn"
	case binary.LittleEndian.Uint64(p[8:]) != volume, binary.LittleEndian.Uint64(p[16:]) != block:
		return 0, "misplaced"
	}
	return binary.LittleEndian.Uint64(p[24:]), ""
}
