package sums

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gemel-storage/gemel/internal/longlock"
)

// Errors that callers decide by.
var (
	// ErrRange: the blocks asked for are outside the LUN.
	ErrRange = errors.New("the blocks are outside of the checksum file")
	// ErrClosed: the file was closed.
	ErrClosed = errors.New("the checksum file is closed")
)

// medium is where a file is kept. Sync makes what was written and zeroed before durable. Keep
// leaves the range with space of its own, where the filesystem can; Zero gives it back.
type medium interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Extend(size int64) error
	Keep(off, length int64) error
	Zero(off, length int64) error
	Close() error
}

// File is an open file of checksums. Methods are safe for concurrent use, with what the package
// asks of callers. Blocks are counted from 0.
type File struct {
	c      *Cache
	path   string
	m      medium
	head   header // but for adopted, which is below
	blocks atomic.Int64
	known  atomic.Int64 // header.adopted
	failed atomic.Pointer[error]
	atlas  atlas

	mu     sync.Mutex
	dirty  map[int64]struct{} // pages
	behind bool               // something written is not flushed
	kept   map[int64]struct{} // chunks that have space (reserve.go)

	flushing longlock.Mutex // one write-out at a time, so that an older content never follows a younger one
}

// Fault is a block that does not match its checksum.
type Fault struct {
	Block int64
	// Want is its checksum: Bad if its content is known to be lost, Unknown if nothing is known of
	// it.
	Want Sum
}

// Blocks is how many blocks have a checksum.
func (f *File) Blocks() int64 { return f.blocks.Load() }

// Adopted is the block up to which checksums are known since the file was created; AllAdopted if
// all are.
func (f *File) Adopted() int64 { return f.known.Load() }

// AllAdopted is what Adopted says of a LUN that had checksums from its beginning, or has got all of
// them.
const AllAdopted = math.MaxInt64

// sumsChunk is how many checksums are handled between two looks at the cache.
const sumsChunk = 256

// Check compares data, whole blocks from block first on, with their checksums. The last block of
// the LUN may be shorter. It may wait for the disk. It returns what is wrong, nothing most of the
// time.
func (f *File) Check(first int64, data []byte) (faults []Fault, err error) {
	_, faults, err = f.check(first, data, true)
	return faults, err
}

// CheckCached is Check that does not wait. ok reports that all blocks match; known is false if
// checksums are missing in the cache.
func (f *File) CheckCached(first int64, data []byte) (ok, known bool) {
	known, faults, err := f.check(first, data, false)
	return known && err == nil && len(faults) == 0, known && err == nil
}

func (f *File) check(first int64, data []byte, wait bool) (known bool, faults []Fault, err error) {
	n := Blocks(int64(len(data)))
	if err := f.inside(first, n); err != nil {
		return false, nil, err
	}
	for n > 0 {
		k := min(n, sumsChunk, pageSums-first%pageSums)
		part := data[:min(k*BlockSize, int64(len(data)))]
		if !f.Matches(f.Expect(first), first, part) {
			known, found, err := f.compare(first, part, wait)
			if !known {
				return false, nil, err
			}
			faults = append(faults, found...)
		}
		data = data[len(part):]
		first, n = first+k, n-k
	}
	return true, faults, nil
}

// compare is check for at most sumsChunk blocks whose checksums are in one page.
func (f *File) compare(first int64, data []byte, wait bool) (known bool, faults []Fault, err error) {
	var list [sumsChunk]Sum
	is := list[:0]
	for len(data) > 0 {
		block := data[:min(BlockSize, len(data))]
		is, data = append(is, Of(block)), data[len(block):]
	}
	s, p, err := f.page(first/pageSums, wait)
	if p == nil {
		return false, nil, err
	}
	defer s.mu.Unlock()
	for i, w := range p.sums[first%pageSums:][:len(is)] {
		if w = f.told(first+int64(i), w); w != is[i] {
			faults = append(faults, Fault{first + int64(i), w})
		}
	}
	return true, faults, nil
}

