package iscsi

import (
	"fmt"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// dispatch reads and executes one PDU of the full-feature phase.
func (c *conn) dispatch() error {
	head := pdu.HeaderLen
	if c.params.HeaderDigest {
		head += pdu.DigestLen
	}
	if err := c.need(head); err != nil {
		return err
	}
	h := pdu.BHS(c.in[c.r : c.r+pdu.HeaderLen])
	if n := h.AHSLen(); n > 0 {
		if err := c.need(head + n); err != nil {
			return err
		}
		head += n
	}
	raw := c.in[c.r : c.r+head]
	c.r += head
	if c.params.HeaderDigest {
		raw = raw[:head-pdu.DigestLen]
		if pdu.Digest(raw) != pdu.GetDigest(c.in[c.r-pdu.DigestLen:]) {
			// Nothing in this PDU can be trusted, its length neither: the stream is lost (RFC 7143
			// §7.8).
			c.srv.stats.DigestErrors.Add(1)
			return protocolError{"header digest"}
		}
	}
	// The header is copied because reading the data may move the input buffer; what AHS there is is
	// parsed at once.
	copy(c.bhs[:], raw)
	h = c.bhs[:]
	if n := h.DataLen(); n > int(c.params.MaxRecv) {
		return protocolError{"the data segment is longer than declared"}
	}
	op := h.Op()
	if c.discovery && op != pdu.TextReq && op != pdu.LogoutReq && op != pdu.NopOut {
		return protocolError{fmt.Sprintf("opcode %#x in a discovery session", byte(op))}
	}
	switch op {
	case pdu.SCSICmd:
		return c.scsiCommand(h, raw[pdu.HeaderLen:])
	case pdu.DataOut:
		return c.dataOut(h)
	case pdu.NopOut:
		return c.nopOut(h)
	case pdu.TMFReq:
		return c.taskManagement(h)
	case pdu.TextReq:
		return c.textRequest(h)
	case pdu.LogoutReq:
		return c.logoutRequest(h)
	case pdu.SNACK:
		return c.refuse(h, pdu.RejectSNACK)
	}
	return protocolError{fmt.Sprintf("opcode %#x", byte(op))}
}

// skip reads a data segment of n bytes and discards it.
func (c *conn) skip(n int) error {
	if n == 0 {
		return nil
	}
	n += pdu.Pad(n)
	if c.params.DataDigest {
		n += pdu.DigestLen
	}
	for {
		have := min(n, c.w-c.r)
		c.r += have
		if n -= have; n == 0 {
			return nil
		}
		c.r, c.w = 0, 0
		if err := c.fill(nil); err != nil {
			return err
		}
	}
}

// segment returns the data segment of the PDU with header h, valid until the next read. ok is false
// when its digest was wrong, which has then been rejected.
func (c *conn) segment(h pdu.BHS) (data []byte, ok bool, err error) {
	n := h.DataLen()
	if n == 0 {
		return nil, true, nil
	}
	size := n + pdu.Pad(n)
	if c.params.DataDigest {
		size += pdu.DigestLen
	}
	if err := c.need(size); err != nil {
		return nil, false, err
	}
	data = c.in[c.r : c.r+n]
	c.r += n
	if ok, err = c.trailer(data); err == nil && !ok {
		err = c.refused(h, pdu.RejectDataDigest)
	}
	return data, ok, err
}

// refuse rejects a PDU and skips its data.
func (c *conn) refuse(h pdu.BHS, reason byte) error {
	if err := c.refused(h, reason); err != nil {
		return err
	}
	return c.skip(h.DataLen())
}

// refused rejects a PDU whose data has been consumed.
func (c *conn) refused(h pdu.BHS, reason byte) error {
	c.mu.Lock()
	err := c.flooded()
	c.reject(h, reason)
	c.unlockAndSend()
	return err
}

// inOrder: a non-immediate PDU other than a SCSI command takes its number. It reports whether to
// continue with it.
func (c *conn) inOrder(h pdu.BHS) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.flooded(); err != nil {
		return false, err
	}
	ok, err := c.nextCmdSN(h)
	c.openWindow()
	return ok, err
}
