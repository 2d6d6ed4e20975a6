package initiator

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Operation codes used here (SPC-4, SBC-3).
const (
	opTestUnitReady   = 0x00
	opInquiry         = 0x12
	opUnmap           = 0x42
	opRead16          = 0x88
	opWrite16         = 0x8a
	opSyncCache16     = 0x91
	opWriteSame16     = 0x93
	opServiceIn16     = 0x9e // service action 10h: READ CAPACITY (16)
	opMaintenanceIn   = 0xa3 // service action 0Ah: REPORT TARGET PORT GROUPS
	fuaBit            = 0x08
	unmapBit          = 0x08
	saReadCapacity16  = 0x10
	saReportTPG       = 0x0a
	rtpgExtended      = 0x20 // PARAMETER DATA FORMAT 001b, extended header
	vpdDeviceID       = 0x83
	vpdBlockLimits    = 0xb0
	vpdProvisioning   = 0xb2
	maxInquiryAlloc   = 1024
	maxRTPGAlloc      = 4096
	readCapacityAlloc = 32
)

func cdbInquiry(page byte, vpd bool, alloc int) (c [16]byte) {
	c[0] = opInquiry
	if vpd {
		c[1], c[2] = 1, page
	}
	binary.BigEndian.PutUint16(c[3:], uint16(alloc))
	return c
}

func cdbTestUnitReady() (c [16]byte) { return c } // operation code 00h and no fields

func cdbReadCapacity16() (c [16]byte) {
	c[0], c[1] = opServiceIn16, saReadCapacity16
	binary.BigEndian.PutUint32(c[10:], readCapacityAlloc)
	return c
}

func cdbRTPG(extended bool) (c [16]byte) {
	c[0], c[1] = opMaintenanceIn, saReportTPG
	if extended {
		c[1] |= rtpgExtended
	}
	binary.BigEndian.PutUint32(c[6:], maxRTPGAlloc)
	return c
}

// cdbBlocks is the layout READ, WRITE, WRITE SAME and SYNCHRONIZE CACHE (16) share (SBC-3 §5).
func cdbBlocks(op, flags byte, lba uint64, blocks uint32) (c [16]byte) {
	c[0], c[1] = op, flags
	binary.BigEndian.PutUint64(c[2:], lba)
	binary.BigEndian.PutUint32(c[10:], blocks)
	return c
}

func cdbUnmap(paramLen int) (c [16]byte) {
	c[0] = opUnmap
	binary.BigEndian.PutUint16(c[7:], uint16(paramLen))
	return c
}

// unmapDescriptor is one range of an UNMAP parameter list (SBC-3 §5.28.2).
type unmapDescriptor struct {
	lba    uint64
	blocks uint32
}

func unmapParams(d []unmapDescriptor) []byte {
	b := make([]byte, 8, 8+16*len(d))
	binary.BigEndian.PutUint16(b[0:], uint16(6+16*len(d)))
	binary.BigEndian.PutUint16(b[2:], uint16(16*len(d)))
	for _, r := range d {
		var e [16]byte
		binary.BigEndian.PutUint64(e[0:], r.lba)
		binary.BigEndian.PutUint32(e[8:], r.blocks)
		b = append(b, e[:]...)
	}
	return b
}

// capacity is what READ CAPACITY (16) tells (SBC-3 §5.16.2).
type capacity struct {
	blocks    uint64
	blockSize int
	thin      bool // LBPME
	zeroes    bool // LBPRZ: unmapped blocks read as zero
}

func parseCapacity16(b []byte) (capacity, error) {
	if len(b) < 12 {
		return capacity{}, fmt.Errorf("%w: READ CAPACITY (16) returned %d bytes", ErrProtocol, len(b))
	}
	c := capacity{blocks: binary.BigEndian.Uint64(b) + 1, blockSize: int(binary.BigEndian.Uint32(b[8:]))}
	if c.blockSize < 512 || c.blockSize > 65536 || c.blockSize&(c.blockSize-1) != 0 {
		return c, fmt.Errorf("%w: block size %d", ErrProtocol, c.blockSize)
	}
	if c.blocks == 0 || c.blocks > uint64(1<<62)/uint64(c.blockSize) {
		return c, fmt.Errorf("%w: %d blocks", ErrProtocol, c.blocks)
	}
	if len(b) > 14 {
		c.thin, c.zeroes = b[14]&0x80 != 0, b[14]&0x40 != 0
	}
	return c, nil
}

// identity is what VPD page 83h says about a path (SPC-4 §7.8.5).
type identity struct {
	wwid  string // NAA designator of the logical unit, lower-case hex; else EUI-64; else the T10 vendor designator in hex
	port  uint16 // relative target port identifier, 0 if none
	group uint16 // target port group, if hasGroup
	// hasGroup tells that a target port group designator was present: the path takes part in ALUA.
	hasGroup bool
}

func parseDeviceID(b []byte) (identity, error) {
	var id identity
	if len(b) < 4 || b[1] != vpdDeviceID {
		return id, fmt.Errorf("%w: malformed VPD page 83h of %d bytes", ErrProtocol, len(b))
	}
	best := 0
	for d := b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))]; len(d) >= 4; {
		n := 4 + int(d[3])
		if n > len(d) {
			return id, fmt.Errorf("%w: VPD page 83h ends inside a designator", ErrProtocol)
		}
		assoc, kind, v := d[1]>>4&3, d[1]&0x0f, d[4:n]
		switch {
		case assoc == 0 && len(v) > 0: // the logical unit itself
			rank := map[byte]int{3: 3, 2: 2, 1: 1}[kind]
			if rank > best {
				best, id.wwid = rank, hex.EncodeToString(v)
			}
		case assoc == 1 && kind == 4 && len(v) >= 4:
			id.port = binary.BigEndian.Uint16(v[2:])
		case assoc == 1 && kind == 5 && len(v) >= 4:
			id.group, id.hasGroup = binary.BigEndian.Uint16(v[2:]), true
		}
		d = d[n:]
	}
	return id, nil
}

// limits are the block limits a device obeys, in blocks; zero means none reported (SBC-3 §6.6.4).
type limits struct {
	maxTransfer  uint32
	maxUnmap     uint32
	maxUnmapDesc uint32
	maxWriteSame uint64
	unmap        bool // LBPU
}

func parseBlockLimits(b []byte, l *limits) {
	if len(b) < 12 || b[1] != vpdBlockLimits {
		return
	}
	l.maxTransfer = binary.BigEndian.Uint32(b[8:])
	if len(b) >= 28 {
		l.maxUnmap, l.maxUnmapDesc = binary.BigEndian.Uint32(b[20:]), binary.BigEndian.Uint32(b[24:])
	}
	if len(b) >= 44 {
		l.maxWriteSame = binary.BigEndian.Uint64(b[36:])
	}
}

func parseProvisioning(b []byte, l *limits) {
	if len(b) >= 6 && b[1] == vpdProvisioning {
		l.unmap = b[5]&0x80 != 0
	}
}
