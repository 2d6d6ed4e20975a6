package scsi

import (
	"encoding/binary"
	"fmt"
)

const (
	vendorID  = "GEMEL   "
	productID = "ALUA LUN        "
)

// dataIn ends a task with up to alloc bytes of parameter data.
func (t *Task) dataIn(b []byte, alloc int) bool {
	n := min(len(b), alloc)
	t.Transfer = n
	if n > 0 {
		t.DataIn = t.Alloc(n)
		copy(t.DataIn, b)
	}
	return true
}

func (s *Server) inquiry(t *Task) bool {
	alloc := int(binary.BigEndian.Uint16(t.CDB[3:5]))
	if t.CDB[1]&0x02 != 0 { // CMDDT, obsolete
		return t.invalidCDB(1, 1)
	}
	if t.CDB[1]&0x01 == 0 {
		if t.CDB[2] != 0 {
			return t.invalidCDB(2, 7)
		}
		return t.dataIn(s.standardInquiry(t.unit != nil), alloc)
	}
	var b []byte
	if t.unit != nil {
		b = s.vpd(t.unit, t.CDB[2])
	} else if t.CDB[2] == 0 {
		b = []byte{0x7f, 0, 0, 1, 0}
	}
	if b == nil {
		return t.invalidCDB(2, 7)
	}
	return t.dataIn(b, alloc)
}

// standardInquiry is SPC-4 §6.6.2. Without a unit the peripheral qualifier says that there is none.
func (s *Server) standardInquiry(present bool) []byte {
	b := make([]byte, 96)
	if !present {
		b[0] = 0x7f
	}
	b[2] = 0x06        // SPC-4
	b[3] = 0x10 | 0x02 // HISUP, response data format
	b[4] = byte(len(b) - 5)
	b[5] = 0x10 // TPGS 01b: implicit asymmetric access only; no third-party copy, no protection
	b[6] = 0x10 // MULTIP
	b[7] = 0x02 // CMDQUE
	copy(b[8:], vendorID)
	copy(b[16:], productID)
	copy(b[32:36], "    ")
	copy(b[32:36], s.cfg.Revision)
	for i, v := range []uint16{0x00a0, 0x0960, 0x0460, 0x04c0} { // SAM-5, iSCSI, SPC-4, SBC-3
		binary.BigEndian.PutUint16(b[58+2*i:], v)
	}
	return b
}

// Vital product data pages.
const (
	vpdSupported    = 0x00
	vpdSerial       = 0x80
	vpdDevice       = 0x83
	vpdExtended     = 0x86
	vpdBlockLimits  = 0xb0
	vpdBlockDevice  = 0xb1
	vpdProvisioning = 0xb2
)

var vpdPages = []byte{vpdSupported, vpdSerial, vpdDevice, vpdExtended, vpdBlockLimits, vpdBlockDevice, vpdProvisioning}

// vpd makes a vital product data page, nil when there is no such page.
func (s *Server) vpd(u *Unit, page byte) []byte {
	b := []byte{0, page, 0, 0}
	st := u.state.Load()
	switch page {
	case vpdSupported:
		b = append(b, vpdPages...)
	case vpdSerial:
		b = append(b, Serial(u.uuid)...)
	case vpdDevice:
		b = s.appendDesignators(b, u)
	case vpdExtended:
		b = append(b, make([]byte, 60)...)
		b[5] = 0x01 // SIMPSUP; ordered and head-of-queue are executed as simple, so not claimed
		b[6] = 0x01 // V_SUP: there is a volatile cache
		b[7] = 0x01 // LUICLR: a unit attention is cleared for the nexus that it was reported to
	case vpdBlockLimits:
		b = append(b, blockLimits(st)...)
	case vpdBlockDevice:
		b = append(b, make([]byte, 60)...)
		b[5] = 0x01 // medium rotation rate: non-rotating
	case vpdProvisioning:
		b = append(b, 0, 0, 0, 0)
		if st.Thin {
			b[5] = 0x80 | 0x40 | 0x20 | 0x04 // LBPU, LBPWS, LBPWS10, LBPRZ 001b: unmapped blocks read as zero
			b[6] = 0x02                      // thin provisioned
		}
	default:
		return nil
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
	return b
}

// appendDesignators is the list of page 83h. What names the unit is equal through both nodes; what
// names the port is the node's own. Linux attaches its ALUA handler only when port and group are
// there.
func (s *Server) appendDesignators(b []byte, u *Unit) []byte {
	const (
		binaryCode, ascii, utf8       = 1, 2, 3
		ofUnit, ofPort, ofTarget      = 0x00, 0x10 | 0x80, 0x20 | 0x80 // with PIV where a protocol applies
		vendor, naa, relPort, tpg, nm = 1, 3, 4, 5, 8
		iSCSI                         = 0x50
	)
	add := func(code, assocType byte, id []byte) {
		if assocType&0x80 != 0 {
			code |= iSCSI
		}
		b = append(append(b, code, assocType, 0, byte(len(id))), id...)
	}
	name := func(text string) []byte { // null-terminated and padded to a multiple of four (SPC-4 §7.8.6.11)
		id := append([]byte(text), 0)
		for len(id)%4 != 0 {
			id = append(id, 0)
		}
		return id
	}
	port := []byte{0, 0, byte(s.cfg.Port >> 8), byte(s.cfg.Port)}
	add(binaryCode, ofUnit|naa, u.naa[:])
	add(ascii, ofUnit|vendor, []byte(vendorID+Serial(u.uuid)))
	add(binaryCode, ofPort|relPort, port)
	add(binaryCode, ofPort|tpg, port)
	if s.cfg.TargetName != "" {
		add(utf8, ofPort|nm, name(fmt.Sprintf("%s,t,0x%04x", s.cfg.TargetName, s.cfg.Port)))
		add(utf8, ofTarget|nm, name(s.cfg.TargetName))
	}
	return b
}

// blockLimits is page B0h from byte 4 on (SBC-3 §6.6.3).
func blockLimits(st *unitState) []byte {
	p := make([]byte, 64) // offsets as in the standard
	granule := max(physicalBlock>>st.shift, 1)
	p[4] = 0x01 // WSNZ
	p[5] = maxCAWBlocks
	binary.BigEndian.PutUint16(p[6:], uint16(granule))
	binary.BigEndian.PutUint32(p[8:], MaxTransfer>>st.shift)
	binary.BigEndian.PutUint32(p[12:], uint32(st.OptimalBytes>>st.shift))
	if st.Thin {
		binary.BigEndian.PutUint32(p[20:], uint32(int64(maxUnmapBytes)>>st.shift))
		binary.BigEndian.PutUint32(p[24:], maxUnmapRanges)
		binary.BigEndian.PutUint32(p[28:], uint32(granule))
		binary.BigEndian.PutUint32(p[32:], 0x80000000) // UGAVALID, alignment 0
	}
	binary.BigEndian.PutUint64(p[36:], maxWriteSame>>st.shift)
	return p[4:]
}
