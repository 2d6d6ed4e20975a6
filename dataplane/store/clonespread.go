package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/internal/fd"
)

// spreadCopy is what a copy of an object of a volume with members has beside its home image, before
// it has its name: images in members, and where its extents lie.
type spreadCopy struct {
	v      *BackingVolume
	k      kind
	id     string
	size   int64
	images map[uint8]*image
	tmp    map[uint8]string // of members, full names
	rule   []uint8
	at     []uint8
}

// fillSpread copies the extents of src, each in the volume in which it lies, into home and images
// of members that have no name yet. The caller keeps writes to src away; its extents may move.
func (v *BackingVolume) fillSpread(ctx context.Context, src *File, home *os.File, k kind, id string, from, size int64, progress Progress) (_ *spreadCopy, err error) {
	c := &spreadCopy{v: v, k: k, id: id, size: size, images: map[uint8]*image{}, tmp: map[uint8]string{}, rule: v.rule(), at: make([]uint8, extents.Extents(size))}
	defer func() {
		if err != nil {
			c.drop()
		}
	}()
	base := filepath.Base(home.Name())
	if err := home.Truncate(size); err != nil {
		return nil, classify("clone", src.path, err)
	}
	if c.images[homeNumber], err = openImage(v.s, v.writeback, v.reflink, home.Name(), filepath.Join(v.rel, string(k), base)); err != nil {
		return nil, classify("clone", src.path, err)
	}
	for _, m := range v.members {
		path := filepath.Join(m.folder(k), base)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return nil, classify("clone", src.path, err)
		}
		c.tmp[m.number] = path
		err = errors.Join(f.Truncate(size), f.Close())
		if err == nil {
			c.images[m.number], err = m.openImage(path, filepath.Join(m.rel, string(k), base))
		}
		if err != nil {
			return nil, classify("clone", src.path, err)
		}
	}
	if err := src.Sync(); err != nil { // at once, and not extent by extent, when they are shared
		return nil, err
	}
	for off := int64(0); off < from; off += extents.Size {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("clone: %w", err)
		}
		if err := src.each(off, min(extents.Size, from-off), c.fill); err != nil {
			return nil, err
		}
		progress(min(off+extents.Size, from), size)
	}
	for _, x := range c.images {
		if err := x.Sync(); err != nil {
			return nil, err
		}
	}
	progress(size, size)
	return c, nil
}

// fill copies a part of an extent, which stays where it is meanwhile.
func (c *spreadCopy) fill(from *image, off, length int64) error {
	hole, err := from.isHole(off, length)
	if hole || err != nil {
		return err
	}
	c.at[off/extents.Size] = from.number
	to := c.images[from.number]
	if from.reflink && to.reflink {
		if err := from.share(to, off, length); err != nil {
			return classify("clone", from.path, err)
		}
		return nil
	}
	buf := make([]byte, copyChunk)
	for end := off + length; off < end; {
		run, data, err := from.extents(off, end-off)
		if err != nil {
			return err
		}
		if data {
			run = min(run, copyChunk)
			if _, err := from.read(buf[:run], off); err != nil {
				return err
			}
			if err := to.writeRaw(buf[:run], off); err != nil {
				return err
			}
		}
		off += run
	}
	return nil
}

// publish gives the images of members their names, and makes the map, durably. The home image gets
// its name last. The objects are locked.
func (c *spreadCopy) publish() error {
	if c == nil {
		return nil
	}
	full, rel, err := c.v.path(c.k, c.id)
	if err != nil {
		return err
	}
	for _, m := range c.v.members {
		path, _, err := m.path(c.k, c.id)
		if err == nil {
			err = os.Rename(c.tmp[m.number], path)
		}
		if err == nil {
			err = fd.SyncDir(filepath.Dir(path))
		}
		if err != nil {
			return classify("clone", rel, err)
		}
		delete(c.tmp, m.number)
	}
	owner, err := c.v.mapOwner(c.id)
	if err == nil {
		err = extents.CreateWith(c.v.mapPath(full), owner, c.rule, c.size, c.at)
	}
	if err != nil {
		return classify("clone", rel, err)
	}
	return nil
}

// drop closes the images, and removes those that got no name.
func (c *spreadCopy) drop() {
	if c == nil {
		return
	}
	for _, x := range c.images {
		_ = x.close()
	}
	for _, path := range c.tmp {
		_ = os.Remove(path)
	}
}
