package initiator

import "github.com/gemel-storage/gemel/internal/pdu"

// This file is the session's way out: commands become PDUs in a batch, and one writev sends it. A
// goroutine that finds no other one writing does it itself without blocking; what the socket does
// not take is left to the writer goroutine. So neither the reader nor Submit ever waits for a full
// socket, and a target that stops reading cannot wedge both directions.

// kickLocked starts writing what is queued, unless another goroutine is writing. It releases and
// takes mu again meanwhile.
func (s *Session) kickLocked() {
	for !s.writing && !s.corked && s.err == nil && !s.out.empty() {
		s.swapLocked()
		s.mu.Unlock()
		done, err := s.sw.try(s.wr)
		if err != nil {
			s.fail(err)
		}
		s.mu.Lock()
		if !done && s.err == nil {
			s.wake <- struct{}{} // the writer takes over wr; writing stays set, so the channel has room
			return
		}
		s.writtenLocked()
	}
}

func (s *Session) swapLocked() {
	s.writing = true
	s.out.flushArena()
	s.out, s.wr = s.wr, s.out
	s.batchNumber++
	s.out.reset(s.batchNumber)
}

// writtenLocked ends a write of wr. Commands that were answered before their data had left are
// called back by the writer, because the caller here may be inside Submit.
func (s *Session) writtenLocked() {
	s.written = s.wr.number
	s.wr.reset(0)
	s.writing = false
	s.idle.Broadcast()
	if len(s.deferred) > 0 {
		select {
		case s.ripe <- struct{}{}:
		default:
		}
	}
}

func (s *Session) writeLoop() {
	for {
		select {
		case <-s.stop:
			return
		case <-s.ripe:
			s.answerDeferred()
			continue
		case <-s.wake:
		}
		if err := s.sw.block(s.wr); err != nil {
			s.fail(err)
		}
		s.mu.Lock()
		s.writtenLocked()
		s.kickLocked()
		s.mu.Unlock()
	}
}

// answerDeferred calls back the commands whose data has been written by now.
func (s *Session) answerDeferred() {
	var ready []*Command
	s.mu.Lock()
	rest := s.deferred[:0]
	for _, c := range s.deferred {
		if c.batch <= s.written {
			ready = append(ready, c)
		} else {
			rest = append(rest, c)
		}
	}
	clear(s.deferred[len(rest):])
	s.deferred = rest
	s.mu.Unlock()
	for _, c := range ready {
		c.Done(c)
	}
}

// sendCommandLocked appends a SCSI Command PDU and its unsolicited data (RFC 7143 §11.3, §4.2.5.2).
func (s *Session) sendCommandLocked(c *Command) {
	h := s.header(pdu.SCSICmd, false)
	attr := c.Attr
	if attr == 0 {
		attr = 1 // SIMPLE
	}
	flags := attr & 7
	edtl := len(c.In)
	imm, unsolicited := 0, 0
	if len(c.Out) > 0 {
		edtl = len(c.Out)
		flags |= pdu.WriteBit
		first := min(len(c.Out), int(s.p.FirstBurst))
		if s.p.ImmediateData {
			imm = min(first, int(s.p.MaxSend))
		}
		if !s.p.InitialR2T {
			unsolicited = first - imm
		}
	} else if edtl > 0 {
		flags |= pdu.ReadBit
	}
	if unsolicited == 0 {
		flags |= pdu.Final
	}
	h.SetFlags(flags)
	h.SetDataLen(imm)
	h.SetLUN(encodeLUN(c.LUN))
	h.SetITT(c.itt)
	h.PutU32(pdu.OffEDTL, uint32(edtl))
	h.PutU32(pdu.OffCmdSN, c.cmdSN)
	h.PutU32(pdu.OffExpStatSN, s.expStatSN.Load())
	copy(h[pdu.OffCDB:], c.CDB[:])
	s.sealHeader(h)
	if s.out.payload(c.Out[:imm], s.p.DataDigest) {
		c.batch = s.out.number
	}
	c.sent = imm
	if unsolicited > 0 {
		s.sendDataLocked(c, pdu.Reserved, imm, unsolicited)
	}
}

// sendDataLocked appends one sequence of Data-Out PDUs (RFC 7143 §11.7).
func (s *Session) sendDataLocked(c *Command, ttt uint32, off, n int) {
	for sn := uint32(0); n > 0; sn++ {
		k := min(n, int(s.p.MaxSend))
		h := s.header(pdu.DataOut, false)
		if k == n {
			h.SetFlags(pdu.Final)
		}
		h.SetDataLen(k)
		h.SetLUN(encodeLUN(c.LUN))
		h.SetITT(c.itt)
		h.SetTTT(ttt)
		h.PutU32(pdu.OffExpStatSN, s.expStatSN.Load())
		h.PutU32(pdu.OffDataSN, sn)
		h.PutU32(pdu.OffBufferOff, uint32(off))
		s.sealHeader(h)
		if s.out.payload(c.Out[off:off+k], s.p.DataDigest) {
			c.batch = s.out.number
		}
		off, n = off+k, n-k
		c.sent = max(c.sent, off)
	}
}

// header begins a PDU in the output arena, with room for the header digest behind it.
func (s *Session) header(op pdu.Opcode, immediate bool) pdu.BHS {
	n := pdu.HeaderLen
	if s.p.HeaderDigest {
		n += 4
	}
	h := pdu.BHS(s.out.space(n))
	h.SetOp(op, immediate)
	return h
}

// sealHeader writes the header digest once the header is complete.
func (s *Session) sealHeader(h pdu.BHS) {
	if s.p.HeaderDigest {
		pdu.PutDigest(h[pdu.HeaderLen:], pdu.Digest(h[:pdu.HeaderLen]))
	}
}
