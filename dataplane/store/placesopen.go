package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/internal/fd"
	"github.com/gemel-storage/gemel/internal/longlock"
)

// mapSuffix is of the map of extents of an object, beside its image in the home.
const mapSuffix = ".map"

// spreads has a volume's places by the path of their home image: all Files of an object use one map
// and the same images.
type spreads struct {
	mu  longlock.Mutex
	all map[string]*places
}

func (v *BackingVolume) mapPath(full string) string {
	return strings.TrimSuffix(full, imgSuffix) + mapSuffix
}

func (v *BackingVolume) mapOwner(id string) (extents.Owner, error) {
	u, err := uuid.Parse(id)
	return extents.Owner{LUN: u, Store: uuid.MustParse(v.s.id)}, err
}

// rule is that of new objects: all places in turn, but those that are drained, and fast ones unless
// there is no other.
func (v *BackingVolume) rule() (list []uint8) {
	var fast []uint8
	for _, p := range v.Places() {
		switch {
		case p.Draining:
		case p.Fast:
			fast = append(fast, p.Number)
		default:
			list = append(list, p.Number)
		}
	}
	if len(list) == 0 {
		return fast
	}
	return list
}

// createPlaces makes the map of an object that is about to be made, and its images in members.
func (v *BackingVolume) createPlaces(k kind, id, full string, size int64) error {
	if len(v.members) == 0 {
		return nil
	}
	for _, m := range v.members {
		if err := m.createEmpty(k, id, size, true); err != nil {
			return err
		}
	}
	owner, err := v.mapOwner(id)
	if err != nil {
		return err
	}
	return extents.Create(v.mapPath(full), owner, v.rule(), size)
}

// createEmpty makes an image that is all hole, in place of one that is there.
func (m *member) createEmpty(k kind, id string, size int64, durably bool) error {
	full, rel, err := m.path(k, id)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(full, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return classify("create", rel, err)
	}
	err = f.Truncate(size)
	if err == nil && durably {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil && durably {
		err = fd.SyncDir(filepath.Dir(full))
	}
	if err != nil {
		return classify("create", rel, err)
	}
	return nil
}

// removePlaces removes the images in members and the map of an object that is gone. What stays is
// removed when the store is opened.
func (v *BackingVolume) removePlaces(k kind, id, full string) {
	if len(v.members) == 0 {
		return
	}
	v.forgetPlaces(full)
	remove := func(path string) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			v.s.log.Warn("cannot remove a file of a deleted object", "file", path, "err", err)
		}
	}
	for _, m := range v.members {
		if path, _, err := m.path(k, id); err == nil {
			remove(path)
		}
	}
	remove(v.mapPath(full))
}

// forgetPlaces has the one that opens the next object of that name find other places.
func (v *BackingVolume) forgetPlaces(full string) {
	v.spread.mu.Lock()
	defer v.spread.mu.Unlock()
	if p := v.spread.all[full]; p != nil {
		p.nameless = true
		delete(v.spread.all, full)
	}
}

// setPlacesAside moves images in members and the map of an object beside its image, which was set
// aside. What cannot be moved is taken for one of the next object of that name, and made empty.
func (v *BackingVolume) setPlacesAside(k kind, id, full, to string) {
	if len(v.members) == 0 {
		return
	}
	v.forgetPlaces(full)
	move := func(from, to string) {
		err := os.MkdirAll(filepath.Dir(to), 0o700)
		if err == nil {
			err = os.Rename(from, to)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			v.s.log.Warn("cannot set aside a part of an object", "file", from, "err", err)
		}
	}
	for _, m := range v.members {
		if path, _, err := m.path(k, id); err == nil {
			move(path, filepath.Join(m.dir, asideDir, filepath.Base(to)))
		}
	}
	move(v.mapPath(full), to+mapSuffix)
}

// attachPlaces gives a File the places of its object.
func (v *BackingVolume) attachPlaces(f *File, k kind, id, full string) error {
	if len(v.members) == 0 {
		return nil
	}
	v.spread.mu.Lock()
	defer v.spread.mu.Unlock()
	if p := v.spread.all[full]; p != nil {
		p.refs++
		f.places = p
		return nil
	}
	p, err := v.openPlaces(f, k, id, full)
	if err != nil {
		return err
	}
	p.refs, p.of, p.key = 1, &v.spread, full
	if v.spread.all == nil {
		v.spread.all = map[string]*places{}
	}
	v.spread.all[full] = p
	f.places = p
	return nil
}

// openPlaces opens the map and the images. An object that has lost something has places at which
// nothing can be done.
func (v *BackingVolume) openPlaces(f *File, k kind, id, full string) (_ *places, err error) {
	why, err := v.lost(k, id, full)
	if err != nil {
		return nil, classify("open", f.path, err)
	}
	if why != "" {
		return &places{lost: fmt.Errorf("%s: %w: %s", f.path, ErrMedia, why)}, nil
	}
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	owner, err := v.mapOwner(id)
	if err != nil {
		return nil, err
	}
	m, err := extents.Open(v.mapPath(full), owner, size, v.mapHooks())
	if err != nil {
		return nil, fmt.Errorf("open the map of extents of %s: %w", f.path, err)
	}
	p := &places{v: v, m: m, images: map[uint8]*image{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	home, err := openImage(v.s, v.writeback, v.reflink, full, f.path)
	if err != nil {
		return nil, err
	}
	p.images[homeNumber] = home
	for _, x := range v.members {
		if p.images[x.number], err = x.openMemberImage(k, id); err != nil {
			return nil, err
		}
	}
	return p, p.build(f, size)
}

func (v *BackingVolume) mapHooks() *extents.Hooks {
	h := &extents.Hooks{Failed: v.s.fail}
	if v.s.faults != nil {
		h.Write = func(path string, off, length int64) error {
			return v.s.faults(FaultMap, v.s.relative(path), off, length)
		}
	}
	return h
}

// openMemberImage opens an image. It may be longer than the object, by a hole: a crash may have
// come while the object was made longer.
func (m *member) openMemberImage(k kind, id string) (*image, error) {
	full, rel, err := m.path(k, id)
	if err != nil {
		return nil, err
	}
	return m.openImage(full, rel)
}

func (m *member) openImage(full, rel string) (*image, error) {
	x, err := openImage(m.s, m.writeback, m.reflink, full, rel)
	if err != nil {
		return nil, classify("open", rel, err)
	}
	x.number = m.number
	return x, nil
}
