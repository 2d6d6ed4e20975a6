package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// The birth of an image is the index of the log entry that made its object. The name of an image
// says little: a LUN that is deleted and made again has the uuid that it had. An image has its
// birth before it has its name, so one with another birth than the metadata's is of another object,
// and one without any was not made here: by an earlier release, or by a person.

// NoBirth is the birth of an image that no log entry has made: it is the store's, and no object's.
const NoBirth uint64 = 0

const (
	// bornAttr is the extended attribute with the birth, a decimal number.
	bornAttr = "user.gemel.born"
	// asideDir is the folder of a backing volume with files that were not made here and were in the
	// way.
	asideDir = "aside"
)

var errNoBirths = errors.New("the store is opened without birth attributes")

// FaultAside is what Options.Faults sees before a file is set aside.
const FaultAside = "aside"

// Births reports whether images keep their birth. Not every filesystem has extended attributes of
// users.
func (v *BackingVolume) Births() bool { return v.births }

// probeBirths finds out whether there are extended attributes. A full disk does not say: there are.
func (v *BackingVolume) probeBirths() (err error) {
	if err = v.roomForProbe(); err == nil {
		err = tryBirths(v.folder(kindLUN))
	}
	if noSpace(err) {
		return nil
	}
	return err
}

// tryBirths tries an extended attribute in dir.
func tryBirths(dir string) error {
	f, err := os.CreateTemp(dir, "probe-*"+tmpSuffix)
	if err != nil {
		return err
	}
	defer func() { f.Close(); os.Remove(f.Name()) }()
	return setBorn(f, NoBirth)
}

func setBorn(f *os.File, born uint64) error {
	return fd.With(f, func(d int) error { return unix.Fsetxattr(d, bornAttr, strconv.AppendUint(nil, born, 10), 0) })
}

// parseBorn takes what setBorn writes and nothing else: what is not understood is no birth.
func parseBorn(raw []byte) (born uint64, known bool) {
	born, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil || strconv.FormatUint(born, 10) != string(raw) {
		return 0, false
	}
	return born, true
}

// bornOf asks for a birth by what get reads the attribute with.
func (v *BackingVolume) bornOf(get func(to []byte) (int, error)) (born uint64, known bool, err error) {
	if !v.births {
		return 0, false, nil
	}
	var raw [20]byte // the largest number there is
	n, err := get(raw[:])
	switch {
	case err == nil:
		born, known = parseBorn(raw[:n])
		return born, known, nil
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM): // the last one of what is no file
		return 0, false, nil
	}
	return 0, false, err
}

// bear gives an image that has no name yet its birth. It is durable when the image is.
func (v *BackingVolume) bear(f *os.File, rel string, born uint64) error {
	if !v.births {
		return nil
	}
	if err := setBorn(f, born); err != nil {
		return classify("set attribute "+bornAttr, rel, err)
	}
	return nil
}

// MarkLUN sets the birth of a LUN whose image has none because an earlier release created it:
// the caller knows the birth. It is not flushed, because a caller that finds no birth sets it
// again. Where images keep no birth it does nothing.
func (v *BackingVolume) MarkLUN(id string, born uint64) error { return v.markImage(kindLUN, id, born) }

// MarkSnapshot is MarkLUN of a snapshot.
func (v *BackingVolume) MarkSnapshot(id string, born uint64) error {
	return v.markImage(kindSnapshot, id, born)
}

func (v *BackingVolume) markImage(k kind, id string, born uint64) error {
	full, rel, err := v.path(k, id)
	if err != nil {
		return err
	}
	v.objects.Lock()
	defer v.objects.Unlock()
	f, err := os.OpenFile(full, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", rel, ErrNotFound)
	}
	if err != nil {
		return classify("open", rel, err)
	}
	return errors.Join(v.bear(f, rel, born), f.Close())
}

// makeWay takes away what has the name of an object that is about to be made: the metadata has no
// such object, so it counts for nothing. What the store has made is removed: a deletion could not,
// or a crash came between the making of the object and the metadata. What it has not made may be
// data of a person, and is set aside. ErrOccupied if neither can be done. The objects are locked.
func (v *BackingVolume) makeWay(k kind, id, full, rel string) error {
	if _, err := os.Lstat(full); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return classify("stat", rel, err)
	}
	born, known, err := v.bornOf(func(to []byte) (int, error) { return unix.Lgetxattr(full, bornAttr, to) })
	switch {
	case err != nil:
		err = classify("read "+bornAttr+" of", rel, err)
	case known:
		v.s.log.Info("removing the file of an object that was deleted or never finished, to create an object with the same uuid", "file", full, "born", born)
		err = v.removeLocked(k, id, full, rel)
	default:
		err = v.setAside(k, id, full, rel)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", rel, ErrOccupied, err)
	}
	return nil
}

// setAside moves a file to a folder in which the store looks for no objects, durably. What the
// store has noted of it is removed, in the order of a removal. A crash leaves it in either place.
func (v *BackingVolume) setAside(k kind, id, full, rel string) error {
	if err := v.s.fault(FaultAside, rel, 0, 0); err != nil {
		return classify("set aside", rel, err)
	}
	dir := filepath.Join(v.dir, asideDir)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = fd.SyncDir(v.dir)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return classify("set aside", rel, err)
	}
	to, err := freeName(filepath.Join(dir, filepath.Base(full)))
	if err != nil {
		return classify("set aside", rel, err)
	}
	if k == kindLUN {
		if err := v.removeIntents(id); err != nil {
			return err
		}
	}
	if err := v.unname(full, rel, func() error { return os.Rename(full, to) }); err != nil {
		return classify("set aside", rel, err)
	}
	if err := errors.Join(fd.SyncDir(dir), fd.SyncDir(filepath.Dir(full))); err != nil {
		err = classify("set aside", rel, err)
		v.s.fail(err)
		return err
	}
	v.setPlacesAside(k, id, full, to)
	v.removeSums(k, id)
	v.s.log.Warn("set aside a file that this node did not create and that had the name of a new object; look at the file, and move or delete it",
		"was", full, "is", to, "volume", v.name)
	return nil
}

// freeName appends a number to a name, the first one that makes it free.
func freeName(base string) (string, error) {
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s-%d", base, n)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", err
		}
	}
}
