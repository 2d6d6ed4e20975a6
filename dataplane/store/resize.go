package store

import (
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/sums"
)

// ResizeLUN grows a LUN of from bytes to size, durably; the new part reads as zero, also where the
// file is longer than the LUN already: a crash came before the LUN was said to be longer, or
// another program has appended to it. It never becomes shorter. With from equal to size it only
// sees to it that the file is that long; a size below from is ErrShrink. Open Files see the new
// size.
func (v *BackingVolume) ResizeLUN(id string, from, size int64) error {
	v.objects.Lock()
	defer v.objects.Unlock()
	f, err := v.OpenLUN(id)
	if err != nil {
		return err
	}
	defer f.Close()
	now, err := f.Size()
	if err != nil {
		return err
	}
	if size < from {
		return fmt.Errorf("resize LUN %s from %d to %d bytes: %w", id, from, size, ErrShrink)
	}
	if want := max(size, now); want > now || from < min(now, size) {
		if err := f.beforeWrite(FaultTruncate, now, want); err != nil {
			return err
		}
		if f.obj != nil { // first: what is longer than its checksums cannot be written
			if err := f.obj.sums.Grow(want); err != nil {
				return f.writeError("resize", err)
			}
		}
		if from < min(now, size) {
			if err := f.cut(now, from); err != nil {
				return err
			}
			now = from
		}
		if err := f.truncate(now, want); err != nil {
			return f.writeError("resize", err)
		}
		if f.obj != nil {
			f.obj.size.Store(want)
		}
	}
	return f.Sync() // also when the size is right: an earlier call may have been cut short before this
}

// cut removes what a file has from an offset on, in a range that no caller reads or writes. The
// checksums come first, durably: those of what was there would be wrong for what comes after it.
// The block that the cut goes through has that of its first part.
func (f *File) cut(now, from int64) error {
	if o := f.obj; o != nil {
		o.adopting.share()
		defer o.adopting.unshare()
		first := sums.Blocks(from)
		if n := o.sums.Blocks() - first; n > 0 {
			err := o.sums.Zero(first, n)
			if err == nil {
				err = o.sums.Flush()
			}
			if err != nil {
				return f.sumsError("resize", err)
			}
			o.doubt.clear(first, n)
		}
	}
	if err := f.truncate(now, from); err != nil {
		return f.writeError("resize", err)
	}
	return nil
}
