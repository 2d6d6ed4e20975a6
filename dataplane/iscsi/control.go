package iscsi

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

const maxManaging = 32 // task management functions under way per session

// nopOut answers a ping or takes the answer to ours (RFC 7143 §11.18).
func (c *conn) nopOut(h pdu.BHS) error {
	data, ok, err := c.segment(h)
	if err != nil || !ok {
		return err
	}
	if in, err := c.inOrder(h); err != nil || !in {
		return err
	}
	if h.ITT() == pdu.Reserved {
		if !h.Immediate() {
			return protocolError{"NOP-Out without a task tag must be immediate"}
		}
		c.answered(h.TTT())
		return nil
	}
	// The echo is cut to what the initiator takes.
	n := min(len(data), int(c.maxSend.Load()))
	var echo *buffer
	if n > 0 {
		echo = getBuffer(n)
		copy(echo.b, data[:n])
	}
	c.mu.Lock()
	r := c.begin(pdu.NopIn)
	r.SetLUN(h.LUN())
	r.SetITT(h.ITT())
	r.SetTTT(pdu.Reserved)
	c.status(r)
	if echo != nil {
		c.end(r, echo.b[:n], false)
		c.tail.bufs = append(c.tail.bufs, echo)
	} else {
		c.end(r, nil, true)
	}
	c.charge(n + pdu.HeaderLen)
	c.unlockAndSend()
	return nil
}

// pingIfIdle sends a NOP-In when nothing has come for NopInterval, and kills the connection when
// nothing came after that for NopTimeout. It is called by the server's ticker.
func (c *conn) pingIfIdle(now int64) {
	c.sock.mu.Lock()
	parked := c.parked
	c.sock.mu.Unlock()
	sent := c.pinged.Load()
	switch {
	case !parked:
		// The reader is busy, maybe held up by the Device: silence is not the initiator's fault.
		c.lastRecv.Store(now)
		c.pinged.Store(0)
	case sent != 0:
		if now-sent > int64(c.srv.cfg.NopTimeout) {
			c.kill("the initiator did not answer a ping")
		}
	case now-c.lastRecv.Load() > int64(c.srv.cfg.NopInterval):
		c.pinged.Store(now)
		c.ask(nil)
	}
}

// taskManagement hands a function to the Device, after dealing with the commands that the Device
// has not seen. Commands before it on the connection have been given to the Device already, so
// CmdSN order holds (RFC 7143 §11.5), and a command that is not found has been answered: RefCmdSN
// is of no use with one connection.
func (c *conn) taskManagement(h pdu.BHS) error {
	if err := c.skip(h.DataLen()); err != nil {
		return err
	}
	if in, err := c.inOrder(h); err != nil || !in {
		return err
	}
	c.srv.stats.TaskManagement.Add(1)
	c.starts.Send() // before it waits
	c.mu.Lock()
	if c.managing >= maxManaging {
		c.reject(h, pdu.RejectTooManyImm)
		c.unlockAndSend()
		return nil
	}
	c.managing++
	c.mu.Unlock()
	c.settled()
	itt, lun, ref := h.ITT(), h.LUN(), h.U32(pdu.OffRefTag)
	function := scsi.TMFunction(h.Flags() &^ pdu.Final)
	var gone []dropped
	answer := func(r scsi.TMResponse) { c.answerTMF(itt, r, function, gone) }
	switch function {
	case scsi.TMFAbortTask:
		if len(c.dropGathering(func(cmd *command) bool { return cmd.task.Tag == ref && cmd.task.LUN == lun })) > 0 {
			answer(scsi.TMFComplete)
			return nil
		}
	case scsi.TMFAbortTaskSet, scsi.TMFClearTaskSet, scsi.TMFLUNReset:
		gone = c.dropGathering(func(cmd *command) bool { return cmd.task.LUN == lun })
	case scsi.TMFTargetWarmReset, scsi.TMFTargetColdReset:
		gone = c.dropGathering(func(*command) bool { return true })
	case scsi.TMFTaskReassign:
		answer(scsi.TMFNoReassign)
		return nil
	}
	r := scsi.TMF{Nexus: c.nexus, Function: function, LUN: lun, Tag: ref}
	c.srv.device.TaskManagement(r, answer)
	return nil
}

