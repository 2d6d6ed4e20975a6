package store

// ReadAhead brings len(p) bytes from off into the page cache, and returns when they are there; p is
// scratch memory, undefined after. It is for reads that are expected: it looks at no checksums, so
// that nothing is found or healed by it, and needs no lock of the range. True: they were in the
// page cache already, or the filesystem is in memory, and the disk had nothing to do.
func (f *File) ReadAhead(p []byte, off int64) (cached bool, err error) {
	if f.places == nil && f.probing == probeMemory || f.cachedRaw(p, off) {
		return true, nil
	}
	// All at once, else the kernel reads in steps of its own and waits after each. Where it cannot,
	// the read does it.
	f.willNeed(off, int64(len(p)))
	return false, f.readRaw(p, off)
}
