package initiator

import (
	"slices"
	"sync/atomic"
)

// MaxSessions is how many sessions to each portal a device can have.
const MaxSessions = 8

// carriers are the paths that carry I/O at a time: sessions to one portal. Only last changes.
type carriers struct {
	paths []*path      // 1 to MaxSessions of them, in their order
	last  atomic.Int32 // index of the one that carried the last command
}

// next returns the path of the next command.
func (c *carriers) next() *path {
	if len(c.paths) == 1 {
		return c.paths[0]
	}
	var loads [MaxSessions]int32
	for i, p := range c.paths {
		loads[i] = p.load.Load()
	}
	last := c.last.Load()
	i := choose(loads[:len(c.paths)], last)
	if i != last { // an unchanged value is not written: the readers of all sessions share it
		c.last.Store(i)
	}
	return c.paths[i]
}

// clearly is how many commands more than another session a session must have in flight before the
// next command goes to the other one.
const clearly = 2

// choose returns the index of the session for the next command: the one that carried the last
// command, unless another has clearly fewer in flight; then the one with the least, the lowest of
// equals. So a load of depth one or two stays on one session. It would gain nothing from a second
// one, and when writes to one place come over several sessions in turn, the target must prove each
// time that the host has nothing left on the session before, which costs a round trip.
func choose(loads []int32, last int32) int32 {
	least := int32(0)
	for i, n := range loads {
		if n < loads[least] {
			least = int32(i)
		}
	}
	if loads[last]-loads[least] < clearly {
		return last
	}
	return least
}

// carrying lists the paths that carry I/O; none for nil.
func (c *carriers) carrying() []*path {
	if c == nil {
		return nil
	}
	return c.paths
}

// portal is the number of the portal that I/O goes to, -1 for nil.
func (c *carriers) portal() int {
	if c == nil {
		return -1
	}
	return c.paths[0].view.portal
}

// succeed makes the carriers that follow c; nil if there are none. The session that carried the
// last command stays the one to prefer.
func (c *carriers) succeed(paths []*path) *carriers {
	if len(paths) == 0 {
		return nil
	}
	next := &carriers{paths: paths}
	if c != nil {
		next.last.Store(int32(max(0, slices.Index(paths, c.paths[c.last.Load()]))))
	}
	return next
}

// sessionsTo lists the paths to the portal of a path, in their order.
func (d *Device) sessionsTo(p *path) []*path {
	at := p.view.portal * d.cfg.Sessions
	return d.paths[at : at+d.cfg.Sessions]
}

// alikeLocked lists the sessions for which an answer to p about access states and mappings is as
// good: p, and those that are up, to the same portal, and show the same port of the same target
// port group. Another node may answer at the address after a change of addresses.
func (d *Device) alikeLocked(p *path) (list []*path) {
	for _, q := range d.sessionsTo(p) {
		if q == p || q.view.up && q.id == p.id {
			list = append(list, q)
		}
	}
	return list
}

// leadsLocked reports whether p is the first session to its portal that is up. It alone polls at a
// short interval while the portal does not serve, since what it reads is noted for all of them.
func (d *Device) leadsLocked(p *path) bool {
	for _, q := range d.sessionsTo(p) {
		if q.view.up {
			return q == p
		}
	}
	return true
}

// begin and end count the commands in flight, where there is something to choose by them.
func (p *path) begin() {
	if p.d.cfg.Sessions > 1 {
		p.load.Add(1)
	}
}

func (p *path) end() {
	if p.d.cfg.Sessions > 1 {
		p.load.Add(-1)
	}
}
