package sums

import "fmt"

// zeroPages is from how many whole pages on it is cheaper to cut a hole into the file than to
// change them in memory.
const zeroPages = 16

// Zero records that n blocks are zero, as after a discard. It may wait for the disk.
func (f *File) Zero(first, n int64) error {
	if err := f.inside(first, n); err != nil {
		return err
	}
	zero := func(int64, Sum) Sum { return 0 }
	from, to := (first+pageSums-1)/pageSums, (first+n)/pageSums // whole pages
	if to-from < zeroPages || f.known.Load() < to*pageSums {
		return f.change(first, n, zero)
	}
	if err := f.zeroFile(from, to); full(err) { // what became zero in the file is made so in memory, too
		return f.change(first, n, zero)
	} else if err != nil {
		return err
	}
	if err := f.change(first, from*pageSums-first, zero); err != nil {
		return err
	}
	return f.change(to*pageSums, first+n-to*pageSums, zero)
}

// zeroFile makes pages zero, in the file and in the cache. No write-out is under way meanwhile: it
// could put back what was there. A page that is being read may have been read before: stale says
// so.
func (f *File) zeroFile(from, to int64) error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if err := f.m.Zero(pageOffset(from), (to-from)*pageSize); full(err) {
		return err
	} else if err != nil {
		return f.fail(fmt.Errorf("zero a range: %w", err))
	}
	for n := from; n < to; n++ {
		k := key{f, n}
		s := f.c.shard(k)
		s.mu.Lock()
		if p := s.pages[k]; p != nil {
			for i := range int64(pageSums) {
				p.store(i, 0)
			}
			p.stale = p.loading != nil
			if p.dirty {
				f.clean(p)
			}
		}
		s.mu.Unlock()
	}
	f.mu.Lock()
	f.behind = true
	for c := from / keepPages; c*keepPages < to; c++ { // who writes there next asks again
		delete(f.kept, c)
	}
	f.mu.Unlock()
	return nil
}
