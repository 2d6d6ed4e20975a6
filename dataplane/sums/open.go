package sums

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gemel-storage/gemel/internal/fd"
)

// tmpSuffix is of files that are being made; one that a crash leaves is overwritten by the next
// attempt.
const tmpSuffix = ".tmp"

// Create makes the file of an object of size bytes, durably, in place of one that is there. It has
// no space of its own yet, see Reserve. known says that all of the object is zero now; else the
// checksums of an object that has content are Unknown until they are put and Adopt says so.
func Create(path string, owner Owner, size int64, known bool) error {
	h := header{owner: owner}
	if known {
		h.adopted = AllAdopted
	}
	rand.Read(h.seed[:])
	return publish(path, func(f *os.File) error {
		if err := f.Truncate(fileSize(Blocks(size))); err != nil {
			return err
		}
		return h.write(f)
	})
}

func (h *header) write(m io.WriterAt) error {
	var raw [headerSize]byte
	h.encode(raw[:])
	_, err := m.WriteAt(raw[:], 0)
	return err
}

// publish makes a file that is there as a whole or not at all after a crash.
func publish(path string, fill func(*os.File) error) error {
	f, err := os.OpenFile(path+tmpSuffix, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("create the checksum file: %w", err)
	}
	if err = fill(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+tmpSuffix, path)
	}
	if err != nil {
		return fmt.Errorf("create the checksum file: %w", errors.Join(err, os.Remove(path+tmpSuffix)))
	}
	return fd.SyncDir(filepath.Dir(path))
}

// Open opens the file of an object of size bytes. It fails with ErrDamaged if it is not what Create
// has made, or made shorter; fs.ErrNotExist if there is none.
func Open(c *Cache, path string, owner Owner, size int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is not a regular file", ErrDamaged, path)
	}
	if want := fileSize(Blocks(size)); err == nil && st.Size() < want {
		err = fmt.Errorf("%w: %s has %d bytes, not %d", ErrDamaged, path, st.Size(), want)
	}
	var x *File
	if err == nil {
		x, err = open(c, path, disk{f, path, &c.Hooks}, owner, size)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return x, nil
}

func open(c *Cache, path string, m medium, owner Owner, size int64) (*File, error) {
	f := &File{c: c, path: path, m: m, dirty: map[int64]struct{}{}}
	var raw [headerSize]byte
	if _, err := m.ReadAt(raw[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s: read its header: %w", ErrDamaged, path, err)
	}
	if err := f.head.decode(raw[:], owner); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.blocks.Store(Blocks(size))
	f.known.Store(f.head.adopted)
	c.mu.Lock()
	c.files[f] = struct{}{}
	c.mu.Unlock()
	return f, nil
}

// Grow makes room for an object of size bytes, durably; what is new is zero, or Unknown if not all
// was adopted. A smaller size changes nothing.
func (f *File) Grow(size int64) error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	blocks := Blocks(size)
	if err := f.inside(0, 0); err != nil || blocks <= f.blocks.Load() {
		return err
	}
	err := f.m.Extend(fileSize(blocks))
	if err == nil {
		err = f.m.Sync()
	}
	if err != nil {
		return fmt.Errorf("%s: extend the file: %w", f.path, err) // it is as long as it was, or longer than it need be
	}
	f.blocks.Store(blocks)
	return nil
}

// Adopt records that the checksums of all blocks before block n were put, durably. Past the last
// block that includes all blocks that the file will have later. What was adopted already stays
// adopted.
func (f *File) Adopt(n int64) error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if n >= f.blocks.Load() {
		n = AllAdopted
	}
	if err := f.inside(0, 0); err != nil || n <= f.known.Load() {
		return err
	}
	if err := f.flushLocked(); err != nil { // else a crash leaves what is said to be adopted as zero
		return err
	}
	h := f.head
	h.adopted = n
	err := h.write(f.m)
	if full(err) {
		return fmt.Errorf("%s: write the header: %w", f.path, err) // either one that a crash leaves is true
	}
	if err = errors.Join(err, f.m.Sync()); err != nil {
		return f.fail(fmt.Errorf("write the header: %w", err))
	}
	f.known.Store(n)
	return nil
}

// Close closes the file. It does not flush: what was not flushed is lost.
func (f *File) Close() error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	_ = f.fail(ErrClosed)
	f.c.forget(f)
	return f.m.Close()
}

// forget drops the pages of a file that is closed. Pages that are being read are dropped by who
// reads them.
func (c *Cache) forget(f *File) {
	c.mu.Lock()
	delete(c.files, f)
	c.mu.Unlock()
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for k, p := range s.pages {
			if k.f == f && p.loading == nil {
				if p.dirty {
					c.dirty.Add(-1)
				}
				c.drop(s, p)
			}
		}
		s.mu.Unlock()
	}
}
