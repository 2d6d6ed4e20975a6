package sums

// Cached reports whether Put of n blocks from first on waits for no disk: their pages are in the
// cache, or are replaced as a whole. That may change a moment later.
func (f *File) Cached(first, n int64) bool {
	if f.inside(first, n) != nil {
		return true // Put will say why not
	}
	for n > 0 {
		at := first % pageSums
		k := min(n, pageSums-at)
		key := key{f, first / pageSums}
		s := f.c.shard(key)
		s.mu.Lock()
		p := s.pages[key]
		there := p != nil && p.loading == nil
		s.mu.Unlock()
		if !there && (p != nil || k < pageSums) {
			return false
		}
		first, n = first+k, n-k
	}
	return true
}
