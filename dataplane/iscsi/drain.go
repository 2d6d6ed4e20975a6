package iscsi

// readState follows what the reader has taken from the socket, for DrainHost. It is guarded by the
// socket's mutex, which is held while bytes move from the kernel into bytesRead, so that readable +
// bytesRead is exact: a sum too low would lose a command, one too high would wait forever.
type readState struct {
	bytesRead int64
	parked    bool // the reader waits for bytes and has executed all it had
	ended     bool
	drains    []drain

	hadToWait bool // of the reader alone: its last read did not find bytes at once
}

type drain struct {
	target int64 // bytesRead that covers what was readable
	done   func()
}

// onRead is called by the socket inside a read. Whenever a read begins, every command that was
// complete in the bytes taken before has been executed, so a drain is due when its target is not
// beyond them.
func (c *conn) onRead(n int) (due []drain) {
	if len(c.drains) > 0 {
		keep := c.drains[:0:0]
		for _, d := range c.drains {
			if d.target <= c.bytesRead {
				due = append(due, d)
			} else {
				keep = append(keep, d)
			}
		}
		c.drains = keep
	}
	c.parked = n == 0
	c.hadToWait = c.hadToWait || n == 0
	c.bytesRead += int64(n)
	return due
}

// drain calls done when all that is readable now has been executed.
func (c *conn) drain(done func()) {
	c.sock.mu.Lock()
	over := c.ended
	if !over {
		pending, err := c.sock.readable()
		if err != nil {
			pending = 0 // closed: endDrains will come
		}
		if over = err == nil && pending == 0 && c.parked; !over {
			c.drains = append(c.drains, drain{c.bytesRead + int64(pending), done})
		}
	}
	c.sock.mu.Unlock()
	if over {
		done()
	}
}

// endDrains answers the drains of a connection from which nothing will be executed any more.
func (c *conn) endDrains() {
	c.sock.mu.Lock()
	c.ended = true
	due := c.drains
	c.drains = nil
	c.sock.mu.Unlock()
	for _, d := range due {
		d.done()
	}
}
