package scsi

import (
	"bytes"
	"encoding/binary"
)

func (s *Server) modeSelect(t *Task) bool {
	ten := t.CDB[0] == opModeSelect10
	length := int(t.CDB[4])
	if ten {
		length = int(binary.BigEndian.Uint16(t.CDB[7:9]))
	}
	if t.CDB[1]&0x10 == 0 { // PF: vendor-specific pages are not known here
		return t.invalidCDB(1, 4)
	}
	if length == 0 {
		return true
	}
	if length > maxParamList || len(t.DataOut) < length {
		return t.check(IllegalRequest, ascParamListLength)
	}
	req := &ModeSelect{Save: t.CDB[1]&0x01 != 0}
	e := parseModeSelect(t.DataOut[:length], ten, t.unit.state.Load(), *t.unit.mode.Load(), req)
	if e != nil {
		return t.fail(e)
	}
	t.Transfer = length
	if req.Fields == 0 {
		return true
	}
	return s.propose(t, Change{ModeSelect: req})
}

var errParamLength = &sense{key: IllegalRequest, code: ascParamListLength}

func badParam(at int) *sense {
	return &sense{key: IllegalRequest, code: ascInvalidFieldParam, sks: [3]byte{0x80, byte(at >> 8), byte(at)}}
}

// parseModeSelect reads a MODE SELECT parameter list into req: header, at most one block descriptor
// that changes nothing, pages in which only changeable bits differ from what is (SPC-4 §6.11,
// §7.5).
func parseModeSelect(p []byte, ten bool, st *unitState, mode ModeState, req *ModeSelect) *sense {
	header, descLen, long := 4, 0, false
	if ten {
		header = 8
	}
	if len(p) < header {
		return errParamLength
	}
	if ten {
		descLen, long = int(binary.BigEndian.Uint16(p[6:])), p[4]&0x01 != 0
	} else {
		descLen = int(p[3])
	}
	if descLen > len(p)-header {
		return errParamLength
	}
	if descLen != 0 {
		want := appendBlockDescriptor(nil, st, long)
		got := p[header : header+descLen]
		n := 4 // bytes of the number of blocks; zero means "as it is"
		if long {
			n = 8
		}
		if len(got) != len(want) || !bytes.Equal(got[n:], want[n:]) ||
			!bytes.Equal(got[:n], want[:n]) && !allZero(got[:n]) {
			return badParam(header)
		}
	}
	values := mode.Current
	for at := header + descLen; at < len(p); {
		if len(p)-at < 2 {
			return errParamLength
		}
		code := p[at] & 0x3f
		if p[at]&0x40 != 0 || !isModePage(code) { // subpage format: none is known
			return badParam(at)
		}
		n := 2 + int(p[at+1])
		have := appendModePage(nil, code, mode.Current, pcCurrent)
		if n != len(have) {
			return badParam(at + 1)
		}
		if n > len(p)-at {
			return errParamLength
		}
		page, may := p[at:at+n], appendModePage(nil, code, mode.values(pcChangeable), pcChangeable)
		for i := 2; i < n; i++ {
			if (page[i]^have[i])&^may[i] != 0 {
				return badParam(at + i)
			}
		}
		switch code {
		case pageCaching:
			values.WriteCache = page[2]&0x04 != 0
			req.Fields |= FieldWriteCache
		case pageControl:
			values.DescSense, values.Protect = page[2]&0x04 != 0, page[4]&0x08 != 0
			req.Fields |= FieldDescSense | FieldProtect
		}
		at += n
	}
	req.Values = values
	return nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
