package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/internal/fd"
)

// Info describes a LUN or snapshot on disk.
type Info struct {
	UUID      string
	Size      int64 // bytes
	Allocated int64 // bytes occupied; shared extents are counted in every sharer
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

// path gives the full and the relative name of an object. Only a well-formed uuid gets one, so no caller can name
// a file outside its folder.
func (v *Volume) path(k kind, id string) (full, rel string, err error) {
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id {
		return "", "", fmt.Errorf("%q: %w", id, ErrBadUUID)
	}
	name := id + k.suffix()
	return filepath.Join(v.folder(k), name), filepath.Join(v.rel, string(k), name), nil
}

// CreateLUN makes a LUN of size bytes, all of it a hole. One that exists with that size is left alone, with another
// size it is ErrExists.
func (v *Volume) CreateLUN(id string, size int64) error { return v.create(kindLUN, id, size) }

// CreateSnapshot makes an empty snapshot file: a node that lacks one is about to be given its content by a resync.
func (v *Volume) CreateSnapshot(id string, size int64) error { return v.create(kindSnapshot, id, size) }

func (v *Volume) create(k kind, id string, size int64) error {
	full, rel, err := v.path(k, id)
	if err != nil {
		return err
	}
	if size <= 0 {
		return fmt.Errorf("create %s: size %d: %w", id, size, ErrRange)
	}
	v.objects.Lock()
	defer v.objects.Unlock()
	if done, err := existing(full, size); done || err != nil {
		return err
	}
	if err := v.s.fault(FaultCreate, rel, 0, size); err != nil {
		return classify("create", rel, err)
	}
	tmp := full + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return classify("create", rel, err)
	}
	if err := f.Truncate(size); err != nil {
		return errors.Join(classify("create", rel, err), f.Close(), os.Remove(tmp))
	}
	// The checksums come first: an image that has its name would be taken for one from before there were any.
	if err := v.createSums(k, id, size); err != nil {
		return errors.Join(err, f.Close(), os.Remove(tmp))
	}
	return v.publish(f, tmp, full, rel)
}

// StandIn makes an empty file in the place of a LUN's file that is gone, durably. No LUN is that short: it is known for what it is by its length.
func (v *Volume) StandIn(id string) error {
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
		err = v.opened.forget(rel)
	}
	v.opened.mu.Unlock()
	if err != nil {
		return classify("create", rel, err)
	}
	return errors.Join(f.Close(), fd.SyncDir(filepath.Dir(full)))
}

// anySize makes existing take an object of whatever size.
const anySize = -1

func (v *Volume) exists(k kind, id string, size int64) (bool, error) {
	full, _, err := v.path(k, id)
	if err != nil {
		return false, err
	}
	return existing(full, size)
}

// existing reports whether the object is there already.
func existing(full string, size int64) (bool, error) {
	st, err := os.Stat(full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, classify("stat", filepath.Base(full), err)
	case size != anySize && st.Size() != size:
		return false, fmt.Errorf("%s has %d bytes, not %d: %w", filepath.Base(full), st.Size(), size, ErrExists)
	}
	return true, nil
}

// publish gives a complete temporary file its name. Content before name, name before success: after a crash there is
// either no object, or all of it, or a leftover that Open removes.
func (v *Volume) publish(f *os.File, tmp, full, rel string) error {
	err := f.Sync()
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, full)
	}
	if err != nil {
		return errors.Join(classify("create", rel, err), os.Remove(tmp))
	}
	if err := fd.SyncDir(filepath.Dir(full)); err != nil {
		err = classify("create", rel, err)
		v.s.fail(err)
		return err
	}
	return nil
}

// OpenLUN opens a LUN for I/O; ErrNotFound when there is none.
func (v *Volume) OpenLUN(id string) (*File, error) { return v.open(kindLUN, id) }

// OpenSnapshot opens a snapshot, for resync of objects a member lacks.
func (v *Volume) OpenSnapshot(id string) (*File, error) { return v.open(kindSnapshot, id) }

func (v *Volume) open(k kind, id string) (*File, error) {
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
	return f, nil
}

// DeleteLUN removes a LUN, its data and its intents; one that is not there is a success. An open File keeps working on the
// nameless file until it is closed.
func (v *Volume) DeleteLUN(id string) error { return v.remove(kindLUN, id) }

// DeleteSnapshot removes a snapshot; one that is not there is a success. LUNs cloned from it are not affected.
func (v *Volume) DeleteSnapshot(id string) error { return v.remove(kindSnapshot, id) }

func (v *Volume) remove(k kind, id string) error {
	full, rel, err := v.path(k, id)
	if err != nil {
		return err
	}
	v.objects.Lock()
	defer v.objects.Unlock()
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
	v.removeSums(k, id) // last: an image without any would be taken for one of before
	return nil
}

// ResizeLUN grows a LUN durably; the new part reads as zero. The same size is a success, a smaller one ErrShrink.
// Open Files see the new size.
func (v *Volume) ResizeLUN(id string, size int64) error {
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
	if size < now {
		return fmt.Errorf("resize LUN %s from %d to %d bytes: %w", id, now, size, ErrShrink)
	}
	if size > now {
		if err := f.beforeWrite(FaultTruncate, now, size); err != nil {
			return err
		}
		if f.obj != nil { // first: what is longer than its checksums cannot be written
			if err := f.obj.sums.Grow(size); err != nil {
				return f.writeError("resize", err)
			}
		}
		if err := f.f.Truncate(size); err != nil {
			return f.writeError("resize", err)
		}
		if f.obj != nil {
			f.obj.size.Store(size)
		}
	}
	return f.Sync() // also when the size is right: an earlier call may have been cut short before this
}

// ListLUNs lists LUNs in uuid order.
func (v *Volume) ListLUNs() ([]Info, error) { return v.list(kindLUN) }

// ListSnapshots lists snapshots in uuid order.
func (v *Volume) ListSnapshots() ([]Info, error) { return v.list(kindSnapshot) }

func (v *Volume) list(k kind) ([]Info, error) {
	entries, err := os.ReadDir(v.folder(k))
	if err != nil {
		return nil, classify("list", string(k), err)
	}
	var out []Info
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), imgSuffix)
		if !ok {
			continue
		}
		if _, err := uuid.Parse(id); err != nil {
			continue
		}
		f, err := v.openFile(filepath.Join(v.folder(k), e.Name()), filepath.Join(v.rel, string(k), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, classify("open", e.Name(), err)
		}
		size, err1 := f.Size()
		alloc, err2 := f.Allocated()
		if err := errors.Join(err1, err2, f.Close()); err != nil {
			return nil, err
		}
		out = append(out, Info{UUID: id, Size: size, Allocated: alloc})
	}
	return out, nil
}

// EmptyOfLUNs reports that there is neither a LUN nor a snapshot.
func (v *Volume) EmptyOfLUNs() (bool, error) {
	for _, k := range []kind{kindLUN, kindSnapshot} {
		l, err := v.list(k)
		if err != nil || len(l) > 0 {
			return false, err
		}
	}
	return true, nil
}
