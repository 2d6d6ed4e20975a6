package scsi

import "encoding/binary"

// Bits of byte 1 of the block commands (SBC-3 §5).
const (
	bitsProtect = 0xe0 // RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT: protection information is not supported
	bitFUA      = 0x08
)

// extent reads the LBA and length fields by the size of the CDB.
func (t *Task) extent() (lba, blocks uint64) {
	c := &t.CDB
	switch c[0] >> 5 {
	case 0: // 6 bytes; a length of 0 means 256
		if blocks = uint64(c[4]); blocks == 0 {
			blocks = 256
		}
		return uint64(c[1]&0x1f)<<16 | uint64(binary.BigEndian.Uint16(c[2:])), blocks
	case 1, 2:
		return uint64(binary.BigEndian.Uint32(c[2:])), uint64(binary.BigEndian.Uint16(c[7:]))
	case 5:
		return uint64(binary.BigEndian.Uint32(c[2:])), uint64(binary.BigEndian.Uint32(c[6:]))
	}
	return binary.BigEndian.Uint64(c[2:]), uint64(binary.BigEndian.Uint32(c[10:]))
}

// within checks an extent against the unit and, for what moves data, against the transfer limit.
// The medium checks the bounds again under its lock.
func (t *Task) within(st *unitState, lba, blocks uint64, limit uint64) bool {
	if lba > st.blocks || blocks > st.blocks-lba {
		return !t.fail(&sense{key: IllegalRequest, code: ascLBAOutOfRange, info: max(lba, st.blocks), hasInfo: true})
	}
	if blocks > limit {
		return !t.invalidCDB(int(t.lengthField()), 7)
	}
	return true
}

// lengthField is the offset of the number of blocks in the CDB.
func (t *Task) lengthField() byte {
	switch t.CDB[0] >> 5 {
	case 0:
		return 4
	case 1, 2:
		return 7
	case 5:
		return 6
	}
	return 10
}

// writable refuses write commands on protected units.
func (t *Task) writable(st *unitState) bool {
	if st.ReadOnly {
		return !t.check(DataProtect, ascWriteProtected)
	}
	if t.unit.mode.Load().Current.Protect {
		return !t.check(DataProtect, ascSoftwareWriteProtect)
	}
	return true
}

// durable says whether a write has to be on stable storage before its status.
func (t *Task) durable(flags byte) bool {
	return flags&bitFUA != 0 || !t.unit.mode.Load().Current.WriteCache
}

func (s *Server) read(t *Task) bool {
	st := t.unit.state.Load()
	lba, blocks := t.extent()
	var flags byte
	if t.CDB[0] != opRead6 {
		if flags = t.CDB[1]; flags&bitsProtect != 0 {
			return t.invalidCDB(1, 7)
		}
	}
	if !t.within(st, lba, blocks, MaxTransfer>>st.shift) {
		return true
	}
	n := int(blocks) << st.shift
	t.Transfer = n
	// Only what the host takes is read: memory is accounted for by what it expects, not by what its
	// CDB says.
	expected := 0
	if t.Read {
		expected = min(n, t.Expected)
	}
	n = (expected + st.BlockSize - 1) >> st.shift << st.shift
	if n == 0 {
		return s.nothing(t)
	}
	t.DataIn = t.Alloc(n)
	t.op = Op{Kind: OpRead, Off: int64(lba) << st.shift, Len: int64(n), Data: t.DataIn, FUA: flags&bitFUA != 0}
	return s.execute(t, nil)
}

// write is WRITE (6, 10, 12, 16) and WRITE AND VERIFY (10, 12, 16). The latter is a write that is
// durable before its status: reading it back would only return what was just written to the page
// cache.
func (s *Server) write(t *Task) bool {
	st := t.unit.state.Load()
	lba, blocks := t.extent()
	var flags byte
	if t.CDB[0] != opWrite6 {
		if flags = t.CDB[1]; flags&bitsProtect != 0 {
			return t.invalidCDB(1, 7)
		}
	}
	if t.isWriteVerify() {
		if flags&0x06 == 0x04 { // BYTCHK 10b is reserved
			return t.invalidCDB(1, 2)
		}
		flags |= bitFUA
	}
	if !t.within(st, lba, blocks, MaxTransfer>>st.shift) || !t.writable(st) {
		return true
	}
	data, ok := t.payload(int(blocks)<<st.shift, st)
	if !ok {
		return true
	}
	if len(data) == 0 {
		return s.nothing(t)
	}
	t.op = Op{Kind: OpWrite, Off: int64(lba) << st.shift, Len: int64(len(data)), Data: data, FUA: t.durable(flags)}
	return s.execute(t, nil)
}

