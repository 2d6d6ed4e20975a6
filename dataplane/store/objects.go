package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// Info describes a LUN or snapshot on disk.
type Info struct {
	UUID      string
	Size      int64 // bytes; 0 if something is lost
	Allocated int64 // bytes occupied; shared extents are counted in every sharer

	Born  uint64 // index of the log entry that made it, or NoBirth
	Known bool   // Born is: an earlier release has not said it, and not every filesystem keeps it

	Lost string // why not all of its data is here, of a volume with members: its map or an image is gone
}

type kind string

const (
	kindLUN      kind = "luns"
	kindSnapshot kind = "snapshots"
	kindIntents  kind = "intents"
	imgSuffix         = ".img"
	intentSuffix      = ".bits"
	sumsSuffix        = ".sums"
)

func (k kind) suffix() string {
	if k == kindIntents {
		return intentSuffix
	}
	return imgSuffix
}

// path gives the full and the relative name of an object. Only a well-formed uuid gets one, so no
// caller can name a file outside its folder.
func (v *BackingVolume) path(k kind, id string) (full, rel string, err error) {
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return "", "", fmt.Errorf("%q: %w", id, ErrBadUUID)
	}
	name := id + k.suffix()
	return filepath.Join(v.folder(k), name), filepath.Join(v.rel, string(k), name), nil
}

// CreateLUN makes a LUN of size bytes, all of it a hole, that was born at an index of the log, or
// NoBirth. What has its name already counts for nothing (makeWay): it must not be called for a LUN
// that is there.
func (v *BackingVolume) CreateLUN(id string, size int64, born uint64) error {
	return v.create(kindLUN, id, size, born, false)
}

// KeepLUN is for a LUN that no metadata name, which is found again whenever the store is opened: it
// makes one of size bytes if there is none, and is ErrExists if there is one of another size.
func (v *BackingVolume) KeepLUN(id string, size int64) error {
	there, err := v.LUN(id)
	switch {
	case errors.Is(err, ErrNotFound):
		return v.CreateLUN(id, size, NoBirth)
	case err == nil && there.Size != size:
		return fmt.Errorf("LUN %s has %d bytes, not %d: %w", id, there.Size, size, ErrExists)
	}
	return err
}

// CreateSnapshot makes an empty snapshot file, as CreateLUN does: a node that lacks one is about to
// be given its content by a resync.
func (v *BackingVolume) CreateSnapshot(id string, size int64, born uint64) error {
	return v.create(kindSnapshot, id, size, born, false)
}

// StandIn makes an empty file in the place of a LUN's file that is gone, durably. No LUN is that
// short: it is known for what it is by its length.
func (v *BackingVolume) StandIn(id string) error {
	full, rel, err := v.path(kindLUN, id)
	if err != nil {
		return err
	}
	v.objects.Lock()
	defer v.objects.Unlock()
	v.opened.mu.Lock()
	f, err := os.OpenFile(full, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil { // what is known of the file that is gone went with it
		v.removeSums(kindLUN, id)
		v.forgetPlaces(full)
		err = v.opened.forget(rel)
	}
	v.opened.mu.Unlock()
	if err != nil {
		return classify("create", rel, err)
	}
	err = v.bear(f, rel, NoBirth)
	return errors.Join(err, f.Sync(), f.Close(), fd.SyncDir(filepath.Dir(full)))
}

// exists reports whether the object is there.
func (v *BackingVolume) exists(k kind, id string) (bool, error) {
	full, rel, err := v.path(k, id)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, classify("stat", rel, err)
	}
	return true, nil
}

// OpenLUN opens a LUN for I/O; ErrNotFound when there is none.
func (v *BackingVolume) OpenLUN(id string) (*File, error) { return v.open(kindLUN, id) }

// OpenSnapshot opens a snapshot, for resync of objects a member lacks.
func (v *BackingVolume) OpenSnapshot(id string) (*File, error) { return v.open(kindSnapshot, id) }