// answerTMF answers a function. Commands that it has ended get no answer, for the response says so:
// one that says anything else (the LUN was unmapped meanwhile, the cluster could not) has their
// initiator wait for them, so they are answered before it.
func (c *conn) answerTMF(itt uint32, r scsi.TMResponse, function scsi.TMFunction, gone []dropped) {
	c.mu.Lock()
	c.managing--
	c.cond.Broadcast()
	if c.killed || c.ending {
		c.mu.Unlock()
		return
	}
	if r != scsi.TMFComplete {
		for _, d := range gone {
			h := c.begin(pdu.SCSIResp)
			h.SetFlags(pdu.Final)
			h[pdu.OffSCSIStatus] = scsi.StatusTaskAborted
			h.SetITT(d.itt)
			c.status(h)
			h.PutU32(pdu.OffExpDataSNResp, d.r2ts)
			c.end(h, nil, true)
			c.charge(pdu.HeaderLen)
		}
	}
	h := c.begin(pdu.TMFResp)
	h[pdu.OffResponse] = byte(r)
	h.SetITT(itt)
	c.status(h)
	c.end(h, nil, true)
	c.charge(pdu.HeaderLen)
	c.unlockAndSend()
	if function == scsi.TMFTargetColdReset && r == scsi.TMFComplete {
		// RFC 7143 §11.5.1 has the target end all its connections. Those of other hosts are none of
		// this one's business.
		c.srv.DropHost(c.nexus.ID.Initiator, "target cold reset")
	}
}

// logoutRequest ends the session or refuses to (RFC 7143 §11.14).
func (c *conn) logoutRequest(h pdu.BHS) error {
	if err := c.skip(h.DataLen()); err != nil {
		return err
	}
	if in, err := c.inOrder(h); err != nil || !in {
		return err
	}
	reason := h.Flags() &^ pdu.Final
	switch {
	case reason == pdu.LogoutSession, reason == pdu.LogoutConnection && h.U16(pdu.OffCID) == c.cid:
		c.logout = h.ITT()
		c.mu.Lock()
		c.ending = true
		c.mu.Unlock()
		return errLoggedOut
	case reason == pdu.LogoutConnection:
		return c.logoutResponse(h.ITT(), pdu.LogoutNoCID)
	case reason == pdu.LogoutRecovery:
		return c.logoutResponse(h.ITT(), pdu.LogoutNoRecovery)
	}
	return c.refused(h, pdu.RejectInvalidField)
}

func (c *conn) logoutResponse(itt uint32, response byte) error {
	c.mu.Lock()
	h := c.begin(pdu.LogoutResp)
	h[pdu.OffResponse] = response
	h.SetITT(itt)
	c.status(h)
	c.end(h, nil, true)
	c.charge(pdu.HeaderLen)
	c.unlockAndSend()
	return nil
}

// answerLogout sends the Logout response once no command of the session is left, so that an
// initiator that has it can rely on that, and waits until it is out.
func (c *conn) answerLogout() {
	c.mu.Lock()
	killed := c.killed
	c.mu.Unlock()
	if killed {
		return
	}
	_ = c.logoutResponse(c.logout, pdu.LogoutDone)
	c.mu.Lock()
	for !c.killed && (c.sending || c.head != nil) {
		c.cond.Wait()
	}
	c.mu.Unlock()
}

// requestLogout asks the initiator to log out within wait (RFC 7143 §11.9.1, event 1). False during
// login.
func (c *conn) requestLogout(wait time.Duration) bool {
	c.srv.mu.Lock()
	in := c.loggedIn
	c.srv.mu.Unlock()
	if !in {
		return false
	}
	c.mu.Lock()
	if c.killed || c.ending {
		c.mu.Unlock()
		return true
	}
	h := c.begin(pdu.AsyncMsg)
	h.SetITT(pdu.Reserved)
	c.status(h)
	h[pdu.OffAsyncEvent] = pdu.AsyncLogout
	h.PutU16(pdu.OffAsyncParam3, uint16(min(max(wait/time.Second, 1), 0xffff)))
	c.end(h, nil, true)
	c.charge(pdu.HeaderLen)
	c.unlockAndSend()
	return true
}
