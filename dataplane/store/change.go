package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

// changeOp is what is done to a range of a file.
type changeOp uint8

const (
	opWrite changeOp = iota
	opDurable
	opDiscard
)

func (f *File) changeRaw(op changeOp, p []byte, off, length int64) error {
	if op == opDiscard {
		return f.discardRaw(off, length)
	}
	return f.writeRaw(p, off)
}

// change does it and keeps the checksums: data first, so that a checksum that is younger than its
// block is never durable before the write-intent bit of the write is.
func (f *File) change(op changeOp, p []byte, off, length int64) error {
	return f.changeBy(op, p, off, length, nil)
}

// changeBy is change that by does, if it is not nil.
func (f *File) changeBy(op changeOp, p []byte, off, length int64, by func() error) error {
	do := func() error {
		if by != nil {
			return by()
		}
		return f.changeRaw(op, p, off, length)
	}
	if c := f.out.Load(); c != nil {
		c.keep(off, length)
	}
	if c := f.in.Load(); c != nil {
		if err := c.need(off, length); err != nil {
			return err
		}
	}
	if f.obj == nil || length == 0 {
		return do()
	}
	o := f.obj
	if off < 0 || length < 0 || sums.Blocks(off+length) > o.sums.Blocks() {
		return fmt.Errorf("write %s at %d+%d: %w", f.path, off, length, ErrRange)
	}
	if op != opDiscard {
		first := off / sumBlock
		if err := o.sums.Reserve(first, sums.Blocks(off+length)-first); err != nil {
			return f.sumsError("write", err)
		}
	}
	if o.sums.Adopted() != sums.AllAdopted {
		o.adopting.share()
		defer o.adopting.unshare()
	}
	c := changed{p: p, off: off, end: off + length, from: off, to: off + length}
	if (off|length)%sumBlock != 0 {
		if err := f.s.Failed(); err != nil {
			return err // as the write would say, which a block that cannot be read may come before
		}
		defer c.free()
		if err := f.readEdges(&c); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		f.afterFailure(&c)
		return err
	}
	return f.sumsError("write", f.putSums(&c))
}

// changed is a range that is changed: whole blocks, and up to two that are changed in part.
type changed struct {
	p        []byte // nil: zeroes
	off, end int64
	from, to int64 // the whole blocks, none if from >= to
	edges    [2]edge
	n        int // edges
}

// edge is a block that is changed in part.
type edge struct {
	buf     *[sumBlock]byte // as it was before
	off     int64
	length  int64
	good    bool // it was what was written
	unknown bool // it is not known whether it was
}

func (c *changed) free() {
	for _, e := range c.edges[:c.n] {
		buffers.Put(e.buf)
	}
}

// after is what an edge is like when it was changed.
func (c *changed) after(e *edge) []byte {
	lo, hi := max(e.off, c.off), min(e.off+e.length, c.end)
	if c.p == nil {
		clear(e.buf[lo-e.off : hi-e.off])
	} else {
		copy(e.buf[lo-e.off:], c.p[lo-c.off:hi-c.off])
	}
	return e.buf[:e.length]
}

// readEdges reads the blocks that are about to be changed in part.
func (f *File) readEdges(c *changed) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	const in = sumBlock - 1
	if c.from = (c.off + in) &^ in; c.off&in != 0 {
		if err := f.readEdge(c, c.off&^in, size); err != nil {
			return err
		}
	}
	if c.end == size || c.end&in == 0 {
		return nil
	}
	if c.to = c.end &^ in; c.to >= c.from {
		return f.readEdge(c, c.to, size)
	}
	return nil
}

func (f *File) readEdge(c *changed, at, size int64) error {
	length := min(sumBlock, size-at)
	if length <= 0 {
		return fmt.Errorf("write %s at %d of %d: %w", f.path, c.off, size, ErrRange)
	}
	e := &c.edges[c.n]
	*e = edge{buf: buffers.Get().(*[sumBlock]byte), off: at, length: length}
	c.n++
	if !f.cachedRaw(e.buf[:length], at) {
		if err := f.readRaw(e.buf[:length], at); errors.Is(err, ErrMedia) {
			return nil // the block is lost; the write itself will say what it thinks of that
		} else if err != nil {
			return err
		}
	}
	faults, err := f.obj.sums.Check(at/sumBlock, e.buf[:length])
	if err != nil {
		return f.sumsError("write", err)
	}
	e.good = len(faults) == 0 || f.obj.accepts(faults[0])
	e.unknown = !e.good && faults[0].Want == sums.Unknown
	return nil
}

