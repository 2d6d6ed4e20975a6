package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Progress is told how many bytes of how many a copy has done; holes count as done. A reflink reports once.
type Progress func(done, total int64)

// copyChunk is how much is copied between two looks at the context, in bytes.
const copyChunk = 1 << 20

// Snapshot makes a point-in-time copy of a LUN, durably. The caller keeps writes to the LUN away meanwhile (R14).
// A snapshot with that uuid that exists is a success, whatever became of the LUN. progress may be nil.
func (s *Store) Snapshot(ctx context.Context, lun, snapshot string, progress Progress) error {
	if done, err := s.exists(kindSnapshot, snapshot, anySize); done || err != nil {
		return err
	}
	src, err := s.OpenLUN(lun)
	if err != nil {
		return err
	}
	defer src.Close()
	size, err := src.Size()
	if err != nil {
		return err
	}
	return s.clone(ctx, src, kindSnapshot, snapshot, size, progress)
}

// CloneFromSnapshot makes a LUN of size bytes from a snapshot, size being at least the snapshot's; what is beyond
// reads as zero. A LUN with that uuid and size that exists is a success, whatever became of the snapshot.
func (s *Store) CloneFromSnapshot(ctx context.Context, snapshot, lun string, size int64, progress Progress) error {
	if done, err := s.exists(kindLUN, lun, size); done || err != nil {
		return err
	}
	src, err := s.OpenSnapshot(snapshot)
	if err != nil {
		return err
	}
	defer src.Close()
	return s.clone(ctx, src, kindLUN, lun, size, progress)
}

// CloneLUN is CloneFromSnapshot from a LUN, to which the caller keeps writes away meanwhile.
func (s *Store) CloneLUN(ctx context.Context, srcLUN, lun string, size int64, progress Progress) error {
	if done, err := s.exists(kindLUN, lun, size); done || err != nil {
		return err
	}
	src, err := s.OpenLUN(srcLUN)
	if err != nil {
		return err
	}
	defer src.Close()
	return s.clone(ctx, src, kindLUN, lun, size, progress)
}

func (s *Store) clone(ctx context.Context, src *File, k kind, id string, size int64, progress Progress) error {
	full, rel, err := s.path(k, id)
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
	if err := s.Failed(); err != nil {
		return err // a copy of what is not trusted would look trusted
	}
	if err := s.fault(FaultClone, rel, 0, size); err != nil {
		return classify("clone", rel, err)
	}
	// A name of its own for each attempt: a copy runs without the lock, and two may run for one uuid.
	dst, err := os.CreateTemp(s.volumeDir(string(k)), id+"-*"+tmpSuffix)
	if err != nil {
		return classify("clone", rel, err)
	}
	if err := s.fill(ctx, src, dst, from, size, progress); err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	s.objects.Lock()
	defer s.objects.Unlock()
	if done, err := existing(full, size); done || err != nil {
		return errors.Join(err, dst.Close(), os.Remove(dst.Name()))
	}
	return s.publish(dst, dst.Name(), full, rel)
}

func (s *Store) fill(ctx context.Context, src *File, dst *os.File, from, size int64, progress Progress) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	if s.reflink {
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

// copySparse copies the data runs of src; what it does not write stays a hole.
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
			if err := src.ReadAt(buf[:run], off); err != nil {
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
