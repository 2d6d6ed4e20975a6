package iscsi

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// SessionInfo describes one logged-in session.
type SessionInfo struct {
	Initiator    string
	ISID         [6]byte
	Remote       string // address of the initiator's socket
	Discovery    bool
	HeaderDigest bool
	DataDigest   bool
	InFlight     int // SCSI commands accepted and not answered
	Since        time.Time
	AskedGroups  time.Time // when it last asked for the target port groups; zero: never
	UsesPath     time.Time // when it showed that its multipath layer knows this path; zero: not yet
}

// Sessions lists the sessions in the full-feature phase, in no order.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	live := s.connsLocked(func(c *conn) bool { return c.loggedIn })
	s.mu.Unlock()
	out := make([]SessionInfo, 0, len(live))
	for _, c := range live {
		var asked, uses time.Time
		if !c.discovery {
			asked, uses = s.calendar(c.nexus.AskedGroups()), s.calendar(c.nexus.UsesPath())
		}
		c.mu.Lock()
		out = append(out, SessionInfo{
			Initiator: c.id.Initiator, ISID: c.id.ISID, Remote: c.remote, Discovery: c.discovery,
			HeaderDigest: c.params.HeaderDigest, DataDigest: c.params.DataDigest, InFlight: c.inFlight, Since: c.since,
			AskedGroups: asked, UsesPath: uses,
		})
		c.mu.Unlock()
	}
	return out
}

// calendar puts into words of the calendar what the device server knows by the clock of commands;
// 0 is the zero time.
func (s *Server) calendar(at int64) (t time.Time) {
	if at != 0 {
		t = time.Now().Add(-time.Duration(max(s.cfg.Clock()-at, 0)))
	}
	return t
}

func (s *Server) connsLocked(match func(*conn) bool) []*conn {
	out := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		if match == nil || match(c) {
			out = append(out, c)
		}
	}
	return out
}

// ofHost lists the connections of one initiator, those that have come as far as its admission in
// their login included.
func (s *Server) ofHost(initiator string) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connsLocked(func(c *conn) bool { return c.host == initiator })
}

// DrainHost is rule R11a's drain: done is called once, from any goroutine, when every byte that was
// readable on the initiator's connections at the time of the call has been consumed and each
// command that was complete in them was given to the Device, or the connection has ended and they
// never will be.
func (s *Server) DrainHost(initiator string, done func()) {
	conns := s.ofHost(initiator)
	var left atomic.Int64
	left.Store(int64(len(conns)) + 1)
	one := func() {
		if left.Add(-1) == 0 {
			done()
		}
	}
	for _, c := range conns {
		c.drain(one)
	}
	one()
}

// DropConnections closes every connection without executing another buffered command (rule R11b).
// It does not wait for commands that were already given to the Device.
func (s *Server) DropConnections(reason string) {
	s.mu.Lock()
	live := s.connsLocked(nil)
	s.mu.Unlock()
	for _, c := range live {
		c.kill(reason)
	}
}

// DropSilent pings the initiator of every session, and closes the sessions of those that have not
// answered after MaxAge, without executing another buffered command (rule R11b). It does not wait
// for that: the server's ticker looks.
func (s *Server) DropSilent(reason string) {
	s.mu.Lock()
	live := s.connsLocked(func(c *conn) bool { return c.loggedIn })
	s.mu.Unlock()
	for _, c := range live {
		c.suspect(reason)
	}
}

// DropHost closes the connections of one initiator like DropConnections.
func (s *Server) DropHost(initiator, reason string) {
	for _, c := range s.ofHost(initiator) {
		c.kill(reason)
	}
}

