package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// Execute runs one command and waits for its end. A non-GOOD status is not an error here: see
// Result.Err. When ctx ends first the command is aborted, and Execute returns once the target has
// confirmed that (or the session ended), so out and in are free again. It must not be called from a
// callback.
func (s *Session) Execute(ctx context.Context, lun uint16, cdb, out, in []byte) (Result, error) {
	if len(cdb) == 0 || len(cdb) > 16 {
		return Result{}, fmt.Errorf("initiator: CDB of %d bytes", len(cdb))
	}
	done := make(chan struct{})
	c := &Command{LUN: lun, Out: out, In: in, Done: func(*Command) { close(done) }}
	copy(c.CDB[:], cdb)
	if err := s.Submit(c); err != nil {
		return Result{}, err
	}
	select {
	case <-done:
	case <-ctx.Done():
		s.abortMatching(func(o *Command) bool { return o == c }, fmt.Errorf("%w: %w", ErrAborted, context.Cause(ctx)))
		<-done
	}
	return Result{Status: c.Status, SenseRaw: c.Sense, Got: c.Got, Residual: c.Residual}, c.Err
}

// TaskManagement runs one of pdu.TMFAbortTaskSet, TMFClearTaskSet, TMFLogicalUnitReset,
// TMFTargetWarmReset, TMFTargetColdReset and returns the target's response (pdu.TMFComplete and so
// on, RFC 7143 §11.6.1). Commands the function ended without a status are reported with ErrAborted.
func (s *Session) TaskManagement(ctx context.Context, function byte, lun uint16) (byte, error) {
	done := make(chan struct{})
	t := &Command{LUN: lun, kind: kindTMF, Done: func(*Command) { close(done) }}
	t.tmf = tmfCall{function: function, refTag: pdu.Reserved}
	if err := s.sendControl(t); err != nil {
		return 0, err
	}
	select {
	case <-done:
		return t.tmf.response, t.Err
	case <-ctx.Done():
		return 0, context.Cause(ctx) // the keepalive ends the session if the answer never comes
	}
}

// abortMatching sends ABORT TASK for every matching command; each ends with cause unless its answer
// comes first. match runs with the session locked.
func (s *Session) abortMatching(match func(*Command) bool, cause error) {
	var dropped []*Command
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return // finish answers all
	}
	var keepHead, keepTail *Command
	for c := s.head; c != nil; {
		next := c.next
		c.next = nil
		if match(c) { // never sent: nothing to abort at the target
			c.Err = cause
			dropped = append(dropped, c)
		} else {
			if keepTail == nil {
				keepHead = c
			} else {
				keepTail.next = c
			}
			keepTail = c
		}
		c = next
	}
	s.head, s.tail = keepHead, keepTail
	s.active -= len(dropped)
	s.checkDrainedLocked()
	for i := range s.slots {
		c := s.slots[i].cmd.Load()
		if c == nil || c.kind != kindSCSI || c.aborting || !match(c) {
			continue
		}
		if len(s.free) == 0 { // every reserved tag is busy with aborts: the next sweep tries again
			break
		}
		c.aborting, c.abortErr = true, cause
		t := &Command{LUN: c.LUN, kind: kindTMF, Done: func(*Command) {}}
		t.tmf = tmfCall{function: pdu.TMFAbortTask, ref: c, refTag: c.itt, refSN: c.cmdSN}
		s.sendControlLocked(t)
	}
	s.kickLocked()
	s.mu.Unlock()
	for _, c := range dropped {
		c.Done(c)
	}
}

var errTagsBusy = errors.New("initiator: too many task management functions in progress")

// sendControl sends a ping, task management function or logout; they are immediate and use the
// reserved tags.
func (s *Session) sendControl(t *Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.lost(s.err)
	}
	if len(s.free) == 0 {
		return errTagsBusy
	}
	s.sendControlLocked(t)
	s.kickLocked()
	return nil
}

func (s *Session) sendControlLocked(t *Command) {
	t.reset(s.now())
	s.takeSlotLocked(t)
	t.cmdSN = s.cmdSN
	switch t.kind {
	case kindPing:
		h := s.header(pdu.NopOut, true)
		h.SetFlags(pdu.Final)
		h.SetITT(t.itt)
		h.SetTTT(pdu.Reserved)
		s.sequenceLocked(h)
	case kindTMF:
		h := s.header(pdu.TMFReq, true)
		h.SetFlags(pdu.Final | t.tmf.function)
		h.SetLUN(encodeLUN(t.LUN))
		h.SetITT(t.itt)
		h.PutU32(pdu.OffRefTag, t.tmf.refTag)
		h.PutU32(pdu.OffRefCmdSN, t.tmf.refSN)
		s.sequenceLocked(h)
	case kindLogout:
		h := s.header(pdu.LogoutReq, true)
		h.SetFlags(pdu.Final | pdu.LogoutSession)
		h.SetITT(t.itt)
		s.sequenceLocked(h)
	}
}

