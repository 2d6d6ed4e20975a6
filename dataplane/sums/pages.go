package sums

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// page finds a page of the file, and returns it with its shard locked. If it is not in the cache it
// is read when wait says so, and else it is nil.
func (f *File) page(n int64, wait bool) (*shard, *page, error) {
	k := key{f, n}
	s := f.c.shard(k)
	missed := false
	for {
		s.mu.Lock()
		p := s.pages[k]
		switch {
		case p != nil && p.loading == nil:
			p.used.Store(true)
			if !missed {
				f.c.hits.Add(1)
			}
			f.atlas.keep(p)
			return s, p, nil
		case !wait:
			s.mu.Unlock()
			f.c.misses.Add(1)
			return nil, nil, nil
		}
		if !missed {
			missed = true
			f.c.misses.Add(1)
		}
		if p != nil {
			c := p.loading
			s.mu.Unlock()
			<-c
			continue
		}
		p = &page{key: k, loading: make(chan struct{})}
		f.c.add(s, p)
		s.mu.Unlock()
		if err := f.load(s, p); err != nil {
			return nil, nil, err
		}
	}
}

// load reads a page that is in the cache as one that is loading.
func (f *File) load(s *shard, p *page) error {
	var sums [pageSums]Sum
	var raw [pageSize]byte
	n, err := f.m.ReadAt(raw[:], pageOffset(p.n))
	for i := n - n%sectorSize; i < pageSize; i++ { // what is cut off or cannot be read does not check
		raw[i] = 0xff
	}
	lost := f.head.seed.decode(raw[:], p.n, &sums)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(p.loading)
	p.loading = nil
	switch {
	case errors.Is(err, os.ErrClosed):
		f.c.drop(s, p)
		return f.fail(ErrClosed)
	case p.stale: // it was read while it became zero
		p.stale = false
	default:
		p.sums = sums
		f.c.lost.Add(uint64(lost))
	}
	return nil
}

// blank is page for one that is about to be changed as a whole: it is not read.
func (f *File) blank(n int64, _ bool) (*shard, *page, error) {
	k := key{f, n}
	s := f.c.shard(k)
	s.mu.Lock()
	p := s.pages[k]
	if p == nil {
		p = &page{key: k}
		f.c.add(s, p)
	}
	if p.loading == nil {
		return s, p, nil
	}
	s.mu.Unlock()
	return f.page(n, true)
}

// touched says that a page differs from what the file has. The lock of its shard is held.
func (f *File) touched(p *page) {
	if p.dirty {
		return
	}
	p.dirty = true
	f.c.dirty.Add(1)
	f.mu.Lock()
	f.dirty[p.n] = struct{}{}
	f.mu.Unlock()
}

func (f *File) dirtyPages() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.dirty)
}

// pageOffset is where a page lies in the file: after the header.
func pageOffset(n int64) int64 { return (n + 1) * pageSize }

// fileSize is how long a file with checksums of so many blocks is.
func fileSize(blocks int64) int64 { return pageOffset((blocks + pageSums - 1) / pageSums) }

// writeOut writes all that has changed to the file, and does not flush it.
func (f *File) writeOut() error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	return f.writeOutLocked()
}

func (f *File) writeOutLocked() error {
	f.mu.Lock()
	list := slices.Sorted(maps.Keys(f.dirty))
	f.mu.Unlock()
	for _, n := range list {
		if p := f.failed.Load(); p != nil {
			return *p
		}
		if err := f.writePage(n); full(err) {
			return fmt.Errorf("%s: write: %w", f.path, err)
		} else if err != nil {
			return f.fail(fmt.Errorf("write: %w", err))
		}
	}
	return nil
}

// writePage writes a page that has changed. flushing is held.
func (f *File) writePage(n int64) error {
	k := key{f, n}
	s := f.c.shard(k)
	s.mu.Lock()
	p := s.pages[k]
	if p == nil || !p.dirty { // it became zero meanwhile
		s.mu.Unlock()
		return nil
	}
	sums := p.sums
	f.clean(p)
	p.writing = true // keeps it in the cache: what the file has is older until the write has ended
	s.mu.Unlock()
	var raw [pageSize]byte
	f.head.seed.encode(raw[:], n, &sums)
	_, err := f.m.WriteAt(raw[:], pageOffset(n))
	s.mu.Lock()
	p.writing = false
	if full(err) {
		f.touched(p) // the file has what it had, or a part of the page
	}
	s.mu.Unlock()
	return err
}

// clean says that a page no longer differs from the file, or is about to be written there. The lock
// of its shard is held.
func (f *File) clean(p *page) {
	p.dirty = false
	f.c.dirty.Add(-1)
	f.mu.Lock()
	delete(f.dirty, p.n)
	f.behind = true
	f.mu.Unlock()
}

// Unflushed reports whether there is a change that a Flush would write or make durable.
func (f *File) Unflushed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.dirty) > 0 || f.behind
}

// Flush returns when all that was changed before the call is durable. A failure is final (R12), but
// for one: a write that finds no space (ENOSPC, EDQUOT) leaves what was changed in memory, and the
// next Flush tries again. No space for what was written already, which only the flush of the file
// tells, is final: it is unknown what of it is lost.
func (f *File) Flush() error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	return f.flushLocked()
}

func (f *File) flushLocked() error {
	if p := f.failed.Load(); p != nil {
		return *p
	}
	if err := f.writeOutLocked(); err != nil {
		return err
	}
	f.mu.Lock()
	behind := f.behind
	f.behind = false
	f.mu.Unlock()
	if !behind {
		return nil
	}
	if err := f.m.Sync(); err != nil {
		return f.fail(fmt.Errorf("flush: %w", err))
	}
	return nil
}
