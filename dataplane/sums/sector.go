package sums

import (
	"encoding/binary"
	"hash/crc32"
)

// A sums file is a header of one page, and then pages of 8 sectors, little-endian. A sector:
//
//	0  4  CRC32C of the file's seed, the sector's index after the header, and the rest of the sector
//	4  4  1
//	8     126 sums
//
// or all zero: never written, its blocks are zero. The seed is drawn when a file is made and is
// inherited by its clones, so that a sector of another LUN does not check, and a clone need not be
// written again.
const (
	sectorSize  = 512
	sectorHead  = 8
	sectorSums  = (sectorSize - sectorHead) / 4
	sectorMark  = 1
	pageSize    = 4096
	pageSectors = pageSize / sectorSize
	pageSums    = pageSectors * sectorSums // 3.94 MiB of the LUN
)

// seed is what the sectors of a file have in common.
type seed [16]byte

// sectorCRC covers all but its own field of sector i of the file.
func (s *seed) sectorCRC(i int64, sector []byte) uint32 {
	var place [len(s) + 8]byte
	copy(place[:], s[:])
	binary.LittleEndian.PutUint64(place[len(s):], uint64(i))
	crc := crc32.Checksum(place[:], castagnoli)
	return crc32.Update(crc, castagnoli, sector[4:])
}

// encode fills p, a page of the file, from sums.
func (s *seed) encode(p []byte, page int64, sums *[pageSums]Sum) {
	le := binary.LittleEndian
	for k := range pageSectors {
		sector, of := p[k*sectorSize:][:sectorSize], sums[k*sectorSums:][:sectorSums]
		clear(sector)
		if allZero(of) {
			continue
		}
		le.PutUint32(sector[4:], sectorMark)
		for i, x := range of {
			le.PutUint32(sector[sectorHead+4*i:], uint32(x))
		}
		le.PutUint32(sector, s.sectorCRC(page*pageSectors+int64(k), sector))
	}
}

// decode fills sums from p, a page of the file. What does not check is Unknown; lost is how many
// sectors did not.
func (s *seed) decode(p []byte, page int64, sums *[pageSums]Sum) (lost int) {
	le := binary.LittleEndian
	for k := range pageSectors {
		sector, to := p[k*sectorSize:][:sectorSize], sums[k*sectorSums:][:sectorSums]
		switch {
		case [sectorSize]byte(sector) == [sectorSize]byte{}:
			clear(to)
		case le.Uint32(sector[4:]) != sectorMark || le.Uint32(sector) != s.sectorCRC(page*pageSectors+int64(k), sector):
			lost++
			for i := range to {
				to[i] = Unknown
			}
		default:
			for i := range to {
				to[i] = Sum(le.Uint32(sector[sectorHead+4*i:]))
			}
		}
	}
	return lost
}

func allZero(list []Sum) bool {
	for _, x := range list {
		if x != 0 {
			return false
		}
	}
	return true
}
