package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/gemel-storage/gemel/internal/fd"
)

// An object has up to three files: its image, its checksums, and the write-intent bits of a LUN.
// The image gets its name last, so that a crash leaves no object, or all of it. The others are
// made, and the image's content is flushed, at the same time: flushes of one filesystem that come
// together cost little more than one.

// CreateCleanLUN is CreateLUN, and makes the bits of a LUN that both nodes create with the same
// content, clean. A crash before its end leaves no LUN, or one whose bits are all set when it is
// opened, which costs a comparison.
func (v *BackingVolume) CreateCleanLUN(id string, size int64, born uint64) error {
	return v.create(kindLUN, id, size, born, true)
}

func (v *BackingVolume) create(k kind, id string, size int64, born uint64, clean bool) error {
	full, rel, err := v.path(k, id)
	if err != nil {
		return err
	}
	if size <= 0 || clean && size > MaxIntentSize {
		return fmt.Errorf("create %s: size %d: %w", id, size, ErrRange)
	}
	v.objects.Lock()
	defer v.objects.Unlock()
	if err := v.makeWay(k, id, full, rel); err != nil {
		return err
	}
	if k == kindLUN { // those of an attempt that has failed are not this one's
		if err := v.removeIntents(id); err != nil {
			return err
		}
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
	if err := v.bear(f, rel, born); err != nil {
		return errors.Join(err, f.Close(), os.Remove(tmp))
	}
	err = v.createBeside(f, k, id, rel, size, clean)
	if err == nil {
		err = v.createPlaces(k, id, full, size)
	}
	if err != nil {
		err = errors.Join(err, f.Close(), os.Remove(tmp))
		if clean { // bits that are clean must not be found by another LUN
			err = errors.Join(err, v.removeIntents(id))
		}
		return err
	}
	return v.giveName(f, tmp, full, rel)
}

// createBeside makes the other files of an object whose image is complete, and flushes the image.
// They come before its name: an image that has one would be taken for one from before there were
// checksums.
func (v *BackingVolume) createBeside(image *os.File, k kind, id, rel string, size int64, clean bool) error {
	var wg sync.WaitGroup
	var flushed, bits error
	wg.Go(func() {
		if err := image.Sync(); err != nil {
			flushed = classify("create", rel, err)
		}
	})
	if clean {
		wg.Go(func() { bits = v.createCleanIntents(id, size) })
	}
	sums := v.createSums(k, id, size)
	wg.Wait()
	return errors.Join(flushed, sums, bits)
}

func (v *BackingVolume) createCleanIntents(id string, size int64) error {
	full, rel, err := v.path(kindIntents, id)
	if err != nil {
		return err
	}
	owner := v.intentOwner(id)
	return v.createIntents(&owner, full, rel, size, true)
}

// publish gives a complete temporary file its name. Content before name, name before success: after
// a crash there is either no object, or all of it, or a leftover that Open removes.
func (v *BackingVolume) publish(f *os.File, tmp, full, rel string) error {
	if err := f.Sync(); err != nil {
		return errors.Join(classify("create", rel, err), f.Close(), os.Remove(tmp))
	}
	return v.giveName(f, tmp, full, rel)
}

// giveName is publish for a file that was flushed.
func (v *BackingVolume) giveName(f *os.File, tmp, full, rel string) error {
	err := f.Close()
	if err == nil {
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