// told is what checksum x of a block means: beyond what is adopted, zero is what is found where
// nothing was ever put.
func (f *File) told(block int64, x Sum) Sum {
	if x == 0 && block >= f.known.Load() {
		return Unknown
	}
	return x
}

// Get fills to with the checksums from block first on. It may wait for the disk.
func (f *File) Get(first int64, to []Sum) error {
	if err := f.inside(first, int64(len(to))); err != nil {
		return err
	}
	return f.each(first, int64(len(to)), false, func(p *page, at, n int64) {
		for i, x := range p.sums[at%pageSums:][:n] {
			to[at-first+int64(i)] = f.told(at+int64(i), x)
		}
	})
}

// Put sets the checksums of whole blocks from block first on to those of data. The last block of
// the LUN may be shorter. It may wait for the disk.
func (f *File) Put(first int64, data []byte) error {
	n := Blocks(int64(len(data)))
	if err := f.inside(first, n); err != nil {
		return err
	}
	var list [sumsChunk]Sum
	for n > 0 {
		k := min(n, sumsChunk)
		for i := range k {
			list[i] = Of(data[:min(BlockSize, len(data))])
			data = data[min(BlockSize, len(data)):]
		}
		if err := f.Set(first, list[:k]); err != nil {
			return err
		}
		first, n = first+k, n-k
	}
	return nil
}

// Set sets the checksums of the blocks from first on to list. It may wait for the disk.
func (f *File) Set(first int64, list []Sum) error {
	return f.change(first, int64(len(list)), func(block int64, _ Sum) Sum { return list[block-first] })
}

// SetBad marks the content of n blocks as lost. It may wait for the disk.
func (f *File) SetBad(first, n int64) error {
	return f.change(first, n, func(int64, Sum) Sum { return Bad })
}

// change gives n blocks from first on the checksums that fn makes of those that they have.
func (f *File) change(first, n int64, fn func(block int64, is Sum) Sum) error {
	if err := f.inside(first, n); err != nil {
		return err
	}
	err := f.each(first, n, true, func(p *page, at, n int64) {
		for i := range n {
			slot := (at + i) % pageSums
			p.store(slot, fn(at+i, p.sums[slot]))
		}
		f.touched(p)
	})
	f.c.relieve()
	return err
}

// each calls fn for n blocks from first on, a page's at a time, under the lock of its shard.
// changes says that fn changes all of them; a page that is changed as a whole is not read.
func (f *File) each(first, n int64, changes bool, fn func(p *page, at, n int64)) error {
	for n > 0 {
		k := min(n, pageSums-first%pageSums)
		get := f.page
		if changes && k == pageSums {
			get = f.blank
		}
		s, p, err := get(first/pageSums, true)
		if err != nil {
			return err
		}
		fn(p, first, k)
		s.mu.Unlock()
		first, n = first+k, n-k
	}
	return nil
}

// inside fails with ErrRange, or with what has made the file useless.
func (f *File) inside(first, n int64) error {
	if p := f.failed.Load(); p != nil {
		return *p
	}
	if b := f.blocks.Load(); first < 0 || n < 0 || first > b-n {
		return fmt.Errorf("%s: %w: blocks %d to %d of %d", f.path, ErrRange, first, first+n, b)
	}
	return nil
}

// Failed is the error that made the file useless, nil if there is none. ErrClosed is one of
// them.
func (f *File) Failed() error {
	if p := f.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// fail makes err the answer to everything from now on.
func (f *File) fail(err error) error {
	err = fmt.Errorf("%s: %w", f.path, err)
	if f.failed.CompareAndSwap(nil, &err) && f.c.Hooks.Failed != nil && !errors.Is(err, ErrClosed) {
		f.c.Hooks.Failed(err)
	}
	return *f.failed.Load()
}

// full says that an error is a lack of space, which is not final where something is only written:
// what has changed stays in memory.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
