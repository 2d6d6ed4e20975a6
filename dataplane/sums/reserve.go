package sums

// keepPages is for how many pages space is kept at once: 64 KiB, the checksums of 63 MiB.
const keepPages = 16

// Reserve has space kept for the checksums of n blocks from first on, before the blocks are written
// (R13): a backing volume that is full refuses the write then, and not, later, its checksums. The
// file as a whole would be a thousandth of what LUNs are promised, not of what they hold. ENOSPC or
// EDQUOT. What is shared with a clone has no space of its own all the same; see Flush.
func (f *File) Reserve(first, n int64) error {
	if n <= 0 || f.inside(first, n) != nil {
		return nil // Put will say why not
	}
	last := (first + n - 1) / pageSums / keepPages
	for c := first / pageSums / keepPages; c <= last; c++ {
		f.mu.Lock()
		_, has := f.kept[c]
		f.mu.Unlock()
		if has {
			continue
		}
		off := pageOffset(c * keepPages)
		if err := f.m.Keep(off, min(keepPages*pageSize, fileSize(f.blocks.Load())-off)); full(err) {
			return err
		} else if err != nil {
			return f.fail(err)
		}
		f.mu.Lock()
		if f.kept == nil {
			f.kept = map[int64]struct{}{}
		}
		f.kept[c] = struct{}{}
		f.mu.Unlock()
	}
	return nil
}

// Reserved reports that Reserve of the same blocks has nothing to do any more.
func (f *File) Reserved(first, n int64) bool {
	if n <= 0 || f.inside(first, n) != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for c, last := first/pageSums/keepPages, (first+n-1)/pageSums/keepPages; c <= last; c++ {
		if _, has := f.kept[c]; !has {
			return false
		}
	}
	return true
}
