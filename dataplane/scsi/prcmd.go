package scsi

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
)

// prParamLen is the length of the basic PERSISTENT RESERVE OUT parameter list (SPC-4 §6.14.3).
const prParamLen = 24

func (s *Server) persistentReserveOut(t *Task) bool {
	action, scope, typ := PRAction(t.CDB[1]&0x1f), t.CDB[2]>>4, t.CDB[2]&0xf
	if action > PRRegisterMove {
		return t.invalidCDB(1, 4)
	}
	length := int(binary.BigEndian.Uint32(t.CDB[5:9]))
	t.Transfer = length
	if length < prParamLen || length > maxParamList || len(t.DataOut) < length {
		return t.check(IllegalRequest, ascParamListLength)
	}
	p := t.DataOut[:length]
	req := &PROut{Action: action, Type: typ, Key: binary.BigEndian.Uint64(p), ServiceKey: binary.BigEndian.Uint64(p[8:])}
	switch action {
	case PRReserve, PRRelease, PRPreempt, PRPreemptAbort:
		if scope != 0 { // LU_SCOPE is the only one
			return t.invalidCDB(2, 7)
		}
		if !validPRType(typ) {
			return t.invalidCDB(2, 3)
		}
	}
	if action == PRRegisterMove {
		if !parseRegisterMove(p, req) {
			return t.invalidParam(16)
		}
		return s.prOut(t, req, length)
	}
	if length != prParamLen && p[20]&0x08 == 0 {
		return t.check(IllegalRequest, ascParamListLength)
	}
	// SPEC_I_PT and ALL_TG_PT are not supported, and REPORT CAPABILITIES says so (SIP_C, ATP_C =
	// 0).
	if action == PRRegister || action == PRRegisterIgnore {
		if p[20]&0x0c != 0 {
			return t.invalidParam(20)
		}
		req.APTPL = p[20]&0x01 != 0
	}
	return s.prOut(t, req, length)
}

func (s *Server) prOut(t *Task, req *PROut, length int) bool {
	t.Transfer = length
	return s.propose(t, Change{PROut: req})
}

// parseRegisterMove reads the parameter list of REGISTER AND MOVE (SPC-4 §6.14.4).
func parseRegisterMove(p []byte, req *PROut) bool {
	req.Unregister, req.APTPL = p[17]&0x02 != 0, p[17]&0x01 != 0
	port := binary.BigEndian.Uint16(p[18:])
	n := int(binary.BigEndian.Uint32(p[20:]))
	if n != len(p)-prParamLen || port != 1 && port != 2 {
		return false
	}
	name, isid, ok := parseTransportID(p[prParamLen:])
	req.MoveTo = NexusID{Initiator: name, ISID: isid, Port: port}
	return ok
}

// parseTransportID reads an iSCSI TransportID that names an initiator port (SPC-4 §7.6.4.6, format
// 01b): "<iSCSI name>,i,0x<ISID in hex>".
func parseTransportID(b []byte) (name string, isid [6]byte, ok bool) {
	if len(b) < 4 || b[0] != 0x45 || len(b)-4 < int(binary.BigEndian.Uint16(b[2:])) {
		return "", isid, false
	}
	text, _, _ := bytes.Cut(b[4:4+int(binary.BigEndian.Uint16(b[2:]))], []byte{0})
	name, digits, found := strings.Cut(string(text), ",i,0x")
	if !found || name == "" || len(name) > 223 || len(digits) > 12 {
		return "", isid, false
	}
	v, err := strconv.ParseUint(digits, 16, 48)
	if err != nil {
		return "", isid, false
	}
	var wide [8]byte
	binary.BigEndian.PutUint64(wide[:], v)
	copy(isid[:], wide[2:])
	return strings.ToLower(name), isid, true
}

// appendTransportID writes what parseTransportID reads, padded to a multiple of four and at least
// 20 bytes after the header.
func appendTransportID(b []byte, n *NexusID) []byte {
	at := len(b)
	b = append(b, 0x45, 0, 0, 0)
	b = append(b, n.Initiator...)
	b = append(b, ",i,0x"...)
	for _, x := range n.ISID {
		b = append(b, hexDigits[x>>4], hexDigits[x&0xf])
	}
	b = append(b, 0)
	for len(b)-at < 24 || (len(b)-at)%4 != 0 {
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at-4))
	return b
}

const hexDigits = "0123456789abcdef"

func (s *Server) persistentReserveIn(t *Task) bool {
	pr := t.unit.pr.Load()
	var b []byte
	switch t.CDB[1] & 0x1f {
	case 0: // READ KEYS
		b = binary.BigEndian.AppendUint32(b, pr.Generation)
		b = binary.BigEndian.AppendUint32(b, uint32(8*len(pr.Registrants)))
		for _, r := range pr.Registrants {
			b = binary.BigEndian.AppendUint64(b, r.Key)
		}
	case 1: // READ RESERVATION
		b = binary.BigEndian.AppendUint32(b, pr.Generation)
		if pr.Type == 0 {
			b = append(b, 0, 0, 0, 0)
			break
		}
		var key uint64 // zero for the all-registrants types
		if i := pr.find(&pr.Holder); i >= 0 && !allRegistrants(pr.Type) {
			key = pr.Registrants[i].Key
		}
		b = append(b, 0, 0, 0, 16)
		b = binary.BigEndian.AppendUint64(b, key)
		b = append(b, 0, 0, 0, 0, 0, pr.Type, 0, 0)
	case 2: // REPORT CAPABILITIES: CRH, PTPL_C; TMV and ALLOW COMMANDS 001b; PTPL_A; the types; all six of them
		b = append(b, 0, 8, 0x11, 0x90, 0xea, 0x01, 0, 0)
		if pr.APTPL {
			b[3] |= 0x01
		}
	case 3: // READ FULL STATUS
		b = prFullStatus(pr)
	}
	return t.dataIn(b, int(binary.BigEndian.Uint16(t.CDB[7:9])))
}

func prFullStatus(pr *PRState) []byte {
	b := binary.BigEndian.AppendUint32(nil, pr.Generation)
	b = append(b, 0, 0, 0, 0)
	for i := range pr.Registrants {
		r := &pr.Registrants[i]
		b = binary.BigEndian.AppendUint64(b, r.Key)
		b = append(b, 0, 0, 0, 0)
		if pr.holds(&r.Nexus) {
			b = append(b, 0x01, pr.Type)
		} else {
			b = append(b, 0, 0)
		}
		b = append(b, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, r.Nexus.Port)
		at := len(b)
		b = append(b, 0, 0, 0, 0)
		b = appendTransportID(b, &r.Nexus)
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}

// reserve6 is RESERVE and RELEASE, 6 and 10 bytes: whole units only, no third parties (SPC-2 §7.21,
// §7.16).
func (s *Server) reserve6(t *Task) bool {
	if t.CDB[1]&0x11 != 0 {
		return t.invalidCDB(1, 4)
	}
	a := PRReserve6
	if t.CDB[0] == opRelease6 || t.CDB[0] == opRelease10 {
		a = PRRelease6
		if pr := t.unit.pr.Load(); pr.Reserved == nil || *pr.Reserved != t.Nexus.ID {
			return true // nothing to release: no need to ask the cluster
		}
	}
	return s.propose(t, Change{PROut: &PROut{Action: a}})
}
