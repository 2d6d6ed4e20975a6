package pair

import (
	"encoding/binary"
	"errors"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// How the bodies of messages are encoded; Msg itself is encoded by the runtime.

var errWire = errors.New("pair: malformed message body")

func encodeRanges(rs []scsi.Range) []byte {
	b := make([]byte, 0, 16*len(rs))
	for _, r := range rs {
		b = binary.BigEndian.AppendUint64(b, uint64(r.Off))
		b = binary.BigEndian.AppendUint64(b, uint64(r.Len))
	}
	return b
}

func decodeRanges(b []byte) ([]scsi.Range, error) {
	if len(b)%16 != 0 {
		return nil, errWire
	}
	rs := make([]scsi.Range, 0, len(b)/16)
	for ; len(b) > 0; b = b[16:] {
		r := scsi.Range{Off: int64(binary.BigEndian.Uint64(b)), Len: int64(binary.BigEndian.Uint64(b[8:]))}
		if r.Off < 0 || r.Len < 0 || r.Off+r.Len < 0 {
			return nil, errWire
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// DecodeRanges reads the ranges of an UNMAP from a mirror message.
func (msg *Msg) DecodeRanges() ([]scsi.Range, error) { return decodeRanges(msg.Meta) }

func appendNexus(b []byte, n scsi.NexusID) []byte {
	b = binary.BigEndian.AppendUint16(b, n.Port)
	b = append(b, n.ISID[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(n.Initiator)))
	return append(b, n.Initiator...)
}

// names are those of the hosts whose commands were forwarded here: a name that is known is no new
// string.
type names map[string]string

// namesMax bounds them: they are forgotten when there are more.
const namesMax = 1 << 10

func (t *names) string(b []byte) string {
	if s, ok := (*t)[string(b)]; ok { // the compiler makes no string to look for
		return s
	}
	if *t == nil || len(*t) >= namesMax {
		*t = names{}
	}
	s := string(b)
	(*t)[s] = s
	return s
}

func (t *names) decodeNexus(b []byte, n *scsi.NexusID) (rest []byte, err error) {
	if len(b) < 10 {
		return nil, errWire
	}
	n.Port = binary.BigEndian.Uint16(b)
	copy(n.ISID[:], b[2:8])
	l := int(binary.BigEndian.Uint16(b[8:]))
	if len(b) < 10+l {
		return nil, errWire
	}
	n.Initiator = t.string(b[10 : 10+l])
	return b[10+l:], nil
}

func appendSign(b []byte, sign int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(sign)) }

func decodeSign(b []byte) (sign int64, rest []byte, err error) {
	if len(b) < 8 {
		return 0, nil, errWire
	}
	if sign = int64(binary.BigEndian.Uint64(b)); sign <= 0 {
		return 0, nil, errWire
	}
	return sign, b[8:], nil
}

// encodeIDs and decodeIDs carry a list of LUNs.
func encodeIDs(ids []LUNID) []byte {
	b := make([]byte, 0, 16*len(ids))
	for _, id := range ids {
		b = append(b, id[:]...)
	}
	return b
}

func decodeIDs(b []byte) ([]LUNID, error) {
	if len(b)%16 != 0 {
		return nil, errWire
	}
	out := make([]LUNID, 0, len(b)/16)
	for ; len(b) > 0; b = b[16:] {
		out = append(out, LUNID(b[:16]))
	}
	return out, nil
}