// AbortGathering makes sure that commands which match and whose write data has not all arrived are
// never executed. The Device does not know them yet: a reset that comes from another nexus or the
// other node (CLEAR TASK SET, LOGICAL UNIT RESET, PREEMPT AND ABORT, unmapping a host) calls this
// before it aborts what it does know. lun is the eight-byte field as the initiator sent it. The
// initiator gets no status, as for any command aborted by another nexus (SAM-5 §5.9).
func (s *Server) AbortGathering(match func(initiator string, lun uint64) bool) {
	s.mu.Lock()
	live := s.connsLocked(func(c *conn) bool { return c.loggedIn })
	s.mu.Unlock()
	for _, c := range live {
		c.mu.Lock()
		for _, cmd := range c.table {
			for ; cmd != nil; cmd = cmd.next {
				if cmd.state == gathering && match(c.id.Initiator, cmd.task.LUN) {
					cmd.aborted = true
				}
			}
		}
		c.mu.Unlock()
	}
}

var errReinstateTimeout = errors.New("the commands of the replaced session did not end in time")

// register makes c the session of its initiator and ISID. A session that has them already is ended
// first, and its commands are over when register returns nil: else one of them could land on a
// later write of the new session (R11c).
func (s *Server) register(c *conn, deadline time.Time) error {
	key := sessionKey{c.id.Initiator, c.id.ISID}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		s.mu.Lock()
		old := s.sessions[key]
		if old == nil {
			if s.closing {
				s.mu.Unlock()
				return errClosing
			}
			s.sessions[key] = c
			for s.nextTSIH++; s.nextTSIH == 0 || s.tsihs[s.nextTSIH]; s.nextTSIH++ {
			}
			c.tsih = s.nextTSIH
			s.tsihs[c.tsih] = true
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		old.kill("session reinstatement")
		select {
		case <-old.gone:
		case <-timer.C:
			return errReinstateTimeout
		case <-c.dead:
			return errClosing
		}
	}
}

var errClosing = errors.New("the connection or the server is closing")

// admitted records the host of a connection whose login is under way, so that DropHost and
// DrainHost find it.
func (s *Server) admitted(c *conn, host string) {
	s.mu.Lock()
	c.host = host
	s.mu.Unlock()
}

// entered moves c from login to the full-feature phase.
func (s *Server) entered(c *conn) {
	s.mu.Lock()
	c.loggedIn = true
	s.mu.Unlock()
	s.half.Remove(c.half)
}

// forget removes c once nothing of it is left.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.half.Remove(c.half)
	if key := (sessionKey{c.id.Initiator, c.id.ISID}); s.sessions[key] == c {
		delete(s.sessions, key)
		delete(s.tsihs, c.tsih)
	}
}

// haveSession answers a login that names a session by its TSIH: with one connection per session it
// cannot join, and the status says whether there is such a session (RFC 7143 §6.3.1).
func (s *Server) haveSession(tsih uint16) pdu.LoginStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tsihs[tsih] {
		return pdu.LoginTooManyConnections
	}
	return pdu.LoginNoSession
}

// tick is the server's one timer: it pings idle initiators, drops those that do not answer, and
// notices when the whole process was stopped for longer than MaxAge.
func (s *Server) tick() {
	defer s.wg.Done()
	period := max(min(s.cfg.MaxAge/4, time.Second), 10*time.Millisecond)
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.stopTick:
			return
		}
		now := s.cfg.Clock()
		if gap := now - s.lastTick.Load(); gap > int64(s.cfg.MaxAge) {
			// The count goes first: a reader that sees the new lastTick also sees the count.
			s.pauses.Add(1)
			s.lastTick.Store(now)
			s.log.Warn("the process was paused; closing all connections", "pause", time.Duration(gap))
			s.DropConnections("the process was paused")
			continue
		}
		s.lastTick.Store(now)
		s.setMemory()
		s.mu.Lock()
		live := s.connsLocked(func(c *conn) bool { return c.loggedIn })
		s.mu.Unlock()
		for _, c := range live {
			c.refresh(now)
			c.judgeSilence(now)
			if s.cfg.NopInterval >= 0 {
				c.pingIfIdle(now)
			}
		}
		s.dropStalled(live, now)
	}
}
