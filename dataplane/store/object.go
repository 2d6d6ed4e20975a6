package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/gemel-storage/gemel/dataplane/sums"
	"github.com/gemel-storage/gemel/internal/fd"
	"github.com/gemel-storage/gemel/internal/longlock"
)

// object is what the open Files of one LUN or snapshot have in common: its checksums, and what is
// not believed of them.
type object struct {
	v        *BackingVolume
	rel      string // of the image
	sums     *sums.File
	size     atomic.Int64 // bytes of the image, as it should be
	refs     int          // Files; under registry.mu
	nameless bool         // its image is deleted; under registry.mu

	doubt    doubt
	adopter  chan struct{} // who adopts is in here
	adopting adoptLock
	adopted  atomic.Int64 // bytes, where adoption has come to
}

// registry has a volume's objects by the path of their image. An object stays without a File as
// long as it knows something that its file of checksums does not.
type registry struct {
	mu  longlock.Mutex
	all map[string]*object
}

// attach gives a File its object. The registry is locked.
func (v *BackingVolume) attach(f *File, k kind, id string) error {
	if o := v.opened.all[f.path]; o != nil {
		o.refs++
		f.obj = o
		return nil
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	x, err := v.openSums(k, id, size)
	if err != nil {
		return classify("open the checksums of", f.path, err)
	}
	o := &object{v: v, rel: f.path, sums: x, refs: 1, adopter: make(chan struct{}, 1)}
	o.size.Store(size)
	if v.opened.all == nil {
		v.opened.all = map[string]*object{}
	}
	v.opened.all[f.path] = o
	f.obj = o
	return nil
}

// openSums opens the checksums of an image, or makes some that know nothing of it.
func (v *BackingVolume) openSums(k kind, id string, size int64) (*sums.File, error) {
	owner, err := v.sumsOwner(id)
	if err != nil {
		return nil, err
	}
	path := v.sumsPath(k, id)
	x, err := sums.Open(v.s.sums.cache, path, owner, size)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.s.log.Info("no checksums yet; computing them from the existing data", "file", path)
	case errors.Is(err, sums.ErrDamaged):
		v.s.log.Error("checksums are lost; computing them from the existing data", "file", path, "err", err)
	default:
		return x, err
	}
	if err := v.s.fault(FaultSums, v.s.relative(path), 0, size); err != nil {
		return nil, err
	}
	if err := sums.Create(path, owner, size, false); err != nil {
		return nil, err
	}
	return sums.Open(v.s.sums.cache, path, owner, size)
}

// release is the end of a File's use of the object. The last one has the checksums flushed: who
// opens it next reads them from the file, and the data that they are of may be in the page cache
// only.
func (o *object) release() (err error) {
	r := &o.v.opened
	for {
		r.mu.Lock()
		if o.refs > 1 || o.nameless || err != nil || !o.sums.Unflushed() || o.v.s.Failed() != nil || o.v.s.ending.Load() {
			break
		}
		r.mu.Unlock()
		err = o.sums.Flush()
	}
	defer r.mu.Unlock()
	if o.refs--; o.refs > 0 {
		return nil
	}
	if !o.nameless && o.v.s.Failed() == nil && !o.v.s.ending.Load() && (o.sums.Unflushed() || o.doubt.blocks() > 0) {
		return nil // no space for them, which the next flush reports, or what is in doubt
	}
	if !o.nameless {
		delete(r.all, o.rel)
	}
	return o.sums.Close()
}

// unlink takes an image's name away, if it has one. Open files continue to use their object, and
// the one that opens the next image of that name gets another one.
func (v *BackingVolume) unlink(full, rel string) error {
	return v.unname(full, rel, func() error { return os.Remove(full) })
}

// unname is unlink by whatever takes the name away.
func (v *BackingVolume) unname(full, rel string, take func() error) error {
	if v.s.sums == nil {
		if err := take(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if f, err := os.Open(full); err == nil {
		defer f.Close() // frees the blocks, which may take long, when the registry is not locked any more
	}
	v.opened.mu.Lock()
	defer v.opened.mu.Unlock()
	if err := take(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return v.opened.forget(rel)
}

// forget takes an object off the registry, which is locked: its image has lost its name.
func (r *registry) forget(rel string) error {
	o := r.all[rel]
	if o == nil {
		return nil
	}
	delete(r.all, rel)
	o.nameless = true
	if o.refs == 0 {
		return o.sums.Close()
	}
	return nil
}

// close closes objects that were kept without a File.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rel, o := range r.all {
		if o.refs == 0 {
			delete(r.all, rel)
			_ = o.sums.Close()
		}
	}
}

// copiedSums are the checksums of a copy that has no name yet; nil if there are none.
type copiedSums struct{ tmp, path string }

// cloneSums makes the checksums of a copy of src, under a temporary name of its own. The caller
// keeps writes to src away.
func (v *BackingVolume) cloneSums(ctx context.Context, src *File, k kind, id, tmp string, size int64) (*copiedSums, error) {
	if src.obj == nil {
		return nil, nil
	}
	// No part of a copy counts as doubted after a crash, so what it inherits has to be right.
	if err := src.settle(ctx); err != nil {
		return nil, err
	}
	owner, err := v.sumsOwner(id)
	if err != nil {
		return nil, err
	}
	c := &copiedSums{tmp: filepath.Join(v.sumsFolder(k), tmp), path: v.sumsPath(k, id)}
	if err = v.s.fault(FaultSums, v.s.relative(c.path), 0, size); err == nil {
		err = src.obj.sums.Clone(c.tmp, owner, size)
	}
	if err != nil {
		return nil, src.sumsError("clone", err)
	}
	return c, nil
}

// publish gives them their name, before the image gets its own.
func (c *copiedSums) publish() error {
	if c == nil {
		return nil
	}
	err := os.Rename(c.tmp, c.path)
	if err == nil {
		err = fd.SyncDir(filepath.Dir(c.path))
	}
	if err != nil {
		return classify("clone", c.path, err)
	}
	return nil
}

func (c *copiedSums) drop() {
	if c != nil {
		_ = os.Remove(c.tmp) // it is not there if it has got its name
	}
}

// sumsError classifies what the checksums of a file failed with. What is final has made the store
// untrusted already (Hooks.Failed).
func (f *File) sumsError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sums.ErrRange):
		return fmt.Errorf("%s %s: %w: %w", op, f.path, ErrRange, err)
	case errors.Is(err, sums.ErrClosed):
		return fmt.Errorf("%s %s: %w: %w", op, f.path, os.ErrClosed, err)
	case f.obj.sums.Failed() != nil: // not as a lack of space, which leaves the store trusted
		return fmt.Errorf("%s %s: %w: checksums: %s", op, f.path, ErrMedia, err)
	}
	return classify(op+" of checksums", f.path, err)
}
