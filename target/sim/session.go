package sim

import "github.com/gemel-storage/gemel/target/scsi"

// session is a host's connection to a node. Its bytes can be under way for long: the host's network is cut, the host gives
// the session up after a while of silence and goes on over the other node, and what it had sent arrives when the network
// heals, at a node that takes it for new (R11). All that tells it is that nobody answers a ping.
type session struct {
	c     *client
	node  int
	life  scsi.Life
	wrote int64 // when a write was last submitted, true time
	ended bool  // the host has closed it
}

// hostPatience is how long a host waits for a silent target before it gives a session up. It is longer than the age at which
// a node wants a new sign of life, as the timeouts of initiators are.
const hostPatience = 1200 * ms

func (c *client) session(node int) *session {
	if s := c.sess[node]; s != nil {
		return s
	}
	s := &session{c: c, node: node}
	h := c.w.nodes[node]
	s.life.Answered(h.clock()) // it logs in now
	s.life.Bind(s.ask)
	c.sess[node] = s
	return s
}

func (c *client) endSession(node int) {
	if s := c.sess[node]; s != nil {
		s.ended = true
		c.sess[node] = nil
	}
}

// ask is a ping of the target. What the host sends waits while its network is cut.
func (s *session) ask(done func()) {
	w, h := s.c.w, s.c.w.nodes[s.node]
	life, sent := h.life, h.clock()
	w.after(w.between(20*us, 300*us), func() {
		if s.ended {
			return
		}
		s.c.sends(s.node, func() {
			h.when(life, func() {
				w.mark(markProof)
				s.life.Answered(sent)
				done()
			})
		})
	})
}

// sends carries what a host sends to a node.
func (c *client) sends(node int, arrive func()) {
	w := c.w
	w.after(w.between(20*us, 300*us), func() {
		if c.cutOff[node] {
			c.underway[node] = append(c.underway[node], arrive)
			return
		}
		arrive()
	})
}

// refresh is what the front end does for sessions that write: their sign of life is kept young.
func (h *host) refresh() {
	w := h.w
	for _, c := range w.clients {
		if s := c.sess[h.id]; s != nil && w.now-s.wrote < 1000*ms && h.clock()-s.life.At() > 400*ms {
			s.ask(func() {})
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
