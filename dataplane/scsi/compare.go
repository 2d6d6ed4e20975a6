package scsi

import "bytes"

// maxORTries bounds how often ORWRITE starts over because another command wrote between its read
// and its write.
const maxORTries = 16

// verifyChunk is how much VERIFY reads at a time, in bytes: a host that sends no data must not make
// us hold much.
const verifyChunk = 256 << 10

// verify is VERIFY (10, 12, 16) (SBC-3 §5.30): the medium is read, and compared with what the host
// sent if BYTCHK asks for it: 01b block by block, 11b one block against all.
func (s *Server) verify(t *Task) bool {
	st := t.unit.state.Load()
	lba, blocks := t.extent()
	flags := t.CDB[1]
	if flags&bitsProtect != 0 {
		return t.invalidCDB(1, 7)
	}
	check := flags >> 1 & 3
	if check == 2 {
		return t.invalidCDB(1, 2)
	}
	if !t.within(st, lba, blocks, MaxTransfer>>st.shift) {
		return true
	}
	n := int(blocks) << st.shift
	var want []byte
	switch check {
	case 1:
		var ok bool
		if want, ok = t.payload(n, st); !ok {
			return true
		}
		n = min(n, len(want)) // what was not sent is not compared; the residual says so
	case 3:
		if n > 0 {
			var ok bool
			if want, ok = t.payload(st.BlockSize, st); !ok {
				return true
			}
			if len(want) == 0 {
				n = 0
			}
		}
	}
	if n == 0 {
		return s.nothing(t)
	}
	r := &t.serverRef
	r.want, r.at, r.total = want, 0, n
	r.buf = t.Alloc(min(n, verifyChunk))
	t.op = Op{Kind: OpRead, Off: int64(lba) << st.shift, Len: int64(len(r.buf)), Data: r.buf}
	return s.execute(t, compared)
}

// compared compares one piece of the medium and continues with the next.
func compared(_ *Server, t *Task) bool {
	r := &t.serverRef
	if d := difference(t.op.Data, r.want, r.at); d >= 0 {
		t.op.Result, t.op.MiscompareAt = Miscompare, int64(r.at+d)
		t.finishOp()
		return true
	}
	next := t.op.Off + t.op.Len
	if r.at += len(t.op.Data); r.at == r.total {
		return true
	}
	n := min(r.total-r.at, len(r.buf))
	t.op = Op{Kind: OpRead, Off: next, Len: int64(n), Data: r.buf[:n]}
	return false
}

// difference compares a piece, at bytes into the whole, with what is wanted, repeated as often as
// it takes. It returns where they differ, or -1; nothing wanted is no difference.
func difference(have, want []byte, at int) int {
	for i := 0; i < len(have) && len(want) > 0; {
		w := want[(at+i)%len(want):]
		w = w[:min(len(w), len(have)-i)]
		if part := have[i : i+len(w)]; !bytes.Equal(part, w) {
			return i + firstDifference(part, w)
		}
		i += len(w)
	}
	return -1
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// compareAndWrite is SBC-3 §5.2: atomic against every other operation, because the medium does it
// under one lock.
func (s *Server) compareAndWrite(t *Task) bool {
	st := t.unit.state.Load()
	lba, blocks := binaryLBA16(t), uint64(t.CDB[13])
	flags := t.CDB[1]
	if flags&bitsProtect != 0 {
		return t.invalidCDB(1, 7)
	}
	if lba > st.blocks || blocks > st.blocks-lba {
		return t.fail(&sense{key: IllegalRequest, code: ascLBAOutOfRange, info: max(lba, st.blocks), hasInfo: true})
	}
	if !t.writable(st) {
		return true
	}
	n := int(blocks) << st.shift
	// Half of a comparison means nothing: the data must be what the CDB says.
	if t.Expected != 2*n || len(t.DataOut) != 2*n {
		return t.invalidCDB(13, 7)
	}
	if n == 0 {
		return s.nothing(t)
	}
	t.Transfer = 2 * n
	t.op = Op{Kind: OpCompareWrite, Off: int64(lba) << st.shift, Len: int64(n), Verify: t.DataOut[:n],
		Data: t.DataOut[n:], FUA: t.durable(flags)}
	return s.execute(t, nil)
}

func binaryLBA16(t *Task) uint64 {
	lba, _ := t.extent()
	return lba
}

// orWrite is ORWRITE(16) (SBC-3 §5.14). It reads, and writes only if the medium still holds what
// was read, which makes it atomic without an operation of its own.
func (s *Server) orWrite(t *Task) bool {
	st := t.unit.state.Load()
	lba, blocks := t.extent()
	flags := t.CDB[1]
	if flags&bitsProtect != 0 {
		return t.invalidCDB(1, 7)
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
	r := &t.serverRef
	r.want = data
	r.buf = t.Alloc(2 * len(data)) // what is there; what shall be
	r.tries = maxORTries
	r.durable = t.durable(flags)
	t.op = Op{Kind: OpRead, Off: int64(lba) << st.shift, Len: int64(len(data)), Data: r.buf[:len(data)]}
	return s.execute(t, orStep)
}

// orStep follows the read with the write, and a write that came too late with another read.
func orStep(s *Server, t *Task) bool {
	r := &t.serverRef
	n := len(r.want)
	old, merged := r.buf[:n], r.buf[n:]
	if t.op.Kind == OpRead {
		for i := range merged {
			merged[i] = old[i] | r.want[i]
		}
		t.op = Op{Kind: OpCompareWrite, Off: t.op.Off, Len: int64(n), Verify: old, Data: merged, FUA: r.durable}
		return false
	}
	if t.op.Result != Miscompare {
		return true
	}
	if r.tries--; r.tries == 0 {
		t.Status, t.Transfer = StatusBusy, 0
		return true
	}
	t.op = Op{Kind: OpRead, Off: t.op.Off, Len: int64(n), Data: old}
	return false
}
