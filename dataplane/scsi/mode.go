package scsi

import "encoding/binary"

// ModeValues are the mode parameters that a host can change.
type ModeValues struct {
	WriteCache bool `json:"write_cache"` // caching page WCE; off: every write is durable before its status
	DescSense  bool `json:"desc_sense"`  // control page D_SENSE
	Protect    bool `json:"protect"`     // control page SWP: write commands end with 27/02
}

// ModeState is the mode page state of a unit, replicated. Defaults come with the unit.
type ModeState struct {
	Current ModeValues `json:"current"`
	Saved   ModeValues `json:"saved"`
	Default ModeValues `json:"default"`
	// WriteThrough: an administrator wants every write durable. WCE is zero in all values, and
	// hosts cannot change it.
	WriteThrough bool `json:"write_through,omitempty"`
}

// DefaultMode is the state of a unit that no host has changed.
func DefaultMode(writeCache bool) ModeState {
	v := ModeValues{WriteCache: writeCache}
	return ModeState{Current: v, Saved: v, Default: v}
}

// SetWriteThrough sets an administrator's choice. If the choice is withdrawn, the unit is in the
// state in which no host has switched its cache off.
func (s ModeState) SetWriteThrough(on bool) ModeState {
	s.WriteThrough = on
	for _, v := range []*ModeValues{&s.Current, &s.Saved, &s.Default} {
		v.WriteCache = !on
	}
	return s
}

// ModeSelect is a change of mode parameters, checked for form.
type ModeSelect struct {
	Values  ModeValues `json:"values"`            // what Fields names
	Fields  ModeFields `json:"fields"`            // which of Values to take over
	Save    bool       `json:"save,omitempty"`    // SP
	Restore bool       `json:"restore,omitempty"` // a reset: the saved values become current
}

// ModeFields is a set of mode parameters.
type ModeFields byte

// Members of ModeFields.
const (
	FieldWriteCache ModeFields = 1 << iota
	FieldDescSense
	FieldProtect
)

// ApplyModeSelect applies a change; it is deterministic. changed reports that current values
// differ, which calls for 2A/01 on every nexus but the one that asked.
func ApplyModeSelect(s ModeState, req *ModeSelect) (next ModeState, out Outcome, changed bool) {
	next = s
	if req.Restore {
		next.Current = s.Saved
		return next, Outcome{}, next.Current != s.Current
	}
	set := func(v *ModeValues) {
		// A host may have asked before it could know that WCE is not its to change any more.
		if req.Fields&FieldWriteCache != 0 && !s.WriteThrough {
			v.WriteCache = req.Values.WriteCache
		}
		if req.Fields&FieldDescSense != 0 {
			v.DescSense = req.Values.DescSense
		}
		if req.Fields&FieldProtect != 0 {
			v.Protect = req.Values.Protect
		}
	}
	set(&next.Current)
	if req.Save {
		next.Saved = next.Current
	}
	return next, Outcome{}, next.Current != s.Current
}

// Mode page codes (SBC-3 §6.5, SPC-4 §7.5).
const (
	pageCaching   = 0x08
	pageControl   = 0x0a
	pageException = 0x1c
	pageAll       = 0x3f
)

// Page control values of MODE SENSE.
const (
	pcCurrent = iota
	pcChangeable
	pcDefault
	pcSaved
)

var modePages = [...]byte{pageCaching, pageControl, pageException}

// appendModePage writes one page. Pages are saveable, so PS is set.
func appendModePage(b []byte, page byte, v ModeValues, pc int) []byte {
	at := len(b)
	switch page {
	case pageCaching:
		b = append(b, 0x80|pageCaching, 0x12)
		b = append(b, make([]byte, 0x12)...)
		if v.WriteCache {
			b[at+2] |= 0x04
		}
	case pageControl:
		b = append(b, 0x80|pageControl, 0x0a)
		b = append(b, make([]byte, 0x0a)...)
		if v.DescSense {
			b[at+2] |= 0x04
		}
		if v.Protect {
			b[at+4] |= 0x08
		}
		if pc != pcChangeable {
			b[at+3] = 0x10                // QUEUE ALGORITHM MODIFIER 1: unrestricted reordering; QERR 0
			b[at+5] = 0x40                // TAS: what another nexus aborts ends with TASK ABORTED
			b[at+8], b[at+9] = 0xff, 0xff // busy timeout period: unlimited
		}
	case pageException: // nothing is reported by it: EWASC, DEXCPT and MRIE are zero
		b = append(b, 0x80|pageException, 0x0a)
		b = append(b, make([]byte, 0x0a)...)
	}
	return b
}

func (m *ModeState) values(pc int) ModeValues {
	switch pc {
	case pcChangeable:
		return ModeValues{WriteCache: !m.WriteThrough, DescSense: true, Protect: true}
	case pcDefault:
		return m.Default
	case pcSaved:
		return m.Saved
	}
	return m.Current
}

func (s *Server) modeSense(t *Task) bool {
	ten := t.CDB[0] == opModeSense10
	pc, page, sub := int(t.CDB[2]>>6), t.CDB[2]&0x3f, t.CDB[3]
	st, mode := t.unit.state.Load(), t.unit.mode.Load()
	alloc := int(t.CDB[4])
	header := 4
	if ten {
		alloc, header = int(binary.BigEndian.Uint16(t.CDB[7:9])), 8
	}
	b := make([]byte, header, 96)
	var descriptor int
	if t.CDB[1]&0x08 == 0 { // DBD
		long := ten && t.CDB[1]&0x10 != 0 // LLBAA
		b = appendBlockDescriptor(b, st, long)
		descriptor = len(b) - header
		if long {
			b[4] |= 0x01
		}
	}
	found := false
	for _, p := range modePages {
		if (page == p && sub == 0) || (page == p && sub == 0xff) || (page == pageAll && (sub == 0 || sub == 0xff)) {
			b = appendModePage(b, p, mode.values(pc), pc)
			found = true
		}
	}
	if !found {
		if page == pageAll || isModePage(page) {
			return t.invalidCDB(3, 7)
		}
		return t.invalidCDB(2, 5)
	}
	device := byte(0x10) // DPOFUA
	if st.ReadOnly || mode.Current.Protect {
		device |= 0x80
	}
	if ten {
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		b[3] = device
		binary.BigEndian.PutUint16(b[6:], uint16(descriptor))
	} else {
		b[0], b[2], b[3] = byte(len(b)-1), device, byte(descriptor)
	}
	return t.dataIn(b, alloc)
}

func isModePage(page byte) bool {
	for _, p := range modePages {
		if p == page {
			return true
		}
	}
	return false
}

func appendBlockDescriptor(b []byte, st *unitState, long bool) []byte {
	if long {
		b = binary.BigEndian.AppendUint64(b, st.blocks)
		b = append(b, 0, 0, 0, 0)
		return binary.BigEndian.AppendUint32(b, uint32(st.BlockSize))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(min(st.blocks, 0xffffffff)))
	return binary.BigEndian.AppendUint32(b, uint32(st.BlockSize))
}
