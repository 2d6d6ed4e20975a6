package store

import "github.com/gemel-storage/gemel/dataplane/sums"

// Prompt says whether WriteAt of a range waits for no read of the disk: its checksums are in
// memory, what it changes of a block in part is in the page cache, and no copy has to have its
// pieces first. It may be otherwise a moment later, which costs a wait. A write that misses begins
// to read, as ReadCached does.
func (f *File) Prompt(off, length int64) bool {
	for _, c := range [2]*Copy{f.out.Load(), f.in.Load()} {
		if c != nil && !c.has(off, length) {
			return false
		}
	}
	o := f.obj
	if o == nil || length <= 0 {
		return true
	}
	first := off / sumBlock
	if !o.sums.Cached(first, sums.Blocks(off+length)-first) {
		return false
	}
	if (off|length)%sumBlock == 0 {
		return true
	}
	for _, at := range [2]int64{off, off + length - 1} { // the blocks at the ends
		from, n, err := f.blockAt(at)
		if err != nil || from >= off && from+n <= off+length {
			continue
		}
		buf := buffers.Get().(*[sumBlock]byte)
		there := f.cachedRaw(buf[:n], from)
		buffers.Put(buf)
		if !there {
			return false
		}
	}
	return true
}
