package sim

import "slices"

// besideName is the fault that has hosts use two sessions to each node in turn. A host that leaves
// one of them continues over the other at once, and what it had sent over the first may still be on
// its way: the network delivers one connection's bytes when it likes, whatever another's do.
const besideName = "sessions beside each other"

// beside histories are one of sixteen.
func (w *world) beside() bool {
	return w.cfg.Seed%16 == 9 && len(w.cfg.With) == 0 || slices.Contains(w.cfg.With, besideName)
}

// swap has a host use the other of its two sessions to a node, now and then.
func (c *client) swap(node int) {
	if c.w.beside() && c.w.chance(0.4) {
		c.sess[node], c.spare[node] = c.spare[node], c.sess[node]
	}
}

// strays reports whether what is sent now is on its way for long, while its host gives it up soon:
// its connection broke where the host could see it, and no byte of it is lost.
func (w *world) strays() bool { return w.beside() && !w.healed && w.chance(0.06) }

// strayFor is how long: within that time the session has shown a sign of life that is young enough
// (R11b), so that nothing but the writes of the session beside it can tell.
func (w *world) strayFor() int64 { return w.even(ms, 900*ms) }

// leaveOne is the fault: a host logs out of a session that it does not use now.
func (w *world) leaveOne() bool {
	c, node := w.clients[w.rnd.IntN(len(w.clients))], w.rnd.IntN(2)
	if c.spare[node] == nil {
		return false
	}
	c.endSpare(node)
	return true
}

// endSpare ends the session that the host does not use now.
func (c *client) endSpare(node int) {
	if s := c.spare[node]; s != nil {
		s.ended, c.spare[node] = true, nil
	}
}

// sessionsAt are a host's sessions to a node.
func (c *client) sessionsAt(node int) (out []*session) {
	for _, s := range []*session{c.sess[node], c.spare[node]} {
		if s != nil {
			out = append(out, s)
		}
	}
	return out
}

// connected reports whether a session is still one of its host's.
func (s *session) connected() bool { return slices.Contains(s.c.sessionsAt(s.node), s) }