// sequenceLocked completes the header of an immediate PDU: it carries CmdSN without using it up.
func (s *Session) sequenceLocked(h pdu.BHS) {
	h.PutU32(pdu.OffCmdSN, s.cmdSN)
	h.PutU32(pdu.OffExpStatSN, s.expStatSN.Load())
	s.sealHeader(h)
}

// nopIn takes the answer to a ping or answers the target's.
func (x *receiver) nopIn(h pdu.BHS) error {
	s := x.s
	if h.ITT() != pdu.Reserved {
		c, err := x.task(h, kindPing)
		if err == nil {
			err = x.status(h)
		}
		if err == nil {
			x.end(c)
		}
		return err
	}
	if h.TTT() == pdu.Reserved {
		return nil // it only brought sequence numbers
	}
	s.mu.Lock()
	o := s.header(pdu.NopOut, true)
	o.SetFlags(pdu.Final)
	o.SetLUN(h.LUN())
	o.SetITT(pdu.Reserved)
	o.SetTTT(h.TTT())
	s.sequenceLocked(o)
	s.mu.Unlock()
	x.seen = true
	return nil
}

// control takes the answer to a task management function or to logout.
func (x *receiver) control(h pdu.BHS) error {
	kind := kindTMF
	if h.Op() == pdu.LogoutResp {
		kind = kindLogout
	}
	t, err := x.task(h, kind)
	if err == nil {
		err = x.status(h)
	}
	if err != nil {
		return err
	}
	t.tmf.response = h[pdu.OffResponse]
	x.end(t)
	if kind != kindTMF {
		return nil
	}
	return x.taskManaged(t)
}

// taskManaged ends what a task management function ended. There is one connection, so answers the
// target had sent before have been seen by now: what is still open ended without a status.
func (x *receiver) taskManaged(t *Command) error {
	r := t.tmf.response
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if c := t.tmf.ref; c != nil {
		if x.s.lookup(t.tmf.refTag) != c || c.ended {
			return nil // its answer came first
		}
		if r == pdu.TMFNoLUN {
			return nil // the LUN was taken from this host, which ends its commands with a status
		}
		if r != pdu.TMFComplete && r != pdu.TMFNoTask {
			return fmt.Errorf("%w: ABORT TASK refused with response %d", ErrProtocol, r)
		}
		c.Err = c.abortErr
		x.end(c)
		return nil
	}
	if r != pdu.TMFComplete {
		return nil
	}
	for i := range x.s.slots {
		c := x.s.slots[i].cmd.Load()
		// Commands numbered at or after the function's CmdSN came later and are not affected (RFC
		// 7143 §4.2.2.3.3).
		if c == nil || c.kind != kindSCSI || c.ended || int32(c.cmdSN-t.cmdSN) >= 0 {
			continue
		}
		sameLUN := c.LUN == t.LUN
		if t.tmf.function == pdu.TMFTargetWarmReset || t.tmf.function == pdu.TMFTargetColdReset || sameLUN {
			c.Err = fmt.Errorf("%w: by task management function %d", ErrAborted, t.tmf.function)
			x.end(c)
		}
	}
	return nil
}

func (x *receiver) async(h pdu.BHS) error {
	if err := x.status(h); err != nil {
		return err
	}
	a := Async{Event: h[pdu.OffAsyncEvent],
		TimeToWait: time.Duration(h.U16(pdu.OffAsyncParam2)) * time.Second,
		Deadline:   time.Duration(h.U16(pdu.OffAsyncParam3)) * time.Second}
	if f := x.s.cfg.OnAsync; f != nil {
		f(a)
	}
	if a.Event == AsyncDropConn || a.Event == AsyncDropSession {
		return fmt.Errorf("the target announced that it will close the connection (event %d)", a.Event)
	}
	return nil
}

