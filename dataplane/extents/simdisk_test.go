package extents

import "slices"

// disk is an image. A block is the number of the write that made it, 0 for zeroes.
type disk struct {
	w       *world
	now     map[int64]uint64   // in the page cache
	pending map[int64][]uint64 // contents since the last flush, the durable one first
	full    bool
}

func newDisk(w *world) *disk {
	return &disk{w: w, now: map[int64]uint64{}, pending: map[int64][]uint64{}}
}

func (d *disk) set(b int64, x uint64) {
	if d.now[b] == x {
		return
	}
	if d.pending[b] == nil {
		d.pending[b] = []uint64{d.now[b]}
	}
	d.pending[b] = append(d.pending[b], x)
	if d.now[b] = x; x == 0 {
		delete(d.now, b)
	}
}

func (d *disk) ReadAt(p []byte, off int64) error {
	if err := d.w.step("read", off); err != nil {
		return err
	}
	for i := 0; i < len(p); i += simBlock {
		b := (off + int64(i)) / simBlock
		put(p[i:], d.now[b])
	}
	return d.w.step("read ends", off) // what happens until then is not in what was read
}

func (d *disk) WriteAt(p []byte, off int64) error {
	if err := d.w.step("write", off); err != nil {
		return err
	}
	n := len(p)
	if d.full { // a part of it, as a disk does that becomes full
		n = d.w.r.IntN(len(p)/simBlock+1) * simBlock
	}
	for i := 0; i < n; i += simBlock {
		d.set((off+int64(i))/simBlock, get(p[i:]))
	}
	if n < len(p) {
		return errFull
	}
	return nil
}

func (d *disk) Punch(off, length int64) error {
	if err := d.w.step("punch", off); err != nil {
		return err
	}
	for _, b := range d.blocks() {
		if b >= off/simBlock && b < (off+length)/simBlock {
			d.set(b, 0)
		}
	}
	return nil
}

func (d *disk) Sync() error {
	if err := d.w.step("sync", 0); err != nil {
		return err
	}
	clear(d.pending)
	return nil
}

func (d *disk) Data(off, length int64) (run int64, data bool, err error) {
	if err := d.w.step("look", off); err != nil {
		return 0, false, err
	}
	_, data = d.now[off/simBlock]
	for run < length {
		if _, x := d.now[(off+run)/simBlock]; x != data {
			break
		}
		run += simBlock
	}
	return run, data, nil
}

func (d *disk) blocks() (list []int64) {
	for b := range d.now {
		list = append(list, b)
	}
	slices.Sort(list)
	return list
}

// crash leaves of each block what it was at one of the moments since its last flush.
func (d *disk) crash(w *world) *disk {
	x := newDisk(w)
	for b, v := range d.now {
		x.now[b] = v
	}
	var list []int64
	for b := range d.pending {
		list = append(list, b)
	}
	slices.Sort(list)
	for _, b := range list {
		if v := d.pending[b][w.r.IntN(len(d.pending[b]))]; v == 0 {
			delete(x.now, b)
		} else {
			x.now[b] = v
		}
	}
	return x
}

func put(p []byte, x uint64) {
	clear(p[:simBlock])
	for i := range 8 {
		p[i] = byte(x >> (8 * i))
	}
}

func get(p []byte) (x uint64) {
	for i := range 8 {
		x |= uint64(p[i]) << (8 * i)
	}
	return x
}
