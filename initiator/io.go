package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Op is the kind of an IO.
type Op byte

// Operations.
const (
	OpRead Op = iota + 1
	OpWrite
	OpFlush       // everything that had completed before is durable
	OpDiscard     // the range may become unallocated; what it reads as afterwards is the target's business
	OpWriteZeroes // the range reads as zeroes
)

// IO is one asynchronous request of a Device. The caller fills the first part; the second is set
// when Done is called. It may be reused, from within Done already, and then a request that fits one
// command allocates nothing.
type IO struct {
	Op       Op
	Off      int64 // bytes, a multiple of the block size
	Buf      []byte
	Len      int64     // bytes, for OpDiscard and OpWriteZeroes
	FUA      bool      // OpWrite: durable when it completes
	MayUnmap bool      // OpWriteZeroes: may deallocate
	Done     func(*IO) // called once, must not block
	User     any       // the caller's

	Err error

	d        *Device
	first    piece
	left     atomic.Int32
	deadline atomic.Int64 // monotonic ns; 0 until the first refusal
	canceled atomic.Bool
	errMu    sync.Mutex
}

// piece is the part of an IO that one command carries.
type piece struct {
	cmd       Command
	io        *IO
	path      *path
	sess      *Session
	want      int   // bytes a read must bring
	attempt   int   // refusals so far
	limited   int   // of those, the ones that count against maxLimited
	notBefore int64 // parked until then, monotonic ns; 0: until a path serves
	lastErr   error
}

// Submit starts a request. It returns an error, and does not call Done, when the request is not
// valid or the device is closed.
func (d *Device) Submit(io *IO) error {
	g := d.geo.Load()
	n := io.Len
	if io.Op == OpRead || io.Op == OpWrite {
		n = int64(len(io.Buf))
	}
	switch {
	case io.Done == nil:
		return errors.New("initiator: the IO has no Done function")
	case io.Op < OpRead || io.Op > OpWriteZeroes:
		return fmt.Errorf("initiator: unknown operation %d", io.Op)
	case io.Op == OpDiscard && g.maxUnmap == 0:
		return fmt.Errorf("initiator: discard: %w", ErrNotSupported)
	}
	if io.Op == OpFlush {
		n = 0
	} else if err := g.check(io.Off, n); err != nil {
		return err
	}
	io.d, io.Err = d, nil
	io.deadline.Store(0)
	io.canceled.Store(false)
	if err := d.enter(); err != nil {
		return err
	}
	step := d.stepOf(io, g)
	if n <= step {
		io.left.Store(1)
		io.first.prepare(io, g, 0, n)
		d.dispatch(&io.first)
		return nil
	}
	count := (n + step - 1) / step
	io.left.Store(int32(count))
	for at := int64(0); at < n; at += step {
		p := &piece{}
		p.prepare(io, g, at, min(step, n-at))
		d.dispatch(p)
	}
	return nil
}

func (d *Device) stepOf(io *IO, g *geometry) int64 {
	switch io.Op {
	case OpDiscard:
		return g.maxUnmap
	case OpWriteZeroes:
		return g.maxSame
	}
	return int64(g.maxTransfer)
}

// prepare builds the command for bytes [at, at+n) of the request.
func (p *piece) prepare(io *IO, g *geometry, at, n int64) {
	p.io, p.attempt, p.limited, p.notBefore, p.lastErr, p.want = io, 0, 0, 0, nil, 0
	c := &p.cmd
	c.LUN, c.User, c.Done, c.In, c.Out = io.d.cfg.LUN, p, pieceDone, nil, nil
	lba, blocks := uint64(io.Off+at)/uint64(g.blockSize), uint32(n/int64(g.blockSize))
	switch io.Op {
	case OpRead:
		c.CDB = cdbBlocks(opRead16, 0, lba, blocks)
		c.In, p.want = io.Buf[at:at+n], int(n)
	case OpWrite:
		var flags byte
		if io.FUA {
			flags = fuaBit
		}
		c.CDB = cdbBlocks(opWrite16, flags, lba, blocks)
		c.Out = io.Buf[at : at+n]
	case OpFlush:
		c.CDB = cdbBlocks(opSyncCache16, 0, 0, 0)
	case OpDiscard:
		c.Out = unmapParams([]unmapDescriptor{{lba, blocks}})
		c.CDB = cdbUnmap(len(c.Out))
	case OpWriteZeroes:
		if blocks == 0 { // WRITE SAME of zero blocks would mean: to the end
			c.CDB, c.Out = [16]byte{opTestUnitReady}, nil
			return
		}
		var flags byte
		if io.MayUnmap {
			flags = unmapBit
		}
		c.CDB = cdbBlocks(opWriteSame16, flags, lba, blocks)
		c.Out = io.d.zeroes[:g.blockSize]
	}
}

// finish ends a piece, and the request with its last one. The first error wins.
func (p *piece) finish(err error) {
	io := p.io
	if err != nil {
		io.errMu.Lock()
		if io.Err == nil {
			io.Err = err
		}
		io.errMu.Unlock()
	}
	p.path, p.sess = nil, nil
	if io.left.Add(-1) == 0 {
		d := io.d
		io.Done(io)
		d.leave()
	}
}

// wait runs a request to its end; a context that ends earlier aborts it, and wait still returns
// only when the buffers are free.
func (d *Device) wait(ctx context.Context, io *IO) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	io.Done = func(*IO) { close(done) }
	if err := d.Submit(io); err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		d.cancel(io, context.Cause(ctx))
		<-done
	}
	return io.Err
}

// ReadAt reads len(p) bytes at off; both must be multiples of the block size. It is all or nothing.
func (d *Device) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := d.wait(ctx, &IO{Op: OpRead, Off: off, Buf: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt writes p at off; both must be multiples of the block size. After an error any part may
// have been written.
func (d *Device) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := d.wait(ctx, &IO{Op: OpWrite, Off: off, Buf: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush makes every write that has returned durable.
func (d *Device) Flush(ctx context.Context) error { return d.wait(ctx, &IO{Op: OpFlush}) }

// Discard tells the target that the range is unused (UNMAP). Thin units free its space.
func (d *Device) Discard(ctx context.Context, off, n int64) error {
	return d.wait(ctx, &IO{Op: OpDiscard, Off: off, Len: n})
}

// WriteZeroes makes the range read as zeroes (WRITE SAME); mayUnmap allows the target to free its
// space.
func (d *Device) WriteZeroes(ctx context.Context, off, n int64, mayUnmap bool) error {
	return d.wait(ctx, &IO{Op: OpWriteZeroes, Off: off, Len: n, MayUnmap: mayUnmap})
}
