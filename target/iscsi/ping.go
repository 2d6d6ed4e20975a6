package iscsi

import "github.com/gemel-storage/gemel/target/iscsi/pdu"

// ping is a NOP-In that asks for an answer (RFC 7143 §11.19).
type ping struct {
	out  bool
	ttt  uint32
	at   int64    // clock when it was sent
	done []func() // who wait for its answer
}

// ask sends a ping and calls done when one that was sent at or after the call has been answered. One is under way at a
// time: what is asked meanwhile goes with the next. Nobody is told when the connection ends first.
func (c *conn) ask(done func()) {
	c.mu.Lock()
	if c.killed || c.ending {
		c.mu.Unlock()
		return
	}
	if done != nil {
		c.asked = append(c.asked, done)
	}
	if c.ping.out {
		c.mu.Unlock()
		return
	}
	c.sendPing()
}

// sendPing is called with mu held and releases it.
func (c *conn) sendPing() {
	c.ping = ping{out: true, ttt: c.transferTag(), at: c.srv.cfg.Clock(), done: c.asked}
	c.asked = nil
	h := c.begin(pdu.NopIn)
	h.SetITT(pdu.Reserved)
	h.SetTTT(c.ping.ttt)
	h.PutU32(pdu.OffStatSN, c.statSN)
	c.end(h, nil, true)
	c.unlockAndSend()
}

// answered takes the initiator's answer: it lives, and had not given this session up when the ping was sent.
func (c *conn) answered(ttt uint32) {
	c.mu.Lock()
	if !c.ping.out || c.ping.ttt != ttt {
		c.mu.Unlock()
		return
	}
	p := c.ping
	c.ping = ping{}
	if len(c.asked) > 0 && !c.killed && !c.ending {
		c.sendPing()
	} else {
		c.mu.Unlock()
	}
	if c.nexus != nil {
		c.nexus.Life.Answered(p.at)
	}
	for _, f := range p.done {
		f()
	}
}

// refresh keeps the sign of life of an initiator that writes younger than what its writes are judged by, so that they do
// not have to wait for one. It is called by the server's ticker.
func (c *conn) refresh(now int64) {
	const recent, old = int64(1e9), int64(4e8)
	if c.nexus != nil && now-c.wrote.Load() < recent && now-c.nexus.Life.At() > old {
		c.ask(nil)
	}
}