// nothing ends a command for the medium that moves nothing; it still has to be one that the host
// may send.
func (s *Server) nothing(t *Task) bool {
	s.admit(t, lookupCommand(&t.CDB))
	return true
}

func (t *Task) isWriteVerify() bool {
	return t.CDB[0] == opWriteVerify10 || t.CDB[0] == opWriteVerify12 || t.CDB[0] == opWriteVerify16
}

// payload notes what the CDB asks to move and gives what has come of it, whole blocks only. A host
// that announces less than its CDB asks for gets what it sent written, and an overflow residual
// (SAM-5 §5.4.3, RFC 7143 §11.4.5.1): nothing, if it announces nothing. Of less than a block
// nothing can be written, and GOOD would say that something was: that is INVALID FIELD IN COMMAND
// INFORMATION UNIT, with the same residual. False: the command has ended so.
func (t *Task) payload(n int, st *unitState) ([]byte, bool) {
	have := len(t.DataOut)
	if have > 0 && have < min(n, st.BlockSize) {
		t.check(IllegalRequest, ascInvalidFieldInfo)
		t.Transfer = n
		return nil, false
	}
	t.Transfer = n
	return t.DataOut[:min(n, have>>st.shift<<st.shift)], true
}

func (s *Server) synchronizeCache(t *Task) bool {
	st := t.unit.state.Load()
	lba, blocks := t.extent()
	if !t.within(st, lba, blocks, st.blocks) {
		return true
	}
	if blocks == 0 {
		blocks = st.blocks - lba
	}
	// IMMED is not honoured: a status that comes when the data is durable is never too early.
	t.op = Op{Kind: OpFlush, Off: int64(lba) << st.shift, Len: int64(blocks) << st.shift}
	return s.execute(t, nil)
}

// prefetch has nothing to do that the page cache's read-ahead does not do better; GOOD promises
// nothing.
func (s *Server) prefetch(t *Task) bool {
	lba, blocks := t.extent()
	t.within(t.unit.state.Load(), lba, blocks, ^uint64(0))
	return true
}

// writeSame is WRITE SAME (10, 16) (SBC-3 §5.43).
func (s *Server) writeSame(t *Task) bool {
	const anchor, unmap, ndob, obsolete = 0x10, 0x08, 0x01, 0x06
	st := t.unit.state.Load()
	lba, blocks := t.extent()
	flags := t.CDB[1]
	switch {
	case flags&bitsProtect != 0:
		return t.invalidCDB(1, 7)
	case flags&anchor != 0: // ANC_SUP is 0
		return t.invalidCDB(1, 4)
	case flags&obsolete != 0: // PBDATA, LBDATA
		return t.invalidCDB(1, 2)
	case flags&unmap != 0 && !st.Thin:
		return t.invalidCDB(1, 3)
	case flags&ndob != 0 && t.CDB[0] == opWriteSame10:
		return t.invalidCDB(1, 0)
	}
	if lba > st.blocks || blocks > st.blocks-lba {
		return t.fail(&sense{key: IllegalRequest, code: ascLBAOutOfRange, info: max(lba, st.blocks), hasInfo: true})
	}
	// WSNZ is 1: a zero does not mean "to the end". No slip of a host should wipe a LUN.
	if blocks == 0 || blocks > maxWriteSame>>st.shift {
		return t.invalidCDB(int(t.lengthField()), 7)
	}
	if !t.writable(st) {
		return true
	}
	block := zeroBlock[:st.BlockSize]
	if flags&ndob == 0 {
		if t.Expected != st.BlockSize || len(t.DataOut) != st.BlockSize {
			return t.check(IllegalRequest, ascInvalidFieldCDB)
		}
		block = t.DataOut
		t.Transfer = st.BlockSize
	}
	t.op = Op{Kind: OpWriteSame, Off: int64(lba) << st.shift, Len: int64(blocks) << st.shift, Data: block,
		Unmap: flags&unmap != 0, FUA: t.durable(0)}
	return s.execute(t, nil)
}

