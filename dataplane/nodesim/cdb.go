package nodesim

import "encoding/binary"

// Command descriptor blocks (SPC-4, SBC-3).

// rw16 is a READ(16) or a WRITE(16).
func rw16(op byte, block int64, blocks int) []byte {
	b := make([]byte, 16)
	b[0] = op
	binary.BigEndian.PutUint64(b[2:], uint64(block))
	binary.BigEndian.PutUint32(b[10:], uint32(blocks))
	return b
}

// prOut is a PERSISTENT RESERVE OUT, prParam its parameter list.
func prOut(action, typ byte) []byte { return []byte{0x5f, action, typ, 0, 0, 0, 0, 0, 24, 0} }

func prParam(key, service uint64) []byte {
	p := make([]byte, 24)
	binary.BigEndian.PutUint64(p, key)
	binary.BigEndian.PutUint64(p[8:], service)
	return p
}

// prIn is a PERSISTENT RESERVE IN.
func prIn(action byte) []byte { return []byte{0x5e, action, 0, 0, 0, 0, 0, 16, 0, 0} }

// Service actions of PERSISTENT RESERVE OUT, and the one type of reservation that fencers ask for.
const (
	prRegister      = 0
	prReserve       = 1
	prRelease       = 2
	prClear         = 3
	prPreempt       = 4
	prPreemptAbort  = 5
	prRegisterAny   = 6
	registrantsOnly = 5 // WRITE EXCLUSIVE, REGISTRANTS ONLY
)

// registered looks for a key in what READ KEYS has brought.
func registered(list []byte, key uint64) bool {
	for at := 8; at+8 <= len(list); at += 8 {
		if binary.BigEndian.Uint64(list[at:]) == key {
			return true
		}
	}
	return false
}
