package scsi

import (
	"encoding/binary"

	"github.com/gemel-storage/gemel/internal/alua"
)

func (s *Server) testUnitReady(t *Task) bool { return true }

func (s *Server) requestSense(t *Task) bool {
	e := sense{}
	switch {
	case t.unit == nil:
		e = s.noUnitSense()
	case t.Nexus.pending.Load() != 0:
		if a, ok := t.Nexus.take(t.unit); ok {
			e.key, e.code = UnitAttention, uint16(a)
			break
		}
		fallthrough
	default:
		switch t.unit.medium.Access() {
		case AccessUnavailable:
			e.key, e.code = NotReady, ascTargetPortUnavailable
		case AccessTransitioning:
			e.key, e.code = NotReady, ascTransition
		default:
			if t.unit.quarantined.Load() {
				e.key, e.code = NotReady, ascManualIntervention
			}
		}
	}
	var b [32]byte
	n := e.encode(b[:], t.CDB[1]&0x01 != 0)
	return t.dataIn(b[:n], int(t.CDB[4]))
}

func (s *Server) reportLUNs(t *Task) bool {
	var luns []uint16
	switch t.CDB[2] {
	case 0x00, 0x02, 0x11: // all but well-known units; all; all, subsidiary ones included
		luns = s.cluster.LUNs(t.Nexus.ID.Initiator, nil)
	case 0x01, 0x10, 0x12: // well-known, administrative, subsidiary: there are none
	default:
		return t.invalidCDB(2, 7)
	}
	t.Nexus.dropAttention(AttnLUNsChanged)
	b := make([]byte, 8, 8+8*len(luns))
	binary.BigEndian.PutUint32(b, uint32(8*len(luns)))
	for _, l := range luns {
		b = binary.BigEndian.AppendUint64(b, wireLUN(l))
	}
	return t.dataIn(b, allocLength(t.CDB[6:10]))
}

// allocLength reads a four-byte allocation length; nothing reported here is near the cap.
func allocLength(b []byte) int { return int(min(binary.BigEndian.Uint32(b), 1<<30)) }

func (s *Server) readCapacity10(t *Task) bool {
	if t.CDB[8]&0x01 == 0 && binary.BigEndian.Uint32(t.CDB[2:6]) != 0 { // PMI is obsolete; an LBA without it is an error
		return t.invalidCDB(2, 7)
	}
	st := t.unit.state.Load()
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], uint32(min(st.blocks-1, 0xffffffff)))
	binary.BigEndian.PutUint32(b[4:], uint32(st.BlockSize))
	return t.dataIn(b[:], len(b))
}

func (s *Server) readCapacity16(t *Task) bool {
	st := t.unit.state.Load()
	var b [32]byte
	binary.BigEndian.PutUint64(b[:], st.blocks-1)
	binary.BigEndian.PutUint32(b[8:], uint32(st.BlockSize))
	for size := st.BlockSize; size < physicalBlock; size *= 2 {
		b[13]++ // logical blocks per physical block exponent
	}
	if st.Thin {
		b[14] = 0x80 | 0x40 // LBPME, LBPRZ
	}
	return t.dataIn(b[:], allocLength(t.CDB[10:14]))
}

// reportTargetPortGroups is SPC-4 §6.37: the same content through both nodes while they are linked,
// whatever the state.
func (s *Server) reportTargetPortGroups(t *Task) bool {
	r := s.cluster.Groups(t.unit)
	b := []byte{0, 0, 0, 0}
	switch t.CDB[1] >> 5 {
	case 0:
	case 1:
		b = append(b, 0x10, r.TransitionTime, 0, 0)
	default:
		return t.invalidCDB(1, 7)
	}
	for i := range r.Groups {
		b = appendGroup(b, &r.Groups[i])
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4)) // of all there is, also when it is cut
	t.Nexus.askedGroups.Store(t.Arrived)
	t.Nexus.showPath(t)
	return t.dataIn(b, allocLength(t.CDB[6:10]))
}

func appendGroup(b []byte, g *alua.Group) []byte {
	state := byte(g.State)
	if g.Preferred {
		state |= 0x80
	}
	// Supported: transitioning, unavailable, active/non-optimized, active/optimized. No standby.
	b = append(b, state, 0x80|0x08|0x02|0x01, byte(g.Tag>>8), byte(g.Tag), 0, byte(g.Status), 0, byte(len(g.Ports)))
	for _, p := range g.Ports {
		b = append(b, 0, 0, byte(p>>8), byte(p))
	}
	return b
}

// logSense knows the page that lists the pages: itself alone (SPC-4 §7.3.14).
func (s *Server) logSense(t *Task) bool {
	if t.CDB[2]&0x3f != 0 {
		return t.invalidCDB(2, 5)
	}
	if t.CDB[3] != 0 {
		return t.invalidCDB(3, 7)
	}
	return t.dataIn([]byte{0, 0, 0, 1, 0}, int(binary.BigEndian.Uint16(t.CDB[7:9])))
}

// startStopUnit has no motor to stop: a stop makes the medium durable, and everything continues to
// work. There is nothing to load or eject.
func (s *Server) startStopUnit(t *Task) bool {
	const loej, start, noFlush = 0x02, 0x01, 0x04
	if t.CDB[4]>>4 != 0 { // power conditions: START and LOEJ do not count; the unit stays active
		return true
	}
	if t.CDB[4]&loej != 0 {
		return t.invalidCDB(4, 1)
	}
	if t.CDB[4]&(start|noFlush) != 0 {
		return true
	}
	st := t.unit.state.Load()
	t.op = Op{Kind: OpFlush, Len: st.SizeBytes}
	return s.execute(t, nil)
}

// preventAllow: the medium is not removable, so both are the truth already.
func (s *Server) preventAllow(t *Task) bool { return true }