// zeroBlock is the data of WRITE SAME with NDOB; it is never written to.
var zeroBlock [4096]byte

// unmap is SBC-3 §5.28.
func (s *Server) unmap(t *Task) bool {
	st := t.unit.state.Load()
	if !st.Thin {
		return t.check(IllegalRequest, ascInvalidOpcode)
	}
	if t.CDB[1]&0x01 != 0 { // ANCHOR
		return t.invalidCDB(1, 0)
	}
	length := int(binary.BigEndian.Uint16(t.CDB[7:9]))
	if length == 0 {
		return s.nothing(t)
	}
	if length < 8 || len(t.DataOut) < length {
		return t.check(IllegalRequest, ascParamListLength)
	}
	if !t.writable(st) {
		return true
	}
	p := t.DataOut[:length]
	list := p[8:]
	list = list[:min(len(list), int(binary.BigEndian.Uint16(p[2:])))]
	if len(list)/16 > maxUnmapRanges {
		return t.invalidParam(2)
	}
	ranges := make([]Range, 0, len(list)/16)
	var total uint64
	for at := 0; at+16 <= len(list); at += 16 {
		lba, blocks := binary.BigEndian.Uint64(list[at:]), uint64(binary.BigEndian.Uint32(list[at+8:]))
		if lba > st.blocks || blocks > st.blocks-lba {
			return t.fail(&sense{key: IllegalRequest, code: ascLBAOutOfRange, info: max(lba, st.blocks), hasInfo: true})
		}
		if total += blocks; total > uint64(int64(maxUnmapBytes)>>st.shift) {
			return t.invalidParam(8 + at + 8)
		}
		if blocks > 0 {
			ranges = append(ranges, Range{int64(lba) << st.shift, int64(blocks) << st.shift})
		}
	}
	t.Transfer = length
	if len(ranges) == 0 {
		return s.nothing(t)
	}
	t.op = Op{Kind: OpUnmap, Ranges: ranges, FUA: t.durable(0)}
	return s.execute(t, nil)
}

// getLBAStatus reports the run at the starting LBA (SBC-3 §5.4): one descriptor, which the standard
// allows.
func (s *Server) getLBAStatus(t *Task) bool {
	st := t.unit.state.Load()
	if !st.Thin {
		return t.unsupportedAction()
	}
	lba := binary.BigEndian.Uint64(t.CDB[2:])
	if lba >= st.blocks {
		return t.fail(&sense{key: IllegalRequest, code: ascLBAOutOfRange, info: lba, hasInfo: true})
	}
	n := min(st.blocks-lba, 0xffffffff)
	t.op = Op{Kind: OpMapped, Off: int64(lba) << st.shift, Len: int64(n) << st.shift}
	return s.execute(t, lbaStatus)
}

func (t *Task) unsupportedAction() bool { return t.invalidCDB(1, 4) }

func lbaStatus(s *Server, t *Task) bool {
	st := t.unit.state.Load()
	var b [24]byte
	binary.BigEndian.PutUint32(b[:], uint32(len(b)-4))
	binary.BigEndian.PutUint64(b[8:], uint64(t.op.Off)>>st.shift)
	// A hole of the filesystem ends at its blocks, which are not smaller than ours.
	end := (t.op.Extent.Off + t.op.Extent.Len) >> st.shift
	binary.BigEndian.PutUint32(b[16:], uint32(max(end-t.op.Off>>st.shift, 1)))
	if !t.op.Mapped {
		b[20] = 0x01 // deallocated
	}
	return t.dataIn(b[:], allocLength(t.CDB[10:14]))
}
