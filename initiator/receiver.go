package initiator

import (
	"fmt"
	"io"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// Sizes of the input path. A data segment of which at least directAbove bytes are outstanding is
// read with little room behind it, so that the next segment's bytes are not copied through the
// session's buffer.
const (
	inBufSize   = 256 << 10
	directAbove = 32 << 10
	directSpare = 4 << 10
	maxResponse = 8 << 10 // largest data segment taken with anything but Data-In, in bytes
)

// receiver takes PDUs off the socket. Only the reader goroutine touches it.
type receiver struct {
	s      *Session
	buf    []byte
	r, w   int        // unread bytes are buf[r:w]
	done   []*Command // answered in this batch
	ready  []*Command // of those, the ones to call back
	seen   bool       // sequence numbers have been taken since the last settle
	expCmd uint32
	maxCmd uint32
}

func (x *receiver) init(s *Session) {
	x.s, x.buf, x.maxCmd, x.expCmd = s, make([]byte, inBufSize), s.maxCmdSN, s.cmdSN
}

func (s *Session) readLoop() {
	x := &s.rx
	for {
		more, err := x.next()
		if err == nil && !more {
			x.settle()
			err = x.fill()
		}
		if err != nil {
			x.settle()
			s.fail(err)
			return
		}
	}
}

// fill waits for bytes behind the unread ones.
func (x *receiver) fill() error {
	switch {
	case x.r == x.w:
		x.r, x.w = 0, 0
	case x.r > 0:
		x.w = copy(x.buf, x.buf[x.r:x.w])
		x.r = 0
	}
	n, err := x.s.in.read(nil, x.buf[x.w:])
	if err != nil {
		return x.cut(err)
	}
	x.w += n
	x.s.lastHeard.Store(x.s.now())
	return nil
}

func (x *receiver) cut(err error) error {
	if err == io.EOF {
		return fmt.Errorf("connection closed by the target")
	}
	return err
}

// next takes one PDU. It returns false when the buffer does not hold a whole one (of Data-In: its
// header).
func (x *receiver) next() (bool, error) {
	have := x.buf[x.r:x.w]
	if len(have) < pdu.HeaderLen {
		return false, nil
	}
	h := pdu.BHS(have[:pdu.HeaderLen:pdu.HeaderLen])
	n, hl := h.DataLen(), pdu.HeaderLen+h.AHSLen()
	if n > x.s.cfg.MaxRecvData {
		return false, fmt.Errorf("%w: data segment of %d bytes, limit %d", ErrProtocol, n, x.s.cfg.MaxRecvData)
	}
	if x.s.p.HeaderDigest {
		hl += pdu.DigestLen
	}
	if len(have) < hl {
		return false, nil
	}
	if x.s.p.HeaderDigest {
		if at := hl - pdu.DigestLen; pdu.GetDigest(have[at:]) != pdu.Digest(have[:at]) {
			return false, fmt.Errorf("%w: header of opcode %#02x", ErrDigest, byte(h.Op()))
		}
	}
	if h.Op() == pdu.DataIn {
		return true, x.dataIn(h, hl)
	}
	if n > maxResponse {
		return false, fmt.Errorf("%w: data segment of %d bytes with opcode %#02x", ErrProtocol, n, byte(h.Op()))
	}
	total := hl + n + pdu.Pad(n)
	if x.s.p.DataDigest && n > 0 {
		total += pdu.DigestLen
	}
	if len(have) < total {
		return false, nil
	}
	data := have[hl : hl+n]
	if x.s.p.DataDigest && n > 0 {
		at := total - pdu.DigestLen
		if pdu.GetDigest(have[at:]) != pdu.Digest(have[hl:at]) {
			return false, fmt.Errorf("%w: data of opcode %#02x", ErrDigest, byte(h.Op()))
		}
	}
	x.r += total
	return true, x.dispatch(h, data)
}

func (x *receiver) dispatch(h pdu.BHS, data []byte) error {
	x.window(h)
	switch h.Op() {
	case pdu.SCSIResp:
		return x.response(h, data)
	case pdu.R2T:
		return x.readyToTransfer(h)
	case pdu.NopIn:
		return x.nopIn(h)
	case pdu.TMFResp, pdu.LogoutResp:
		return x.control(h)
	case pdu.AsyncMsg:
		return x.async(h)
	case pdu.Reject:
		// With ErrorRecoveryLevel 0 nothing is left to salvage; what was in flight is retried on a
		// new session.
		return fmt.Errorf("%w: PDU rejected, reason %#02x", ErrProtocol, h[pdu.OffResponse])
	}
	return fmt.Errorf("%w: unexpected opcode %#02x", ErrProtocol, byte(h.Op()))
}

// window notes ExpCmdSN and MaxCmdSN, ignoring what is older than known (RFC 7143 §4.2.2.1).
func (x *receiver) window(h pdu.BHS) {
	exp, last := h.U32(pdu.OffExpCmdSN), h.U32(pdu.OffMaxCmdSN)
	if int32(last-(exp-1)) < 0 {
		return
	}
	if int32(exp-x.expCmd) > 0 {
		x.expCmd, x.seen = exp, true
	}
	if int32(last-x.maxCmd) > 0 {
		x.maxCmd, x.seen = last, true
	}
}

// status checks and advances StatSN (RFC 7143 §4.2.2.2): one connection, so none may be missing.
func (x *receiver) status(h pdu.BHS) error {
	got, want := h.U32(pdu.OffStatSN), x.s.expStatSN.Load()
	if got != want {
		return fmt.Errorf("%w: StatSN is %d, expected %d", ErrProtocol, got, want)
	}
	x.s.expStatSN.Store(want + 1)
	return nil
}

// task finds the command a PDU answers.
func (x *receiver) task(h pdu.BHS, kind byte) (*Command, error) {
	c := x.s.lookup(h.ITT())
	if c == nil || c.kind != kind || c.ended {
		return nil, fmt.Errorf("%w: opcode %#02x for task %#08x, which is not outstanding", ErrProtocol, byte(h.Op()), h.ITT())
	}
	return c, nil
}

func (x *receiver) end(c *Command) {
	c.ended = true
	x.done = append(x.done, c)
}

func (x *receiver) response(h pdu.BHS, data []byte) error {
	c, err := x.task(h, kindSCSI)
	if err == nil {
		err = x.status(h)
	}
	if err != nil {
		return err
	}
	if h[pdu.OffResponse] != pdu.SCSICompleted {
		c.Err = fmt.Errorf("%w: target failure, iSCSI response %#02x", ErrAborted, h[pdu.OffResponse])
	}
	c.Status = h[pdu.OffSCSIStatus]
	setResidual(c, h)
	if len(data) >= 2 {
		n := int(data[0])<<8 | int(data[1])
		c.Sense = append(c.senseBuf[:0], data[2:min(len(data), 2+n, 2+len(c.senseBuf))]...)
	}
	x.end(c)
	return nil
}

func setResidual(c *Command, h pdu.BHS) {
	switch n := int(int32(h.U32(pdu.OffResidual) & 0x7fffffff)); {
	case h.Flags()&pdu.UnderflowU != 0:
		c.Residual = n
	case h.Flags()&pdu.OverflowO != 0:
		c.Residual = -n
	}
}

// dataIn moves a data segment into the command's buffer: what is buffered is copied, the rest is
// read there.
func (x *receiver) dataIn(h pdu.BHS, hl int) error {
	c, err := x.task(h, kindSCSI)
	if err != nil {
		return err
	}
	n, off := h.DataLen(), h.U32(pdu.OffBufferOff)
	switch {
	case uint64(off) != uint64(c.Got):
		return fmt.Errorf("%w: Data-In is at offset %d, expected %d", ErrProtocol, off, c.Got)
	case n > len(c.In)-c.Got:
		return fmt.Errorf("%w: Data-In of %d bytes at %d into a buffer of %d", ErrProtocol, n, off, len(c.In))
	case h.U32(pdu.OffDataSN) != c.dataSN:
		return fmt.Errorf("%w: DataSN is %d, expected %d", ErrProtocol, h.U32(pdu.OffDataSN), c.dataSN)
	}
	c.dataSN++
	// The header is looked at to the end before more is read: that may overwrite it.
	final := h.Flags()&pdu.StatusBit != 0
	if final {
		x.window(h)
		if err := x.status(h); err != nil {
			return err
		}
		c.Status = h[pdu.OffSCSIStatus]
		setResidual(c, h)
	}
	x.r += hl
	dest := c.In[c.Got : c.Got+n]
	k := copy(dest, x.buf[x.r:x.w])
	x.r += k
	if k < n {
		if err := x.direct(dest[k:]); err != nil {
			return err
		}
	}
	if err := x.trailer(dest); err != nil {
		return err
	}
	c.Got += n
	if final {
		x.end(c)
	}
	return nil
}

// direct reads into a caller's buffer until it is full. The session's buffer is empty at this point
// and takes what comes behind.
func (x *receiver) direct(dest []byte) error {
	x.settle()
	x.r, x.w = 0, 0
	for len(dest) > 0 {
		spare := x.buf
		if len(dest) >= directAbove {
			spare = x.buf[:directSpare]
		}
		n, err := x.s.in.read(dest, spare)
		if err != nil {
			return x.cut(err)
		}
		x.s.lastHeard.Store(x.s.now())
		k := min(n, len(dest))
		dest, x.w = dest[k:], n-k
	}
	return nil
}

// trailer takes padding and data digest.
func (x *receiver) trailer(data []byte) error {
	n := pdu.Pad(len(data))
	if x.s.p.DataDigest && len(data) > 0 {
		n += pdu.DigestLen
	}
	for x.w-x.r < n {
		x.settle()
		if err := x.fill(); err != nil {
			return err
		}
	}
	t := x.buf[x.r : x.r+n]
	x.r += n
	if x.s.p.DataDigest && len(data) > 0 {
		pad := n - pdu.DigestLen
		if pdu.GetDigest(t[pad:]) != pdu.UpdateDigest(pdu.Digest(data), t[:pad]) {
			return fmt.Errorf("%w: data of Data-In", ErrDigest)
		}
	}
	return nil
}

// readyToTransfer queues the data an R2T asks for (RFC 7143 §11.8). One is outstanding per command
// and they come in order.
func (x *receiver) readyToTransfer(h pdu.BHS) error {
	c, err := x.task(h, kindSCSI)
	if err != nil {
		return err
	}
	off, n := h.U32(pdu.OffBufferOff), h.U32(pdu.OffDesired)
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h.U32(pdu.OffDataSN) != c.r2tSN:
		return fmt.Errorf("%w: R2TSN is %d, expected %d", ErrProtocol, h.U32(pdu.OffDataSN), c.r2tSN)
	case h.TTT() == pdu.Reserved:
		return fmt.Errorf("%w: R2T without a target transfer tag", ErrProtocol)
	case n == 0 || n > s.p.MaxBurst:
		return fmt.Errorf("%w: R2T for %d bytes, the limit is %d", ErrProtocol, n, s.p.MaxBurst)
	case uint64(off) != uint64(c.sent) || uint64(off)+uint64(n) > uint64(len(c.Out)):
		return fmt.Errorf("%w: R2T for [%d,+%d) of %d bytes, of which %d are sent", ErrProtocol, off, n, len(c.Out), c.sent)
	}
	c.r2tSN++
	s.sendDataLocked(c, h.TTT(), int(off), int(n))
	x.seen = true
	return nil
}

// settle ends a batch: answered commands are called back, then everything they and the wider window
// let start is sent with one write.
func (x *receiver) settle() {
	if len(x.done) == 0 && !x.seen {
		return
	}
	s := x.s
	s.mu.Lock()
	x.ready = x.ready[:0]
	for _, c := range x.done {
		s.releaseLocked(c)
		if c.batch > s.written {
			s.deferred = append(s.deferred, c) // its data may still be read by the socket
		} else {
			x.ready = append(x.ready, c)
		}
	}
	clear(x.done)
	x.done, x.seen = x.done[:0], false
	s.maxCmdSN = x.maxCmd
	s.corked = true
	s.startPendingLocked()
	s.mu.Unlock()
	for i, c := range x.ready {
		x.ready[i] = nil
		c.Done(c)
	}
	s.mu.Lock()
	s.corked = false
	s.kickLocked()
	s.mu.Unlock()
}