// keepalive pings a silent peer, gives it up when it stays silent, and aborts commands that take
// too long.
func (s *Session) keepalive() {
	t := s.cfg.Timers
	interval, timeout := int64(t.PingInterval), int64(t.PingTimeout)
	suspect := int64(t.Suspect)
	var pinging atomic.Bool
	ping := &Command{kind: kindPing, Done: func(*Command) { pinging.Store(false) }}
	var sentAt int64
	timer := time.NewTimer(t.PingInterval)
	defer timer.Stop()
	due := s.now() + interval
	for {
		select {
		case <-s.stop:
			return
		case <-timer.C:
		case <-s.busy:
			due = s.now()
		}
		now, heard := s.now(), s.lastHeard.Load()
		if now-due > timeout/2 {
			// This process was stopped or starved: what arrived meanwhile may not have been read
			// yet.
			heard, sentAt = now, now
			s.lastHeard.CompareAndSwap(s.lastHeard.Load(), now)
		}
		silent := now - heard
		oldest, waits := s.oldest()
		waits = waits && suspect > 0
		suspicious := waits && now-max(heard, oldest) >= suspect
		switch {
		case pinging.Load() && silent >= interval+timeout && now-sentAt >= timeout:
			s.fail(fmt.Errorf("%w (%v)", ErrPeerSilent, time.Duration(silent).Round(time.Millisecond)))
			return
		case (silent >= interval || suspicious) && !pinging.Load():
			pinging.Store(true)
			sentAt = now
			if s.sendControl(ping) != nil {
				pinging.Store(false)
			}
		}
		if suspicious && now-sentAt >= suspect/2 && s.cfg.OnSilent != nil {
			s.cfg.OnSilent()
		}
		s.sweep(now)
		due = heard + interval
		if silent >= interval {
			due = max(heard+interval+timeout, sentAt+timeout)
		}
		switch {
		case suspicious:
			due = min(due, now+suspect/silentTurns)
		case waits:
			due = min(due, max(heard, oldest)+suspect)
		}
		due = min(max(due, now+int64(time.Millisecond)), now+sweepInterval)
		timer.Reset(time.Duration(due - now))
	}
}

// oldest is when the command was started that waits for the longest, if any does. If none does, the
// next one wakes the caller.
func (s *Session) oldest() (at int64, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dozing = s.active == 0; s.dozing {
		return 0, false
	}
	for i := range s.slots {
		if c := s.slots[i].cmd.Load(); c != nil && c.kind != kindPing && (!waits || c.started < at) {
			at, waits = c.started, true
		}
	}
	return at, waits
}

// sweepInterval is how often, in ns, overdue commands are looked for.
const sweepInterval = int64(time.Second)

// sweep aborts overdue commands and gives the session up when a task management function stays
// unanswered.
func (s *Session) sweep(now int64) {
	if limit := int64(s.cfg.Timers.Command); limit > 0 {
		s.abortMatching(func(c *Command) bool { return now-c.started >= limit },
			fmt.Errorf("%w after %v", ErrTimeout, s.cfg.Timers.Command))
	}
	overdue := false
	s.mu.Lock()
	for i := range s.slots {
		c := s.slots[i].cmd.Load()
		overdue = overdue || c != nil && c.kind == kindTMF && now-c.started >= int64(s.cfg.Timers.TMF)
	}
	s.mu.Unlock()
	if overdue {
		s.fail(fmt.Errorf("%w: the target did not answer a task management function", ErrTimeout))
	}
}

// Logout ends the session in order: no new commands, those in flight are waited for, then logout
// (RFC 7143 §11.14). It returns when the session has ended; the error says what was cut short.
func (s *Session) Logout(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	if s.err != nil {
		s.mu.Unlock()
		<-s.done
		return nil
	}
	if s.drained == nil {
		s.drained = make(chan struct{})
	}
	drained := s.drained
	s.checkDrainedLocked()
	s.mu.Unlock()
	var err error
	select {
	case <-drained:
		err = s.logout(ctx)
	case <-s.done:
	case <-ctx.Done():
		err = fmt.Errorf("logout: commands still in flight: %w", context.Cause(ctx))
	}
	s.fail(ErrClosed)
	<-s.done
	return err
}

func (s *Session) logout(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Logout)
	defer cancel()
	answered := make(chan struct{})
	t := &Command{kind: kindLogout, Done: func(*Command) { close(answered) }}
	if err := s.sendControl(t); err != nil {
		return err
	}
	select {
	case <-answered:
		if t.tmf.response != pdu.LogoutDone && t.Err == nil {
			return fmt.Errorf("logout: response %d", t.tmf.response)
		}
		return t.Err
	case <-ctx.Done():
		return fmt.Errorf("the target did not answer the logout: %w", context.Cause(ctx))
	}
}

// checkDrainedLocked tells a waiting Logout that no SCSI command is left.
func (s *Session) checkDrainedLocked() {
	if s.drained == nil || s.active > 0 {
		return
	}
	select {
	case <-s.drained:
	default:
		close(s.drained)
	}
}

// Close ends the session at once: commands in flight get ErrSessionLost. It returns when all
// goroutines have ended.
func (s *Session) Close() {
	s.fail(ErrClosed)
	<-s.done
}
