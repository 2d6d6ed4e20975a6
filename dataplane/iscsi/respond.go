package iscsi

import (
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// respond queues the answer of a completed command: its data and its status, in one PDU where the
// protocol permits that (a GOOD read, RFC 7143 §11.7.3). The command is released when the last of
// it has been sent. mu is held.
func (c *conn) respond(cmd *command) {
	t := &cmd.task
	data := t.DataIn
	if !t.Read {
		data = nil
	}
	if len(data) > t.Expected {
		data = data[:t.Expected]
	}
	bit, residual := residue(t)
	collapse := t.Status == scsi.StatusGood && len(t.Sense) == 0 && len(data) > 0
	sn := c.sendData(cmd, data, collapse, bit, residual)
	if !collapse {
		// Sense data has a length in front (RFC 7143 §11.4.7); 252 bytes are its most (SPC-4 §4.5).
		n := min(copy(c.sense[2:], t.Sense), 252)
		if n > 0 {
			c.sense[0], c.sense[1] = 0, byte(n)
			n += 2
		}
		h := c.begin(pdu.SCSIResp)
		h.SetFlags(pdu.Final | bit)
		h[pdu.OffSCSIStatus] = t.Status
		h.SetITT(t.Tag)
		c.status(h)
		h.PutU32(pdu.OffExpDataSNResp, sn+cmd.r2tSN)
		h.PutU32(pdu.OffResidual, residual)
		c.end(h, c.sense[:n], true)
	}
	c.charge(pdu.HeaderLen)
	cmd.next, c.tail.done = c.tail.done, cmd
}

// residue compares what the CDB moves to what the initiator expects (RFC 7143 §11.4.5).
func residue(t *scsi.Task) (flag byte, count uint32) {
	moved := t.Transfer
	if t.Read {
		moved = max(moved, len(t.DataIn))
	}
	switch {
	case moved > t.Expected:
		return pdu.OverflowO, uint32(min(moved-t.Expected, 1<<32-1))
	case moved < t.Expected:
		return pdu.UnderflowU, uint32(t.Expected - moved)
	}
	return 0, 0
}

// sendData queues Data-In PDUs: segments of at most what the initiator takes, sequences of at most
// MaxBurstLength. It returns how many there were.
func (c *conn) sendData(cmd *command, data []byte, collapse bool, bit byte, residual uint32) (sn uint32) {
	segment, burst := int(c.maxSend.Load()), int(c.params.MaxBurst)
	for off, left := 0, burst; off < len(data); sn++ {
		n := min(segment, left, len(data)-off)
		left -= n
		last := off+n == len(data)
		h := c.begin(pdu.DataIn)
		flags := byte(0)
		if last || left == 0 {
			flags, left = pdu.Final, burst
		}
		h.SetITT(cmd.task.Tag)
		h.SetTTT(pdu.Reserved)
		if last && collapse {
			flags |= pdu.StatusBit | bit
			h[pdu.OffSCSIStatus] = cmd.task.Status
			c.status(h)
			h.PutU32(pdu.OffResidual, residual)
		}
		h.SetFlags(flags)
		h.PutU32(pdu.OffDataSN, sn)
		h.PutU32(pdu.OffBufferOff, uint32(off))
		c.end(h, data[off:off+n], false)
		off += n
	}
	c.srv.stats.ReadBytes.Add(int64(len(data)))
	return sn
}

// reject queues a Reject with the offending header (RFC 7143 §11.17). mu is held.
func (c *conn) reject(h pdu.BHS, reason byte) {
	r := c.begin(pdu.Reject)
	r[pdu.OffResponse] = reason
	r.SetITT(pdu.Reserved)
	c.status(r)
	c.end(r, h, true)
	c.charge(2 * pdu.HeaderLen)
}
