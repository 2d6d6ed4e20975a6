package iscsi

import "github.com/gemel-storage/gemel/internal/pdu"

const (
	// maxPings are under way at once per session: one each pingEvery over a round trip of more than
	// five seconds.
	maxPings  = 16
	pingEvery = int64(4e8) // ns between the pings of a session that writes
)

// ping is a NOP-In that asks for an answer (RFC 7143 §11.19).
type ping struct {
	ttt  uint32
	at   int64    // clock when it was sent
	done []func() // who wait for its answer
}

// ask sends a ping and calls done when one that was sent at or after the call has been answered.
// Several are under way at a time, so that a long round trip delays no sign of life by more than
// itself; with maxPings what is asked goes with the next. done is not called when the connection
// ends first.
func (c *conn) ask(done func()) {
	c.mu.Lock()
	if c.killed || c.ending {
		c.mu.Unlock()
		return
	}
	if done != nil {
		c.asked = append(c.asked, done)
	}
	if len(c.pings) >= maxPings {
		c.mu.Unlock()
		return
	}
	c.sendPing()
}

// sendPing is called with mu held and releases it.
func (c *conn) sendPing() {
	p := ping{ttt: c.transferTag(), at: c.srv.cfg.Clock(), done: c.asked}
	c.asked = nil
	c.pings = append(c.pings, p)
	h := c.begin(pdu.NopIn)
	h.SetITT(pdu.Reserved)
	h.SetTTT(p.ttt)
	h.PutU32(pdu.OffStatSN, c.statSN)
	c.end(h, nil, true)
	c.unlockAndSend()
}

// answered takes the initiator's answer: it lives, and had not given this session up when the ping
// was sent. That is all that an answer proves: it may have been on its way, and in the send queue
// of a socket that the initiator has closed since, for as long as the ping has been out.
func (c *conn) answered(ttt uint32) {
	c.mu.Lock()
	i := 0
	for i < len(c.pings) && c.pings[i].ttt != ttt {
		i++
	}
	if i == len(c.pings) {
		c.mu.Unlock()
		return
	}
	at := c.pings[i].at
	var done []func()
	for _, p := range c.pings[:i+1] {
		done = append(done, p.done...)
	}
	c.pings = append(c.pings[:0], c.pings[i+1:]...)
	if len(c.asked) > 0 && !c.killed && !c.ending {
		c.sendPing()
	} else {
		c.mu.Unlock()
	}
	if c.nexus != nil {
		c.nexus.Liveness.Answered(at)
	}
	for _, f := range done {
		f()
	}
}

// suspicion is that an initiator hears nothing of this node, and is about to continue elsewhere.
type suspicion struct {
	since  int64 // clock
	reason string
}

// suspect asks the initiator for a sign of life that the ticker looks for (judgeSilence). A later
// suspicion does not extend the time of one that stands.
func (c *conn) suspect(reason string) {
	if c.nexus == nil {
		return // discovery: there is no command that could be late
	}
	if c.suspected.CompareAndSwap(nil, &suspicion{c.srv.cfg.Clock(), reason}) {
		c.ask(nil)
	}
}

// judgeSilence ends a suspicion: the initiator has shown a sign of life since, or it has had MaxAge
// for it and the connection is closed. That is before it gives the session up itself.
func (c *conn) judgeSilence(now int64) {
	switch x := c.suspected.Load(); {
	case x == nil:
	case c.nexus.Liveness.At() >= x.since:
		c.suspected.CompareAndSwap(x, nil)
	case now-x.since > int64(c.srv.cfg.MaxAge):
		c.kill(x.reason)
	}
}

// refresh keeps the sign of life of an initiator that writes as young as its round trip lets it be,
// so that its writes do not have to wait for one. It is called by the server's ticker.
func (c *conn) refresh(now int64) {
	const recent = int64(1e9)
	if c.nexus == nil || now-c.wrote.Load() >= recent || now-c.nexus.Liveness.At() <= pingEvery {
		return
	}
	c.mu.Lock()
	last := int64(0)
	if n := len(c.pings); n > 0 {
		last = c.pings[n-1].at
	}
	c.mu.Unlock()
	if now-last > pingEvery {
		c.ask(nil)
	}
}
