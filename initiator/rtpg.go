package initiator

import (
	"encoding/binary"
	"fmt"

	"github.com/gemel-storage/gemel/internal/alua"
)

// parseRTPG reads REPORT TARGET PORT GROUPS parameter data, length-only or extended header (SPC-4
// §6.37). A truncated list is accepted up to its last whole group.
func parseRTPG(b []byte) (alua.Report, error) {
	var r alua.Report
	if len(b) < 4 {
		return r, fmt.Errorf("%w: REPORT TARGET PORT GROUPS returned %d bytes", ErrProtocol, len(b))
	}
	d := b[4:min(uint64(len(b)), 4+uint64(binary.BigEndian.Uint32(b)))]
	// In the extended header byte 4 carries the format code 001b in bits 6..4 and byte 5 the
	// transition time. In the short form that byte is the first group's PREF bit and state, where
	// bits 6..4 are reserved.
	if len(d) >= 4 && d[0]>>4&7 == 1 {
		r.TransitionTime = d[1]
		d = d[4:]
	}
	for len(d) >= 8 {
		n := 8 + 4*int(d[7])
		if n > len(d) {
			break
		}
		g := alua.Group{
			Preferred: d[0]&0x80 != 0,
			State:     alua.State(d[0] & 0x0f),
			Tag:       binary.BigEndian.Uint16(d[2:]),
			Status:    alua.Status(d[5]),
		}
		for p := d[8:n]; len(p) >= 4; p = p[4:] {
			g.Ports = append(g.Ports, binary.BigEndian.Uint16(p[2:]))
		}
		r.Groups = append(r.Groups, g)
		d = d[n:]
	}
	return r, nil
}
