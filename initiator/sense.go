package initiator

import "encoding/binary"

// SCSI status codes (SAM-5 §5.3.1).
const (
	StatusGood                byte = 0x00
	StatusCheckCondition      byte = 0x02
	StatusBusy                byte = 0x08
	StatusReservationConflict byte = 0x18
	StatusTaskSetFull         byte = 0x28
	StatusTaskAborted         byte = 0x40
)

// Sense keys (SPC-4 §4.5.6).
const (
	KeyNoSense        byte = 0x0
	KeyRecovered      byte = 0x1
	KeyNotReady       byte = 0x2
	KeyMediumError    byte = 0x3
	KeyHardwareError  byte = 0x4
	KeyIllegalRequest byte = 0x5
	KeyUnitAttention  byte = 0x6
	KeyDataProtect    byte = 0x7
	KeyAborted        byte = 0xb
	KeyMiscompare     byte = 0xe
)

// Sense is what error handling needs of sense data.
type Sense struct {
	Key, ASC, ASCQ byte
	Info           uint64 // INFORMATION field, if InfoValid: for MISCOMPARE the offset of the first difference
	InfoValid      bool
}

// ParseSense reads fixed (70h, 71h) and descriptor (72h, 73h) format sense data (SPC-4 §4.5). Data
// that is too short for a field leaves it zero; an unknown response code gives a zero Sense.
func ParseSense(b []byte) (s Sense) {
	if len(b) < 1 {
		return s
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		if len(b) > 2 {
			s.Key = b[2] & 0x0f
		}
		if len(b) >= 7 && b[0]&0x80 != 0 {
			s.Info, s.InfoValid = uint64(binary.BigEndian.Uint32(b[3:])), true
		}
		if len(b) > 12 {
			s.ASC = b[12]
		}
		if len(b) > 13 {
			s.ASCQ = b[13]
		}
	case 0x72, 0x73:
		if len(b) < 4 {
			return s
		}
		s.Key, s.ASC, s.ASCQ = b[1]&0x0f, b[2], b[3]
		if len(b) < 8 {
			return s
		}
		for d := b[8:min(len(b), 8+int(b[7]))]; len(d) >= 2; {
			n := 2 + int(d[1])
			if n > len(d) {
				break
			}
			if d[0] == 0 && n >= 12 && d[2]&0x80 != 0 { // information descriptor, SPC-4 §4.5.2.2
				s.Info, s.InfoValid = binary.BigEndian.Uint64(d[4:]), true
			}
			d = d[n:]
		}
	}
	return s
}
