package iscsi

import (
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

const tableSize = 256 // buckets of a session's command table, by the low bits of the initiator task tag

// immediates is how many commands beyond the window may be in flight: immediate ones, which the
// window does not govern.
const immediates = 32

type commandState byte

const (
	gathering commandState = iota + 1 // write data is still to come
	submitted                         // at the Device
)

// sequence says whose turn it is while a command gathers its data.
type sequence byte

const (
	seqNone        sequence = iota // nothing is owed: the target may ask for more
	seqUnsolicited                 // the initiator sends without being asked
	seqSolicited                   // it answers an R2T
)

// command is one SCSI command of a session. Commands are reused, their buffers come from pools.
type command struct {
	task    scsi.Task
	c       *conn
	next    *command // in a table bucket, the free list or a chunk's done list
	state   commandState
	aborted bool  // while gathering, by another nexus: answer TASK ABORTED in place of executing it
	need    int   // bytes of memory it must have before it continues
	asked   int   // of them it has; a read until its answer is sent
	unasked int   // bytes it has beside that, for data that comes while it waits
	beyond  int   // bytes the Device took beyond what it was given
	waits   bool  // for memory
	arrived int64 // clock when it came

	// Gathering.
	want    int // bytes to gather: the expected length, at most Limits.Transfer
	got     int // bytes received
	seqEnd  int // where the sequence that is coming must end (solicited) or may end at most (unsolicited)
	seq     sequence
	mem     *buffer // of want bytes, or, with waits, what fits the data that comes unasked, if any
	busy    bool    // the reader is filling mem without holding the mutex
	full    bool    // there was no memory for what comes unasked: end with TASK SET FULL once all of it has come
	askedAt int64   // clock when the sequence that is coming began
	ttt     uint32  // of the outstanding R2T
	r2tSN   uint32
	dataSN  uint32 // expected next
	damaged bool   // data was lost or wrong: end with CHECK CONDITION once the initiator has sent what it owes

	long   []byte // AHS bytes of the CDB
	given  int    // bytes of asked that are for what the Device allocates
	taken  int    // bytes it has allocated
	allocs [4]*buffer
	nalloc int
	more   []*buffer
}

func (c *conn) find(itt uint32) *command {
	for cmd := c.table[itt%tableSize]; cmd != nil; cmd = cmd.next {
		if cmd.task.Tag == itt {
			return cmd
		}
	}
	return nil
}

func (c *conn) insert(cmd *command) {
	b := &c.table[cmd.task.Tag%tableSize]
	cmd.next, *b = *b, cmd
}

func (c *conn) remove(cmd *command) {
	for p := &c.table[cmd.task.Tag%tableSize]; *p != nil; p = &(*p).next {
		if *p == cmd {
			*p = cmd.next
			cmd.next = nil
			return
		}
	}
}

// take returns an unused command. mu is held.
func (c *conn) take() *command {
	cmd := c.free
	if cmd == nil {
		cmd = &command{c: c}
		cmd.task.Alloc = cmd.alloc
		cmd.task.Done = cmd.done
		return cmd
	}
	c.free = cmd.next
	cmd.next = nil
	return cmd
}

// release ends a command's use of its memory, after its answer was sent or it was dropped. mu is
// held.
func (c *conn) release(cmd *command) {
	c.giveBack(cmd)
	c.srv.memory.other.Add(-int64(cmd.beyond))
	cmd.beyond = 0
	for i := range cmd.nalloc {
		putBuffer(cmd.allocs[i])
		cmd.allocs[i] = nil
	}
	for i, b := range cmd.more {
		putBuffer(b)
		cmd.more[i] = nil
	}
	cmd.nalloc, cmd.more = 0, cmd.more[:0]
	cmd.task.DataIn, cmd.task.Sense = nil, nil
	cmd.next, c.free = c.free, cmd
}

// alloc is Task.Alloc: the buffer lives until the answer has been sent.
func (cmd *command) alloc(n int) []byte {
	b := getBuffer(n)
	cmd.taken += len(b.b)
	if beyond := cmd.taken - cmd.beyond - cmd.given; beyond > 0 {
		cmd.beyond += beyond
		cmd.c.srv.memory.other.Add(int64(beyond))
	}
	if cmd.nalloc < len(cmd.allocs) {
		cmd.allocs[cmd.nalloc] = b
		cmd.nalloc++
	} else {
		cmd.more = append(cmd.more, b)
	}
	return b.b[:n:n]
}

// done is Task.Done, called by the Device from any goroutine.
func (cmd *command) done(t *scsi.Task) {
	c, later := cmd.c, t.Ends // t is another command's once it is complete
	c.mu.Lock()
	c.complete(cmd)
	if later == nil || c.queued >= batchBytes {
		c.unlockAndSend()
		return
	}
	c.mu.Unlock()
	later.Leave(c)
}

// scsiCommand takes a SCSI Command whose header and AHS are at c.in[c.r:]; its data segment has not
// been read.
func (c *conn) scsiCommand(h pdu.BHS, ahs []byte) error {
	flags, edtl, n := h.Flags(), int(h.U32(pdu.OffEDTL)), h.DataLen()
	write := flags&pdu.WriteBit != 0
	if err := c.checkCommand(h); err != nil {
		return err
	}
	c.mu.Lock()
	if v, err := c.admit(h); v != accept || err != nil {
		c.openWindow()
		switch {
		case err != nil:
		case v == rejectTooMany:
			c.reject(h, pdu.RejectTooManyImm)
		case v == rejectTag:
			c.reject(h, pdu.RejectTaskInProgress)
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
		return c.skip(n)
	}
	cmd := c.take()
	t := &cmd.task
	t.Tag = h.ITT()
	t.LUN = h.LUN()
	c.insert(cmd)
	c.inFlight++
	c.openWindow()
	cmd.state, cmd.aborted = gathering, false
	c.mu.Unlock()
	c.srv.stats.Commands.Add(1)

	t.Nexus = c.nexus
	t.Attr = scsi.TaskAttr(flags & 7)
	t.CDB = [16]byte(h[pdu.OffCDB:])
	t.Read, t.Write = flags&pdu.ReadBit != 0, write
	t.Expected, t.DataOut, t.LongCDB = edtl, nil, nil
	t.Status, t.Sense, t.DataIn, t.Transfer, t.Aborted = 0, nil, nil, 0, false
	if len(ahs) > 0 && !cmd.parseAHS(ahs) {
		return protocolError{"malformed additional header segment"}
	}
	limit := c.srv.cfg.Limits
	cmd.want, cmd.got, cmd.need, cmd.given, cmd.taken = 0, 0, 0, 0, 0
	cmd.seq, cmd.r2tSN, cmd.dataSN, cmd.damaged, cmd.full = seqNone, 0, 0, false, false
	cmd.arrived, cmd.askedAt = c.arrived, c.lastLoop
	if t.Read {
		cmd.given = classSize(min(edtl, limit.Transfer))
		cmd.need = cmd.given
	}
	if !write || edtl == 0 {
		if err := c.skip(n); err != nil {
			return err
		}
		c.mu.Lock()
		if cmd.need > 0 && !c.reserve(cmd, false) {
			c.wait(cmd)
			c.mu.Unlock()
			return nil
		}
		c.submit(cmd)
		return nil
	}
	cmd.want = min(edtl, limit.Transfer)
	cmd.need += classSize(cmd.want)
	unasked := n
	if flags&pdu.Final == 0 {
		cmd.seq, cmd.seqEnd = seqUnsolicited, min(int(c.params.FirstBurst), cmd.want)
		unasked = cmd.seqEnd
	}
	c.mu.Lock()
	c.grant(cmd, unasked)
	c.mu.Unlock()
	if cmd.full {
		if err := c.skip(n); err != nil {
			return err
		}
	} else if n > 0 {
		if err := c.receive(cmd, h, n); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.advance(cmd)
	return nil
}

// checkCommand refuses what no initiator may send, given what was negotiated.
func (c *conn) checkCommand(h pdu.BHS) error {
	flags, edtl, n := h.Flags(), int(h.U32(pdu.OffEDTL)), h.DataLen()
	write, final := flags&pdu.WriteBit != 0, flags&pdu.Final != 0
	switch {
	case h.ITT() == pdu.Reserved:
		return protocolError{"SCSI command with the reserved tag"}
	case !write && !final:
		return protocolError{"the command has no write data, but its final bit is not set"}
	case n > 0 && (!write || n > edtl):
		return protocolError{"the immediate data is longer than the command's data"}
	case n > 0 && !c.params.ImmediateData:
		return protocolError{"immediate data was not negotiated"}
	case n > int(c.params.FirstBurst):
		return protocolError{"immediate data exceeds FirstBurstLength"}
	case !final && c.params.InitialR2T:
		return protocolError{"unsolicited data was not negotiated"}
	}
	return nil
}

// verdict is what becomes of a command PDU.
type verdict int

const (
	accept verdict = iota
	ignore
	rejectTooMany
	rejectTag
)

// admit checks a command's number and tag and takes its place in the session (RFC 7143 §4.2.2.1).
// mu is held.
func (c *conn) admit(h pdu.BHS) (verdict, error) {
	if c.killed {
		return ignore, nil
	}
	if err := c.flooded(); err != nil {
		return ignore, err
	}
	if ok, err := c.nextCmdSN(h); !ok || err != nil {
		return ignore, err
	}
	if h.Immediate() && c.inFlight >= c.srv.cfg.Limits.Window+immediates {
		return rejectTooMany, nil
	}
	if c.find(h.ITT()) != nil {
		return rejectTag, nil
	}
	return accept, nil
}

// nextCmdSN takes the CmdSN of a PDU: false means the PDU is to be ignored, as RFC 7143 §4.2.2.1
// wants it for numbers outside the window and for duplicates. A number inside the window but ahead
// of the expected one cannot come about on a session's only connection, where commands are sent in
// order; it would wait for its predecessors for ever. Immediate PDUs carry the next number without
// taking it. mu is held.
func (c *conn) nextCmdSN(h pdu.BHS) (bool, error) {
	if h.Immediate() {
		return true, nil
	}
	sn := h.U32(pdu.OffCmdSN)
	if int32(sn-c.expCmdSN) < 0 || int32(sn-c.maxCmdSN) > 0 {
		return false, nil
	}
	if sn != c.expCmdSN {
		return false, protocolError{"a command number was skipped"}
	}
	c.expCmdSN++
	return true, nil
}

// openWindow lets MaxCmdSN follow. It never goes back, and there are never more commands in flight
// than Window, but for immediate ones. mu is held.
func (c *conn) openWindow() {
	room := max(c.srv.cfg.Limits.Window-c.inFlight, 0)
	if limit := c.expCmdSN + uint32(room) - 1; int32(limit-c.maxCmdSN) > 0 {
		c.maxCmdSN = limit
	}
}

// parseAHS takes an extended CDB; a bidirectional read length is ignored, as no such command is
// supported.
func (cmd *command) parseAHS(ahs []byte) bool {
	for len(ahs) >= 4 {
		n := int(ahs[0])<<8 | int(ahs[1]) // AHSLength: bytes after the type byte, without padding
		size := 3 + n
		size += pdu.Pad(size)
		if n < 1 || size > len(ahs) {
			return false
		}
		if ahs[2]&0x3f == pdu.AHSExtendedCDB {
			if n < 2 {
				return false
			}
			cmd.long = append(cmd.long[:0], ahs[4:3+n]...)
			cmd.task.LongCDB = cmd.long
		}
		ahs = ahs[size:]
	}
	return len(ahs) == 0
}

// startsAt is for how many commands of a batch at most the other node waits until it hears of the
// first: it works on those while this node takes in the next.
const startsAt = 8

// submit gives a command to the Device, in order of arrival. mu is held and released.
func (c *conn) submit(cmd *command) {
	if c.killed {
		c.complete(cmd)
		c.mu.Unlock()
		return
	}
	if cmd.aborted {
		cmd.task.Status = scsi.StatusTaskAborted
		c.complete(cmd)
		c.mu.Unlock()
		return
	}
	cmd.state = submitted
	c.submitted++
	c.mu.Unlock()
	cmd.task.Arrived, cmd.task.Starts = c.arrived, &c.starts
	if cmd.task.Write {
		c.wrote.Store(c.arrived)
	}
	if c.srv.device.Submit(&cmd.task) {
		c.mu.Lock()
		c.complete(cmd)
		large := c.queued >= batchBytes
		c.mu.Unlock()
		if large {
			c.flushBatch()
			c.beginBatch()
		}
	}
	c.starts.SendAt(startsAt)
}

// complete answers a command that is over and lets its resources go. mu is held.
func (c *conn) complete(cmd *command) {
	c.remove(cmd)
	c.inFlight--
	if cmd.state == submitted {
		c.submitted--
	}
	c.dropData(cmd)
	if !cmd.task.Read {
		c.giveBack(cmd)
	}
	c.openWindow()
	if c.killed || c.ending || cmd.task.Aborted {
		c.release(cmd)
	} else {
		c.respond(cmd)
	}
	if c.killed || c.ending {
		c.cond.Broadcast()
	}
}
