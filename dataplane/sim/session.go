package sim

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// session is a host's connection to a node. Its bytes can be under way for long: the host's network
// is cut, the host gives the session up after a while of silence and continues over the other node,
// and what it had sent arrives when the network heals, at a node that takes it for new (R11). The
// only sign is that no host answers a ping.
type session struct {
	c     *client
	node  int
	life  scsi.Liveness
	wrote int64 // when a write was last submitted, true time
	asked int64 // when the last ping was sent, true time
	far   int64 // how much longer than usual what is sent over it takes, each way
	isid  byte  // of a session that another one of the host does not replace
	ended bool  // the host has closed it
	// closed: the node has, too
	closed bool
	ghosts []func() // end what arrived after the host had left
}

// hostPatience is how long a host waits for a silent target before it gives a session up. It is
// longer than the age at which a node wants a new sign of life, as the timeouts of initiators are.
const hostPatience = 1200 * ms

func (c *client) session(node int) *session {
	if s := c.sess[node]; s != nil {
		return s
	}
	s := &session{c: c, node: node}
	h := c.w.nodes[node]
	s.life.Answered(h.clock()) // it logs in now
	s.life.Bind(s.ask)
	if c.w.remote() || c.w.beside() {
		c.sessions++
		s.isid = c.sessions
	}
	if c.remote[node] {
		s.goesFar()
	}
	c.sess[node] = s
	// A login that replaces a session ends what that one still has at the node (RFC 7143 §6.3.5).
	if old := c.left[node]; old != nil && s.isid == 0 {
		for _, end := range old.ghosts {
			end()
		}
	}
	c.left[node] = nil
	return s
}

func (c *client) endSession(node int) {
	if s := c.sess[node]; s != nil {
		s.ended = true
		c.sess[node], c.left[node] = nil, s
	}
}

// ask is a ping of the target. What the host sends waits while its network is cut.
func (s *session) ask(done func()) {
	w, h := s.c.w, s.c.w.nodes[s.node]
	life, sent := h.life, h.clock()
	s.asked = w.now
	w.after(w.between(20*us, 300*us)+s.far, func() {
		if s.ended {
			return
		}
		s.sends(func() {
			h.when(life, func() {
				w.mark(markProof)
				s.life.Answered(sent)
				done()
			})
		})
	})
}

// sends carries what a host sends to a node.
func (s *session) sends(arrive func()) { s.sendsIn(0, arrive) }

// sendsIn is sends of what takes longer than usual.
func (s *session) sendsIn(more int64, arrive func()) {
	c, w := s.c, s.c.w
	w.after(w.between(20*us, 300*us)+s.far+more, func() {
		if c.cutOff[s.node] {
			c.underway[s.node] = append(c.underway[s.node], arrive)
			return
		}
		arrive()
	})
}

// refresh is what the front end does for sessions that write: their sign of life is kept young.
func (h *host) refresh() {
	w := h.w
	for _, c := range w.clients {
		for _, s := range c.sessionsAt(int(h.id)) {
			if w.now-s.wrote < 1000*ms && h.clock()-s.life.At() > 400*ms && (s.far == 0 || w.now-s.asked > 400*ms) {
				s.ask(func() {})
			}
		}
	}
}

// proveHosts pings the hosts of all sessions, and closes those that do not answer within a second
// (R11b).
func (h *host) proveHosts() {
	w, life, asked := h.w, h.life, h.clock()
	for _, c := range w.clients {
		for _, s := range c.sessionsAt(int(h.id)) {
			s.ask(func() {})
			w.after(w.even(1000*ms, 1250*ms), func() {
				h.when(life, func() {
					if s.connected() && s.life.At() < asked {
						w.mark(markDropHosts)
						c.dropped(h.id)
					}
				})
			})
		}
	}
}

// cutHost cuts a host's network to a node for a while.
func (w *world) cutHost() bool {
	c, node := w.clients[w.rnd.IntN(len(w.clients))], w.rnd.IntN(2)
	if c.cutOff[node] {
		return false
	}
	c.cutOff[node] = true
	w.trace("host%d is cut off from node %d", c.id, node)
	w.after(w.even(200*ms, 2500*ms), func() { c.reconnect(node) })
	return true
}

func (c *client) reconnect(node int) {
	if !c.cutOff[node] {
		return
	}
	c.cutOff[node] = false
	late := c.underway[node]
	c.underway[node] = nil
	for _, f := range late {
		f()
	}
}

// farName is the fault that has sessions of a host come over a network on which no sign of life is
// ever young. They begin as others do, so that their paths are known; a host that leaves one
// continues over the next, beside which what it had sent over the first still arrives.
const farName = "sessions far away"

// remote histories are one of sixteen.
func (w *world) remote() bool {
	return w.cfg.Seed%16 == 6 && len(w.cfg.With) == 0 || slices.Contains(w.cfg.With, farName)
}

// goFar chooses a host and a node.
func (w *world) goFar() bool {
	c, node := w.clients[w.rnd.IntN(len(w.clients))], w.rnd.IntN(2)
	if c.remote[node] {
		return false
	}
	c.remote[node] = true
	if s := c.sess[node]; s != nil {
		s.goesFar()
	}
	return true
}

func (s *session) goesFar() {
	w := s.c.w
	w.after(w.even(20*ms, 500*ms), func() {
		if s.c.remote[s.node] {
			s.far = w.even(600*ms, 2500*ms)
		}
	})
}

// comeNear ends that for what is sent from now on.
func (c *client) comeNear() {
	c.remote = [2]bool{}
	for node := range c.sess {
		for _, s := range c.sessionsAt(node) {
			s.far = 0
		}
	}
}