// putSums makes the checksums those of what was written. A block of which a part was lost is still
// lost when the other part was written, and one of which nothing is known stays so.
func (f *File) putSums(c *changed) (err error) {
	o := f.obj
	for i := range c.edges[:c.n] {
		switch e := &c.edges[i]; {
		case e.good:
			err = o.sums.Put(e.off/sumBlock, c.after(e))
		case !e.unknown:
			err = o.sums.SetBad(e.off/sumBlock, 1)
		}
		if err != nil {
			return err
		}
	}
	if c.from < c.to {
		if c.p == nil {
			err = o.sums.Zero(c.from/sumBlock, sums.Blocks(c.to-c.from))
		} else {
			err = o.sums.Put(c.from/sumBlock, c.p[c.from-c.off:c.to-c.off])
		}
	}
	if err == nil && o.doubt.blocks() > 0 {
		first := c.off / sumBlock
		o.doubt.clear(first, sums.Blocks(c.end)-first)
	}
	return err
}

// afterFailure looks at what a change has come to that found no space. Each block is as it was, or
// as it was to become, or has a part of both: then it is unknown whether the rest is what was
// written before, and the block is Bad. In a store that has failed checksums do not count any more.
func (f *File) afterFailure(c *changed) {
	if f.s.Failed() != nil {
		return
	}
	for i := range c.edges[:c.n] {
		if e := &c.edges[i]; e.good {
			c.after(e)
		}
	}
	size, err := f.Size()
	if err != nil {
		return
	}
	first := c.off &^ (sumBlock - 1)
	end := min((c.end+sumBlock-1)&^(sumBlock-1), size)
	buf := make([]byte, max(0, min(acceptStep, end-first)))
	for at := first; at < end; {
		p := buf[:min(int64(len(buf)), end-at)]
		if f.eachReadable(p, at, func(p []byte, at int64, readable bool) error { return f.sumAsFound(c, p, at, readable) }) != nil {
			return
		}
		at += int64(len(p))
	}
}

func (f *File) sumAsFound(c *changed, p []byte, at int64, readable bool) error {
	o := f.obj
	if !readable {
		return o.sums.SetBad(at/sumBlock, sums.Blocks(int64(len(p))))
	}
	faults, err := o.sums.Check(at/sumBlock, p)
	if err != nil {
		return err
	}
	for _, x := range faults {
		block := p[x.Block*sumBlock-at:]
		block = block[:min(sumBlock, len(block))]
		switch {
		case c.became(block, x.Block*sumBlock), o.accepts(x):
			err = o.sums.Put(x.Block, block)
			o.doubt.clear(x.Block, 1)
		case x.Want != sums.Unknown:
			err = o.sums.SetBad(x.Block, 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// became says that a block is what the change was to make of it.
func (c *changed) became(block []byte, at int64) bool {
	for i := range c.edges[:c.n] {
		if e := &c.edges[i]; e.off == at {
			return e.good && bytes.Equal(block, e.buf[:e.length])
		}
	}
	if c.p == nil {
		return sums.Of(block) == 0
	}
	return bytes.Equal(block, c.p[at-c.off:][:len(block)])
}

// Heal writes whole blocks whose content was lost, as WriteAt does, and counts them; ErrRange.
func (f *File) Heal(p []byte, off int64) error {
	if err := f.wholeOnly("heal", off, int64(len(p))); err != nil {
		return err
	}
	if err := f.WriteAt(p, off); err != nil || f.obj == nil {
		return err
	}
	f.s.sums.healed.Add(uint64(sums.Blocks(int64(len(p)))))
	return nil
}

// HealVerified is Heal for content that may be older than the block was: it writes the content
// only if it matches the checksums of all blocks, and nothing otherwise. It returns ErrChecksum
// if the content does not match, or if the checksums are unknown or doubted.
func (f *File) HealVerified(p []byte, off int64) error {
	if err := f.wholeOnly("heal", off, int64(len(p))); err != nil {
		return err
	}
	if f.obj == nil {
		return checksumError(f.path, []Range{{off, int64(len(p))}})
	}
	faults, err := f.obj.sums.Check(off/sumBlock, p)
	if err != nil {
		return f.sumsError("heal", err)
	}
	if len(faults) > 0 || f.obj.doubt.any(off/sumBlock, sums.Blocks(int64(len(p)))) {
		return checksumError(f.path, []Range{{off, int64(len(p))}})
	}
	return f.Heal(p, off)
}

// SetBad marks the content of whole blocks as lost: reads of them fail their checksums until
// they are written; ErrRange.
func (f *File) SetBad(off, length int64) error {
	if err := f.wholeOnly("mark", off, length); err != nil || f.obj == nil {
		return err
	}
	o := f.obj
	o.adopting.share()
	defer o.adopting.unshare()
	err := o.sums.SetBad(off/sumBlock, sums.Blocks(length))
	if err == nil {
		o.doubt.clear(off/sumBlock, sums.Blocks(length))
	}
	return f.sumsError("mark", err)
}
