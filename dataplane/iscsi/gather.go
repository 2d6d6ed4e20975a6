package iscsi

import (
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// Gathering of write data. All of a command's data ends up in one buffer; large segments are read
// from the socket straight into it. The reader drives it; what other goroutines may touch (memory,
// the wish to abort) is under mu.

// grant gives a write the memory for its data; or, when there is none at once, what is just big
// enough for the data that comes unasked, and a place in the line for the rest, which is asked for
// when memory is there; or, without that, nothing. mu is held.
func (c *conn) grant(cmd *command, unasked int) {
	switch {
	case c.reserve(cmd, false):
		cmd.mem = getBuffer(cmd.want)
	case unasked == 0:
		c.wait(cmd)
	case !c.reserveUnasked(cmd, classSize(unasked)):
		cmd.full = true
		now := c.srv.cfg.Clock()
		c.srv.stats.TaskSetFull.Add(1)
		c.srv.refusedAt.Store(now)
	default:
		cmd.mem = getBuffer(unasked)
		if unasked < cmd.want || cmd.task.Read {
			c.wait(cmd)
		}
	}
}

// granted asks for the data of a write that has waited for memory and has it now. mu is held.
func (c *conn) granted(cmd *command) {
	small := cmd.mem
	cmd.mem = getBuffer(cmd.want)
	if small != nil {
		copy(cmd.mem.b, small.b[:cmd.got])
		putBuffer(small)
	}
	c.unasked -= cmd.unasked
	n := cmd.unasked
	cmd.unasked = 0
	c.srv.memory.give(0, n)
	switch {
	case cmd.seq != seqNone || cmd.damaged:
	case cmd.got < cmd.want:
		c.requestData(cmd)
	default: // it had to wait for what it reads
		cmd.task.DataOut = cmd.mem.b[:cmd.want]
		c.handOver(cmd)
	}
}

// dropData returns a command's gather buffer and its place in the line. mu is held.
func (c *conn) dropData(cmd *command) {
	if cmd.waits {
		c.unwait(cmd)
	}
	if cmd.mem != nil {
		putBuffer(cmd.mem)
		cmd.mem, cmd.task.DataOut = nil, nil
	}
}

// dataOut takes a Data-Out PDU whose header is h (RFC 7143 §11.7).
func (c *conn) dataOut(h pdu.BHS) error {
	n, final := h.DataLen(), h.Flags()&pdu.Final != 0
	c.mu.Lock()
	cmd := c.find(h.ITT())
	if cmd == nil || cmd.state != gathering {
		c.mu.Unlock()
		// A command that was ignored, rejected or aborted: its initiator may still be sending.
		return c.skip(n)
	}
	err := cmd.checkData(h, n, final)
	damaged := cmd.damaged || cmd.full
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if damaged {
		if err := c.skip(n); err != nil {
			return err
		}
	} else if n > 0 {
		if err := c.receive(cmd, h, n); err != nil {
			return err
		}
	}
	c.mu.Lock()
	if final {
		cmd.seq = seqNone
	}
	c.advance(cmd)
	return nil
}

// checkData compares a Data-Out header with what the command waits for. A wrong DataSN means that a
// PDU was lost to a digest error, and like that one costs the command and not the connection (RFC
// 7143 §7.9). mu is held.
func (cmd *command) checkData(h pdu.BHS, n int, final bool) error {
	off, ttt := int(h.U32(pdu.OffBufferOff)), h.TTT()
	switch {
	case cmd.seq == seqNone:
		return protocolError{"unexpected Data-Out"}
	case cmd.seq == seqUnsolicited && ttt != pdu.Reserved, cmd.seq == seqSolicited && ttt != cmd.ttt:
		return protocolError{"Data-Out with a wrong target transfer tag"}
	case cmd.damaged, cmd.full:
		return nil
	case h.U32(pdu.OffDataSN) != cmd.dataSN:
		cmd.damaged = true
		return nil
	case off != cmd.got:
		return protocolError{"Data-Out out of order (buffer offset)"}
	case cmd.got+n > cmd.seqEnd:
		return protocolError{"Data-Out beyond its sequence"}
	case cmd.seq == seqSolicited && final != (cmd.got+n == cmd.seqEnd):
		return protocolError{"the final bit of a Data-Out PDU is not at the end of its sequence"}
	}
	cmd.dataSN++
	return nil
}

// receive reads a data segment of n bytes to where the command's data has come.
func (c *conn) receive(cmd *command, h pdu.BHS, n int) error {
	c.mu.Lock()
	cmd.busy = true
	dst := cmd.mem.b[cmd.got : cmd.got+n]
	c.mu.Unlock()
	have := copy(dst, c.in[c.r:c.w])
	c.r += have
	for have < n {
		c.r, c.w = 0, 0
		k, err := c.fillDirect(dst[have:])
		if err != nil {
			return err
		}
		have += k
	}
	good, err := c.trailer(dst)
	c.mu.Lock()
	cmd.busy = false
	cmd.got += n
	if err == nil && !good {
		cmd.damaged = true
		c.reject(h, pdu.RejectDataDigest)
	}
	c.mu.Unlock()
	c.srv.stats.WriteBytes.Add(int64(n))
	return err
}

// trailer consumes padding and digest after data and tells whether the digest is right.
func (c *conn) trailer(data []byte) (good bool, err error) {
	n := pdu.Pad(len(data))
	if c.params.DataDigest && len(data) > 0 {
		n += pdu.DigestLen
	}
	if n == 0 {
		return true, nil
	}
	if err := c.need(n); err != nil {
		return false, err
	}
	t := c.in[c.r : c.r+n]
	c.r += n
	if !c.params.DataDigest {
		return true, nil
	}
	pad := len(t) - pdu.DigestLen
	if pdu.UpdateDigest(pdu.Digest(data), t[:pad]) != pdu.GetDigest(t[pad:]) {
		c.srv.stats.DigestErrors.Add(1)
		return false, nil
	}
	return true, nil
}

// crcSense is ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR (RFC 7143 §11.4.7.2), fixed format.
var crcSense = []byte{0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x47, 0x05, 0, 0, 0, 0}

// advance does what a command needs once nothing of its present sequence is left to come: ask for
// more, execute it, or end it. mu is held and released.
func (c *conn) advance(cmd *command) {
	switch {
	case cmd.seq != seqNone:
		c.wantMemory() // the line may have passed it over while its buffer was being filled
		c.mu.Unlock()
	case cmd.full:
		cmd.task.Status = scsi.StatusTaskSetFull
		c.complete(cmd)
		c.mu.Unlock()
	case cmd.damaged:
		cmd.task.Status, cmd.task.Sense = scsi.StatusCheckCondition, crcSense
		c.complete(cmd)
		c.mu.Unlock()
	case cmd.got == cmd.want && !(cmd.waits && cmd.task.Read):
		if cmd.waits { // all came unasked: what it has is what it needs
			c.unwait(cmd)
		}
		cmd.task.DataOut = cmd.mem.b[:cmd.want]
		c.submit(cmd)
	case cmd.aborted:
		c.submit(cmd)
	case cmd.waits:
		c.wantMemory()
		c.mu.Unlock()
	default:
		c.requestData(cmd)
		c.mu.Unlock()
	}
}

// requestData sends an R2T for the next burst (RFC 7143 §11.8). mu is held.
func (c *conn) requestData(cmd *command) {
	n := min(cmd.want-cmd.got, int(c.params.MaxBurst))
	cmd.seq, cmd.seqEnd, cmd.dataSN = seqSolicited, cmd.got+n, 0
	cmd.ttt, cmd.askedAt = c.transferTag(), c.srv.cfg.Clock()
	h := c.begin(pdu.R2T)
	h.SetLUN(cmd.task.LUN)
	h.SetITT(cmd.task.Tag)
	h.SetTTT(cmd.ttt)
	h.PutU32(pdu.OffStatSN, c.statSN) // not advanced: an R2T is not a status
	h.PutU32(pdu.OffDataSN, cmd.r2tSN)
	h.PutU32(pdu.OffBufferOff, uint32(cmd.got))
	h.PutU32(pdu.OffDesired, uint32(n))
	cmd.r2tSN++
	c.end(h, nil, true)
}

// transferTag is a fresh target transfer tag. mu is held.
func (c *conn) transferTag() uint32 {
	if c.nextTTT++; c.nextTTT == pdu.Reserved {
		c.nextTTT = 1
	}
	return c.nextTTT
}

// dropped is a command that the Device has not seen and that no answer was given to.
type dropped struct {
	itt  uint32
	r2ts uint32 // R2Ts that were sent for it
}

// dropGathering ends commands that the Device has not seen, without an answer. They are those of
// this session, by its own wish or at its end; only the reader calls it.
func (c *conn) dropGathering(match func(*command) bool) (list []dropped) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.table {
		for cmd := c.table[i]; cmd != nil; {
			next := cmd.next
			if cmd.state == gathering && match(cmd) {
				list = append(list, dropped{cmd.task.Tag, cmd.r2tSN})
				cmd.task.Aborted = true
				c.complete(cmd)
			}
			cmd = next
		}
	}
	return list
}
