package nbd

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gemel-storage/gemel/initiator"
)

// wait runs a request to its end. The protocol cannot take a request back: a context that ends
// earlier ends the connection.
func (c *Client) wait(ctx context.Context, r *initiator.IO) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	r.Done = func(*initiator.IO) { close(done) }
	if err := c.Submit(r); err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		c.kill(context.Cause(ctx))
		<-done
	}
	return r.Err
}

// kill makes the reader fail everything.
func (c *Client) kill(err error) {
	c.mu.Lock()
	if c.dead == nil {
		c.dead = fmt.Errorf("%w: %w", ErrLost, err)
	}
	c.mu.Unlock()
	_ = c.conn.Close()
}

// ReadAt reads len(p) bytes at off; both must be multiples of the block size. It is all or nothing.
func (c *Client) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := c.wait(ctx, &initiator.IO{Op: initiator.OpRead, Off: off, Buf: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt writes p at off; both must be multiples of the block size. After an error any part may
// have been written.
func (c *Client) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := c.wait(ctx, &initiator.IO{Op: initiator.OpWrite, Off: off, Buf: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush makes every write that has returned durable.
func (c *Client) Flush(ctx context.Context) error {
	return c.wait(ctx, &initiator.IO{Op: initiator.OpFlush})
}

// Close refuses new requests, waits for those under way, says goodbye and waits for all goroutines.
// When ctx ends first, what is left fails with ErrClosed.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		<-c.reader
		return nil
	}
	c.dead = ErrClosed
	idle := make(chan struct{})
	if len(c.free) == len(c.slots) {
		close(idle)
	} else {
		c.idle = idle
	}
	c.mu.Unlock()
	var err error
	select {
	case <-idle:
		s := &slot{}
		binary.BigEndian.PutUint32(s.head[:], magicRequest)
		binary.BigEndian.PutUint16(s.head[6:], cmdDisconnect)
		c.out.send(s, nil)
	case <-c.reader:
	case <-ctx.Done():
		err = fmt.Errorf("nbd: close: requests are still in progress: %w", context.Cause(ctx))
	}
	_ = c.conn.Close()
	<-c.reader
	return err
}
