package scsi

import "encoding/binary"

// reportOpcodes is REPORT SUPPORTED OPERATION CODES (SPC-4 §6.35).
func (s *Server) reportOpcodes(t *Task) bool {
	timeouts := t.CDB[2]&0x80 != 0 // RCTD
	option, op := t.CDB[2]&0x07, t.CDB[3]
	action := binary.BigEndian.Uint16(t.CDB[4:6])
	alloc := allocLength(t.CDB[6:10])
	thin := t.unit.state.Load().Thin
	var c *command
	switch option {
	case 0:
		return t.dataIn(allOpcodes(timeouts, thin), alloc)
	case 1: // a command without service actions
		if serviceActions[op] != nil {
			return t.invalidCDB(2, 2)
		}
		c = direct[op]
	case 2: // one with
		if direct[op] != nil {
			return t.invalidCDB(2, 2)
		}
		if a := serviceActions[op]; a != nil && action < serviceActionMax {
			c = a[action]
		}
	case 3: // either: service action only where there are such
		c = direct[op]
		if a := serviceActions[op]; a != nil && action < serviceActionMax {
			c = a[action]
		} else if c != nil && action != 0 {
			c = nil
		}
	default:
		return t.invalidCDB(2, 2)
	}
	if c == nil || !c.offered(thin) {
		return t.dataIn([]byte{0, 0x01, 0, 0}, alloc) // not supported
	}
	b := []byte{0, 0x03, 0, c.size}
	b = append(b, c.usage...)
	if timeouts {
		b[1] |= 0x80
		b = appendTimeouts(b)
	}
	return t.dataIn(b, alloc)
}

// offered leaves out what a fully provisioned unit does not do.
func (c *command) offered(thin bool) bool {
	return thin || c.op != 0x42 && !(c.op == opServiceIn16 && c.action == 0x12)
}

func allOpcodes(timeouts, thin bool) []byte {
	b := make([]byte, 4, 4+20*len(commands))
	for i := range commands {
		c := &commands[i]
		if !c.offered(thin) {
			continue
		}
		var flags byte
		var action uint16
		if c.action != noAction {
			flags, action = 0x01, uint16(c.action) // SERVACTV
		}
		if timeouts {
			flags |= 0x02 // CTDP
		}
		b = append(b, c.op, 0, byte(action>>8), byte(action), 0, flags, 0, c.size)
		if timeouts {
			b = appendTimeouts(b)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// appendTimeouts writes a command timeouts descriptor (SPC-4 §6.35.4): nominal time not given.
func appendTimeouts(b []byte) []byte {
	return append(b, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, defaultTimeout)
}

// reportTMFs is REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 §6.36).
func (s *Server) reportTMFs(t *Task) bool {
	b := []byte{0x80 | 0x40 | 0x10 | 0x08 | 0x02, 0, 0, 0} // abort task, abort task set, clear task set, LU reset, target reset
	if t.CDB[2]&0x80 != 0 {                                // REPD: the extended form, timeouts not given
		b = append(b, make([]byte, 12)...)
		b[3] = 12
	}
	return t.dataIn(b, allocLength(t.CDB[6:10]))
}
