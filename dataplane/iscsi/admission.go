package iscsi

import (
	"sync"
	"time"

	"github.com/gemel-storage/gemel/internal/halfopen"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// Who may have how many connections and sessions. Connections are accepted always; the oldest that
// has not logged in makes way (package halfopen). A login beyond a limit of sessions is answered
// "out of resources" (RFC 7143 §11.13.5, 0302h): "too many connections" (0206h) is for a session.

// admissible judges what the node knows of an initiator. A session is for a host that has a LUN;
// discovery is for every host that is known, and textKey shows the target to those that have LUNs.
// Initiators take "authorization failure" (0202h) for final at their first login (open-iscsi) or
// after a while (package initiator), and come again after "service unavailable" (0301h). So only a
// node that serves says the former: it knows every mapping that was confirmed to a caller
// (docs/decisions/0045-login-of-hosts-without-luns.md).
func (c *conn) admissible(name string, h Host) error {
	stats := &c.srv.stats
	switch {
	case h.LUNs, c.discovery && h.Known:
		return nil
	case !h.Sure:
		stats.NotYet.Add(1)
		return fail(pdu.LoginUnavailable, "this node knows no LUN that is mapped to initiator %s, but it does not serve now, so its mappings may be old", name)
	}
	stats.Forbidden.Add(1)
	return fail(pdu.LoginForbidden, "no LUN is mapped to initiator %s", name)
}

// takePlace counts a session: the one that it replaces does not count beside it. It fails the login
// when there is no place.
func (s *Server) takePlace(c *conn) error {
	l := &s.cfg.Limits
	key := sessionKey{c.id.Initiator, c.id.ISID}
	from := halfopen.Source(c.sock.nc.RemoteAddr())
	s.mu.Lock()
	defer s.mu.Unlock()
	total, host, address := 0, 0, 0
	for o := range s.conns {
		if !o.placed || !c.discovery && !o.discovery && (sessionKey{o.id.Initiator, o.id.ISID}) == key {
			continue
		}
		total++
		if o.id.Initiator == c.id.Initiator {
			host++
		}
		if halfopen.Source(o.sock.nc.RemoteAddr()) == from {
			address++
		}
	}
	switch {
	case total >= l.Connections:
		s.stats.Refused.Add(1)
		return fail(pdu.LoginOutOfResources, "this node already has %d sessions, the most that it accepts", total)
	case host >= l.InitiatorSessions:
		s.stats.Refused.Add(1)
		return fail(pdu.LoginOutOfResources, "%s already has %d sessions, the most that an initiator may have", c.id.Initiator, host)
	case address >= l.AddressSessions:
		s.stats.Refused.Add(1)
		return fail(pdu.LoginOutOfResources, "%v already has %d sessions, the most that an address may have", from.Addr(), address)
	}
	c.placed = true
	return nil
}

// seldom lets some messages through in a while, and counts the rest: those who may connect must not
// fill the log.
type seldom struct {
	mu      sync.Mutex
	since   time.Time
	said    int
	dropped int
}

const (
	seldomEach = 10 * time.Second
	seldomMany = 20 // messages in that time
)

// may reports whether a message may be logged now, and how many were not before it.
func (x *seldom) may(now time.Time) (ok bool, dropped int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now.Sub(x.since) >= seldomEach {
		x.since, x.said = now, 0
		dropped, x.dropped = x.dropped, 0
	}
	if x.said >= seldomMany {
		x.dropped++
		return false, 0
	}
	x.said++
	return true, dropped
}

// noteFailed logs a login that failed.
func (s *Server) noteFailed(c *conn, err error) {
	if ok, dropped := s.failures.may(time.Now()); ok {
		args := []any{"initiator", c.host, "err", err}
		if dropped > 0 {
			args = append(args, "not_logged", dropped)
		}
		c.log.Info("login failed", args...)
	}
}