func (v *BackingVolume) open(k kind, id string) (*File, error) {
	full, rel, err := v.path(k, id)
	if err != nil {
		return nil, err
	}
	if v.s.sums != nil {
		v.opened.mu.Lock() // the image and the checksums are those of one object
		defer v.opened.mu.Unlock()
	}
	f, err := v.openFile(full, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", rel, ErrNotFound)
	}
	if err != nil {
		return nil, classify("open", rel, err)
	}
	if v.s.sums != nil {
		if err := v.attach(f, k, id); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := v.attachPlaces(f, k, id, full); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// DeleteLUN removes a LUN, its data and its intents; one that is not there is a success. An open
// File keeps working on the nameless file until it is closed.
func (v *BackingVolume) DeleteLUN(id string) error { return v.remove(kindLUN, id) }

// DeleteSnapshot removes a snapshot; one that is not there is a success. LUNs cloned from it are
// not affected.
func (v *BackingVolume) DeleteSnapshot(id string) error { return v.remove(kindSnapshot, id) }

func (v *BackingVolume) remove(k kind, id string) error {
	full, rel, err := v.path(k, id)
	if err != nil {
		return err
	}
	v.objects.Lock()
	defer v.objects.Unlock()
	return v.removeLocked(k, id, full, rel)
}

func (v *BackingVolume) removeLocked(k kind, id, full, rel string) error {
	if err := v.s.fault(FaultDelete, rel, 0, 0); err != nil {
		return classify("delete", rel, err)
	}
	if k == kindLUN {
		if err := v.removeIntents(id); err != nil {
			return err
		}
	}
	if err := v.unlink(full, rel); err != nil {
		return classify("delete", rel, err)
	}
	// Also when it was gone already: the call that removed it may have been cut short before this.
	if err := fd.SyncDir(filepath.Dir(full)); err != nil {
		err = classify("delete", rel, err)
		v.s.fail(err)
		return err
	}
	v.removePlaces(k, id, full)
	v.removeSums(k, id) // last: an image without any would be taken for one from before checksums
	return nil
}

// ListLUNs lists LUNs in uuid order.
func (v *BackingVolume) ListLUNs() ([]Info, error) { return v.list(kindLUN) }

// ListSnapshots lists snapshots in uuid order.
func (v *BackingVolume) ListSnapshots() ([]Info, error) { return v.list(kindSnapshot) }

// objectsIn are the uuids of the objects in a folder, in order. Other files are not of this store.
func (v *BackingVolume) objectsIn(k kind) (ids []string, err error) {
	entries, err := os.ReadDir(v.folder(k))
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), imgSuffix)
		if u, err := uuid.Parse(id); ok && err == nil && u.String() == id {
			ids = append(ids, id)
		}
	}
	return ids, err
}

func (v *BackingVolume) list(k kind) ([]Info, error) {
	ids, err := v.objectsIn(k)
	if err != nil {
		return nil, classify("list", string(k), err)
	}
	var out []Info
	for _, id := range ids {
		info, err := v.info(k, id)
		if errors.Is(err, ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, info)
	}
	return out, nil
}

// LUN describes one LUN; ErrNotFound.
func (v *BackingVolume) LUN(id string) (Info, error) { return v.info(kindLUN, id) }

func (v *BackingVolume) info(k kind, id string) (Info, error) {
	full, rel, err := v.path(k, id)
	if err != nil {
		return Info{}, err
	}
	f, err := v.openFile(full, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, fmt.Errorf("%s: %w", rel, ErrNotFound)
	}
	if err != nil {
		return Info{}, classify("open", rel, err)
	}
	x := Info{UUID: id}
	var err1, err2, err3 error
	x.Size, err1 = f.Size()
	x.Allocated, err2 = f.Allocated()
	x.Born, x.Known, err3 = v.bornOf(func(to []byte) (n int, err error) {
		err = f.control(func(fd int) (err error) { n, err = unix.Fgetxattr(fd, bornAttr, to); return err })
		return n, err
	})
	if err3 != nil {
		err3 = classify("read "+bornAttr+" of", rel, err3)
	}
	if err := errors.Join(err1, err2, err3, f.Close()); err != nil || len(v.members) == 0 {
		return x, err
	}
	return x, v.addMembers(&x, k, full)
}

// addMembers adds what members have of an object.
func (v *BackingVolume) addMembers(x *Info, k kind, full string) (err error) {
	x.Lost, err = v.lost(k, x.UUID, full)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound // deleted meanwhile
	}
	if err != nil {
		return classify("look at", full, err)
	}
	if x.Lost != "" {
		x.Size = 0
	}
	for _, m := range v.members {
		path, _, err := m.path(k, x.UUID)
		if err != nil {
			return err
		}
		if st, err := os.Stat(path); err == nil {
			x.Allocated += st.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return nil
}

// EmptyOfLUNs reports that there is neither a LUN nor a snapshot.
func (v *BackingVolume) EmptyOfLUNs() (bool, error) {
	for _, k := range []kind{kindLUN, kindSnapshot} {
		l, err := v.list(k)
		if err != nil || len(l) > 0 {
			return false, err
		}
	}
	return true, nil
}
