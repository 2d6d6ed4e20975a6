package link

// With TLS the messages of a batch are put one after the other and encrypted together: a record and
// a system call for each of their parts would cost more than the encryption.

// sealSize is how much is encrypted at once, in bytes: four of the largest records.
const sealSize = 64 << 10

// trySealed encrypts the batch and writes without blocking; false leaves the rest to the goroutine.
func (c *conn) trySealed() bool {
	c.wire.cork()
	if err := c.seal(nil); err != nil {
		c.close()
		return true
	}
	c.sealed = !c.wire.flush()
	return !c.sealed
}

// writeSealed writes the batch and waits for the socket.
func (c *conn) writeSealed() error {
	if !c.sealed {
		c.wire.cork()
		err := c.seal(func() error {
			err := c.wire.drain(writeTimeout)
			c.wire.cork()
			return err
		})
		if err != nil {
			return err
		}
	}
	c.sealed = false
	return c.wire.drain(writeTimeout)
}

// seal encrypts the batch. Whenever sealSize waits for the socket it calls between, if there is
// one.
func (c *conn) seal(between func() error) error {
	var err error
	flush := func(b []byte) {
		for len(b) > 0 && err == nil {
			n := min(len(b), sealSize)
			if _, err = c.c.Write(b[:n]); err == nil && between != nil && c.wire.pending() >= sealSize {
				err = between()
			}
			b = b[n:]
		}
	}
	c.plain = c.plain[:0]
	for _, m := range c.batch {
		if len(c.plain)+headerLen > sealSize {
			flush(c.plain)
			c.plain = c.plain[:0]
		}
		n := len(c.plain)
		c.plain = append(c.plain, make([]byte, headerLen)...)
		putHeader(c.plain[n:], uint8(c.neg.Version), m)
		for _, b := range [2][]byte{m.Meta, m.Data} {
			if len(c.plain)+len(b) > sealSize {
				flush(c.plain)
				c.plain = c.plain[:0]
			}
			if len(b) > sealSize/4 { // not worth copying
				flush(c.plain)
				flush(b)
				c.plain = c.plain[:0]
				continue
			}
			c.plain = append(c.plain, b...)
		}
	}
	flush(c.plain)
	return err
}
