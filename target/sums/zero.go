package sums

import "fmt"

// punchPages is from how many whole pages on it is cheaper to cut a hole into the file than to
// change pages in memory.
const punchPages = 16

// Zero says of n blocks that they are zero, as after a discard. It may wait for the disk.
func (f *File) Zero(first, n int64) error {
	if err := f.inside(first, n); err != nil {
		return err
	}
	zero := func(_ int64, sums []Sum) { clear(sums) }
	from, to := (first+pageSums-1)/pageSums, (first+n)/pageSums // whole pages
	if to-from < punchPages || f.known.Load() < to*pageSums {
		return f.change(first, n, zero)
	}
	if err := f.punch(from, to); err != nil {
		return err
	}
	if err := f.change(first, from*pageSums-first, zero); err != nil {
		return err
	}
	return f.change(to*pageSums, first+n-to*pageSums, zero)
}

// punch makes pages zero, in the file and in the cache. No write-out is under way meanwhile: it
// could put back what was there. A page that is being read may have been read before: stale says
// so.
func (f *File) punch(from, to int64) error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if err := f.m.Punch(pageOffset(from), (to-from)*pageSize); err != nil {
		return f.fail(fmt.Errorf("cut a hole: %w", err))
	}
	for n := from; n < to; n++ {
		k := key{f, n}
		s := f.c.shard(k)
		s.mu.Lock()
		if p := s.pages[k]; p != nil {
			clear(p.sums[:])
			p.stale = p.loading != nil
			if p.dirty {
				f.clean(p)
			}
		}
		s.mu.Unlock()
	}
	f.mu.Lock()
	f.behind = true
	f.mu.Unlock()
	return nil
}
