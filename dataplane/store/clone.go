package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Progress is called with how many bytes a copy has done, of how many; holes count as done. A
// reflink reports once.
type Progress func(done, total int64)

// copyChunk is how much is copied between two looks at the context, in bytes.
const copyChunk = 1 << 20

// Snapshot makes a point-in-time copy of a LUN, durably, that is born at an index of the log. The
// caller keeps writes to the LUN away meanwhile (R14). What has the name of the snapshot already
// counts for nothing (makeWay). progress may be nil.
func (v *BackingVolume) Snapshot(ctx context.Context, lun, snapshot string, born uint64, progress Progress) error {
	src, err := v.OpenLUN(lun)
	if err != nil {
		return err
	}
	defer src.Close()
	size, err := src.Size()
	if err != nil {
		return err
	}
	return v.clone(ctx, src, kindSnapshot, snapshot, size, born, progress)
}

// CloneFromSnapshot makes a LUN of size bytes from a snapshot, size being at least the snapshot's;
// what is beyond reads as zero. It is otherwise as Snapshot.
func (v *BackingVolume) CloneFromSnapshot(ctx context.Context, snapshot, lun string, size int64, born uint64, progress Progress) error {
	src, err := v.OpenSnapshot(snapshot)
	if err != nil {
		return err
	}
	defer src.Close()
	return v.clone(ctx, src, kindLUN, lun, size, born, progress)
}

// CloneLUN is CloneFromSnapshot from a LUN, to which the caller keeps writes away meanwhile.
func (v *BackingVolume) CloneLUN(ctx context.Context, srcLUN, lun string, size int64, born uint64, progress Progress) error {
	if srcLUN == lun {
		return fmt.Errorf("clone of LUN %s into itself: %w", lun, ErrOccupied)
	}
	src, err := v.OpenLUN(srcLUN)
	if err != nil {
		return err
	}
	defer src.Close()
	return v.clone(ctx, src, kindLUN, lun, size, born, progress)
}

func (v *BackingVolume) clone(ctx context.Context, src *File, k kind, id string, size int64, born uint64, progress Progress) error {
	full, rel, err := v.path(k, id)
	if err != nil {
		return err
	}
	if progress == nil {
		progress = func(int64, int64) {}
	}
	from, err := src.Size()
	if err != nil {
		return err
	}
	if size < from {
		return fmt.Errorf("clone of %d bytes into %d: %w", from, size, ErrShrink)
	}
	if err := v.s.Failed(); err != nil {
		return err // a copy of what is not trusted would look trusted
	}
	if err := v.s.fault(FaultClone, rel, 0, size); err != nil {
		return classify("clone", rel, err)
	}
	// At once, and not only before the copy gets its name: it may need the space.
	v.objects.Lock()
	err = v.makeWay(k, id, full, rel)
	v.objects.Unlock()
	if err != nil {
		return err
	}
	// A name of its own for each attempt: a copy runs without the lock, and two may run for one
	// uuid.
	dst, err := os.CreateTemp(v.folder(k), id+"-*"+tmpSuffix)
	if err != nil {
		return classify("clone", rel, err)
	}
	var parts *spreadCopy
	if len(v.members) == 0 {
		err = v.fill(ctx, src, dst, from, size, progress)
	} else {
		parts, err = v.fillSpread(ctx, src, dst, k, id, from, size, progress)
	}
	if err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	defer parts.drop()
	if err := v.bear(dst, rel, born); err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	copied, err := v.cloneSums(ctx, src, k, id, filepath.Base(dst.Name()), size)
	if err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	defer copied.drop()
	v.objects.Lock()
	defer v.objects.Unlock()
	if err := v.makeWay(k, id, full, rel); err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	if err := errors.Join(copied.publish(), parts.publish()); err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	return v.publish(dst, dst.Name(), full, rel)
}

func (v *BackingVolume) fill(ctx context.Context, src *File, dst *os.File, from, size int64, progress Progress) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	if v.reflink {
		err := src.control(func(fd int) error { return unix.IoctlFileClone(int(dst.Fd()), fd) })
		if err != nil {
			return classify("clone", src.path, err)
		}
	} else if err := copySparse(ctx, src, dst, from, size, progress); err != nil {
		return err
	}
	if err := dst.Truncate(size); err != nil {
		return classify("clone", src.path, err)
	}
	progress(size, size)
	return nil
}

// copySparse copies the data runs of src; what it does not write stays a hole. Nothing is checked:
// what is rotten stays so, and the checksums, which are copied as they are, say so of the copy too.
func copySparse(ctx context.Context, src *File, dst *os.File, from, total int64, progress Progress) error {
	buf := make([]byte, copyChunk)
	for off := int64(0); off < from; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("clone: %w", err)
		}
		run, data, err := src.Extents(off, from-off)
		if err != nil {
			return err
		}
		if data {
			run = min(run, copyChunk)
			if err := src.readRaw(buf[:run], off); err != nil {
				return err
			}
			if _, err := dst.WriteAt(buf[:run], off); err != nil {
				return classify("clone", src.path, err)
			}
		}
		off += run
		progress(off, total)
	}
	return nil
}
