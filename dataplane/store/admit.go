package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/internal/fd"
)

// eachObject calls fn for the LUNs and snapshots of the volume, with the full names of their
// images.
func (v *BackingVolume) eachObject(fn func(k kind, id, full string) error) error {
	for _, k := range []kind{kindLUN, kindSnapshot} {
		ids, err := v.objectsIn(k)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := fn(k, id, filepath.Join(v.folder(k), id+imgSuffix)); err != nil {
				return err
			}
		}
	}
	return nil
}

// admit gives the objects that the volume has images in members that are new, durably; first: it
// had no members, so that all of each object is at home. In a member that takes the place of a lost
// one, only objects that had nothing there get one: the others have lost something (Info.Lost).
func (v *BackingVolume) admit(first bool, fresh, replaced []*member) error {
	done, said := 0, time.Now()
	err := v.eachObject(func(k kind, id, full string) error {
		if done++; time.Since(said) > 5*time.Second {
			said = time.Now()
			v.s.log.Info("making images in new members of a backing volume", "volume", v.name, "objects", done)
		}
		st, err := os.Stat(full)
		if err != nil {
			return err
		}
		if st.Size() == 0 { // in the place of one that is gone (StandIn)
			return nil
		}
		owner, err := v.mapOwner(id)
		if err != nil {
			return err
		}
		if _, err := os.Stat(v.mapPath(full)); first && errors.Is(err, fs.ErrNotExist) {
			if err := extents.Create(v.mapPath(full), owner, []uint8{homeNumber}, st.Size()); err != nil {
				return err
			}
		}
		for _, m := range fresh {
			if err := m.createEmpty(k, id, st.Size(), false); err != nil {
				return err
			}
		}
		if len(replaced) == 0 {
			return nil
		}
		at, err := extents.Read(v.mapPath(full), owner)
		if err != nil {
			v.s.log.Error("a map of extents cannot be read", "file", v.mapPath(full), "err", err)
			return nil // which is found again when the object is looked at
		}
		for _, m := range replaced {
			if at.Names(m.number) {
				continue
			}
			if err := m.createEmpty(k, id, st.Size(), false); err != nil {
				return err
			}
		}
		return nil
	})
	for _, m := range append(fresh, replaced...) {
		if err == nil {
			err = syncfs(m.dir)
		}
	}
	return err
}

// holds names an object that has extents in the place of a number, "" if none has.
func (v *BackingVolume) holds(number uint8) (object string, err error) {
	errFound := errors.New("found")
	err = v.eachObject(func(_ kind, id, full string) error {
		owner, err := v.mapOwner(id)
		if err != nil {
			return err
		}
		m, err := extents.Read(v.mapPath(full), owner)
		if err == nil && m.Names(number) {
			object = id
			return errFound
		}
		return nil // what has lost its map is copied again
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return object, err
}

func syncfs(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(fd.With(f, unix.Syncfs), f.Close())
}

// sweepMembers removes images of members, and maps, whose object is not there: an object that is
// made later under the same uuid must not find them.
func (v *BackingVolume) sweepMembers() error {
	if len(v.members) == 0 {
		return nil
	}
	for _, k := range []kind{kindLUN, kindSnapshot} {
		if err := v.sweep(v.folder(k), mapSuffix, k, nil); err != nil {
			return err
		}
		for _, m := range v.members {
			if err := v.sweep(m.folder(k), imgSuffix, k, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// lost says what of an object's data is not here, of a volume with members; "" if all of it is.
func (v *BackingVolume) lost(k kind, id, full string) (why string, err error) {
	st, err := os.Stat(full)
	if err != nil {
		return "", err
	}
	if st.Size() == 0 {
		return "its image is empty", nil
	}
	owner, err := v.mapOwner(id)
	if err != nil {
		return "", err
	}
	switch m, err := extents.Read(v.mapPath(full), owner); {
	case errors.Is(err, fs.ErrNotExist):
		return "its map of extents is missing", nil
	case errors.Is(err, extents.ErrDamaged):
		return err.Error(), nil
	case err != nil:
		return "", err
	case m.Extents() < extents.Extents(st.Size()): // it is made longer first, too
		return fmt.Sprintf("its map has %d extents, not %d", m.Extents(), extents.Extents(st.Size())), nil
	}
	for _, m := range v.members {
		path, _, err := m.path(k, id)
		if err != nil {
			return "", err
		}
		switch x, err := os.Stat(path); {
		case errors.Is(err, fs.ErrNotExist):
			return "its image in " + m.name + " is missing", nil
		case err != nil:
			return "", err
		case x.Size() < st.Size(): // it is made longer first, see places.truncate
			return fmt.Sprintf("its image in %s has %d bytes, not %d", m.name, x.Size(), st.Size()), nil
		}
	}
	return "", nil
}
