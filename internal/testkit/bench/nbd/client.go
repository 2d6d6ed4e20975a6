// Package nbd is a client for one export of an NBD server, for the benchmark's peers: a connection
// with as many requests in flight as the caller submits, no allocation per request, with the
// requests of the initiator, so that one load generator drives both.
package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/gemel-storage/gemel/initiator"
)

// Requests and simple replies.
const (
	magicRequest = 0x25609513
	magicReply   = 0x67446698

	flagFUA    = 1 << 0
	flagNoHole = 1 << 1

	readBuffer = 256 << 10
)

// Commands.
const (
	cmdRead = iota
	cmdWrite
	cmdDisconnect
	cmdFlush
	cmdTrim
	_ // NBD_CMD_CACHE
	cmdZeroes
)

// Client is one connection. Its methods are safe for concurrent use.
type Client struct {
	conn   net.Conn
	in     *bufio.Reader
	export export
	out    *output
	reader chan struct{} // closed when the reader has ended

	mu    sync.Mutex
	slots []*slot
	free  []*slot
	dead  error         // why no request is accepted
	idle  chan struct{} // made by Close, closed when nothing is in flight
}

// slot is a request in flight. The reply names it, with the number of its use.
type slot struct {
	index uint32
	use   uint32
	io    *initiator.IO // nil: free
	head  [28]byte
}

// Dial connects to an export. ctx bounds the handshake.
func Dial(ctx context.Context, network, address, name string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address) // TCP_NODELAY is Go's default
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", errors.Join(err, context.Cause(ctx)))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	e, err := handshake(conn, name)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	var out *output
	if err == nil {
		out, err = newOutput(conn)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("nbd: %s: export %q: %w", address, name, errors.Join(err, context.Cause(ctx)))
	}
	c := &Client{conn: conn, in: bufio.NewReaderSize(conn, readBuffer), export: e, out: out, reader: make(chan struct{})}
	go c.out.run()
	go c.read()
	return c, nil
}

// Size is the size of the export in bytes.
func (c *Client) Size() int64 { return c.export.size }

// BlockSize is what offsets and lengths are multiples of, in bytes.
func (c *Client) BlockSize() int { return int(c.export.block) }

// Submit starts a request. It returns an error, and does not call Done, when the request is not
// valid or the connection is gone. It never waits, also not when it is called by Done.
func (c *Client) Submit(r *initiator.IO) error {
	cmd, flags, n, err := c.command(r)
	if err != nil {
		return fmt.Errorf("nbd: %w", err)
	}
	r.Err = nil
	var payload []byte
	off := r.Off
	switch cmd {
	case cmdWrite:
		payload = r.Buf
	case cmdFlush:
		off = 0 // the protocol wants it
	}
	c.mu.Lock()
	if c.dead != nil {
		defer c.mu.Unlock()
		return fmt.Errorf("nbd: %w", c.dead)
	}
	var s *slot
	if last := len(c.free) - 1; last >= 0 {
		s, c.free = c.free[last], c.free[:last]
	} else {
		s = &slot{index: uint32(len(c.slots))}
		c.slots = append(c.slots, s)
	}
	s.use++
	s.io = r
	binary.BigEndian.PutUint32(s.head[:], magicRequest)
	binary.BigEndian.PutUint16(s.head[4:], flags)
	binary.BigEndian.PutUint16(s.head[6:], cmd)
	binary.BigEndian.PutUint64(s.head[8:], uint64(s.use)<<32|uint64(s.index))
	binary.BigEndian.PutUint64(s.head[16:], uint64(off))
	binary.BigEndian.PutUint32(s.head[24:], uint32(n))
	c.mu.Unlock() // from here on the request may end at any time
	c.out.send(s, payload)
	return nil
}

// command checks a request and says what it is on the wire.
func (c *Client) command(r *initiator.IO) (cmd, flags uint16, n int64, err error) {
	n = int64(len(r.Buf))
	need := uint16(0)
	switch r.Op {
	case initiator.OpRead:
		cmd = cmdRead
	case initiator.OpWrite:
		cmd = cmdWrite
		if r.FUA {
			flags, need = flagFUA, canFUA
		}
	case initiator.OpFlush:
		cmd, n, need = cmdFlush, 0, canFlush
	case initiator.OpDiscard:
		cmd, n, need = cmdTrim, r.Len, canTrim
	case initiator.OpWriteZeroes:
		cmd, n, need = cmdZeroes, r.Len, canZeroes
		if !r.MayUnmap {
			flags = flagNoHole
		}
	default:
		return 0, 0, 0, fmt.Errorf("unknown operation %d", r.Op)
	}
	size, block := c.export.size, int64(c.export.block)
	most := int64(1<<32 - 1) // of a request without data
	if cmd == cmdRead || cmd == cmdWrite {
		most = int64(c.export.maxPayload)
	}
	switch {
	case r.Done == nil:
		err = errors.New("IO without Done")
	case c.export.flags&need != need:
		err = fmt.Errorf("operation %d: %w", r.Op, initiator.ErrNotSupported)
	case cmd != cmdRead && cmd != cmdFlush && c.export.flags&readOnly != 0:
		err = fmt.Errorf("the export is read-only: %w", syscall.EROFS)
	case cmd == cmdFlush:
	case n < 1 || n > most:
		err = fmt.Errorf("%d bytes, want 1..%d", n, most)
	case r.Off < 0 || r.Off > size-n:
		err = fmt.Errorf("%d bytes at %d of %d: %w", n, r.Off, size, initiator.ErrBeyondEnd)
	case r.Off%block != 0 || n%block != 0:
		err = fmt.Errorf("%d bytes at %d, blocks of %d: %w", n, r.Off, block, initiator.ErrUnaligned)
	}
	return cmd, flags, n, err
}

// read ends requests until the connection does, then those that are left.
func (c *Client) read() {
	defer close(c.reader)
	var err error
	for err == nil {
		err = c.reply()
	}
	c.mu.Lock()
	if c.dead == nil {
		c.dead = fmt.Errorf("%w: %w", ErrLost, err)
	}
	err = c.dead
	left := c.slots
	c.mu.Unlock()
	_ = c.conn.Close()
	c.out.stop() // buffers belong to it until then
	for _, s := range left {
		if s.io != nil {
			c.finish(s, fmt.Errorf("nbd: %w", err))
		}
	}
}

func (c *Client) reply() error {
	head, err := c.in.Peek(16)
	if err != nil {
		return err
	}
	errno, cookie := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint64(head[8:])
	if magic := binary.BigEndian.Uint32(head); magic != magicReply {
		return fmt.Errorf("%w: reply with magic number %#x", ErrProtocol, magic)
	}
	if errno != 0 && !known(errno) {
		errno = uint32(syscall.EINVAL) // as the protocol says
	}
	_, _ = c.in.Discard(16)
	c.mu.Lock()
	var s *slot
	if i := cookie & (1<<32 - 1); i < uint64(len(c.slots)) {
		s = c.slots[i]
	}
	if s == nil || s.io == nil || uint64(s.use) != cookie>>32 {
		c.mu.Unlock()
		return fmt.Errorf("%w: reply to no request (cookie %#x)", ErrProtocol, cookie)
	}
	c.mu.Unlock()
	if errno != 0 {
		c.finish(s, fmt.Errorf("nbd: %w", syscall.Errno(errno)))
		return nil
	}
	if s.io.Op == initiator.OpRead {
		if _, err := io.ReadFull(c.in, s.io.Buf); err != nil {
			return err
		}
	}
	c.finish(s, nil)
	return nil
}

// finish ends a request. Its slot is free before Done, which may submit the next.
func (c *Client) finish(s *slot, err error) {
	r := s.io
	r.Err = err
	c.mu.Lock()
	s.io = nil
	c.free = append(c.free, s)
	c.mu.Unlock()
	r.Done(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle != nil && len(c.free) == len(c.slots) {
		close(c.idle)
		c.idle = nil
	}
}
