package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/sums"
	"github.com/gemel-storage/gemel/internal/fd"
)

// SumsOptions are for checksums of blocks.
type SumsOptions struct {
	// AdoptRate bounds what is read of images without checksums to compute theirs, in bytes a
	// second; 0: as fast as it goes.
	AdoptRate int64
	Budget    int64 // bytes of memory for checksums of the whole store, 1 MiB at least; sums.PageMemory serve 3.94 MiB of LUNs
}

const (
	// sumsDir is in the state directory, whatever volume the LUNs are in.
	sumsDir = "sums"
	// sumsMark is a file among a volume's LUNs that says that no release has written to them
	// without their checksums. Its name is that of a leftover, so that a process that opens the
	// volume without checksums deletes it, also one of a version that knows of none.
	sumsMark = "sums-are-kept" + tmpSuffix
)

// sumsStore is what a store has for the checksums of all its LUNs.
type sumsStore struct {
	cache *sums.Cache
	rate  int64     // of adoption
	owner uuid.UUID // the store

	mismatched, healed, settled atomic.Uint64 // blocks
}

// SumsCounts are blocks since the store was opened.
type SumsCounts struct {
	Mismatched uint64 // that did not check when they were read; one that is read twice counts twice
	Healed     uint64 // that Heal wrote
	Settled    uint64 // whose content was taken as it was found, since nothing was known of it or it was in doubt
}

// SumsStats are the figures of the cache of checksums; zero if there are none.
func (s *Store) SumsStats() sums.Stats {
	if s.sums == nil {
		return sums.Stats{}
	}
	return s.sums.cache.Stats()
}

// SumsCounts says what came of looking at checksums; zero if there are none.
func (s *Store) SumsCounts() SumsCounts {
	if s.sums == nil {
		return SumsCounts{}
	}
	return SumsCounts{s.sums.mismatched.Load(), s.sums.healed.Load(), s.sums.settled.Load()}
}

// openSums begins with checksums, or ends with those that are there. No image is open yet.
func (s *Store) openSums(o *SumsOptions) error {
	top := filepath.Join(s.dir, sumsDir)
	if o == nil {
		return s.endSums(top, "checksums are switched off")
	}
	owner, err := uuid.Parse(s.id)
	if err != nil {
		return fmt.Errorf("store id %q: %w", s.id, err)
	}
	s.sums = &sumsStore{cache: sums.NewCache(o.Budget), rate: o.AdoptRate, owner: owner}
	s.sums.cache.Hooks.Failed = func(err error) { s.fail(fmt.Errorf("checksums: %w", err)) }
	if s.faults != nil {
		s.sums.cache.Hooks.Write = func(path string, off, n int64) error { return s.faults(FaultSums, s.relative(path), off, n) }
		s.sums.cache.Hooks.Sync = func(path string) error { return s.faults(FaultSumsSync, s.relative(path), 0, 0) }
	}
	for _, v := range s.volumes {
		if err := v.prepareSums(); err != nil {
			return fmt.Errorf("checksums of backing volume %s: %w", v.name, err)
		}
	}
	return nil
}

// endSums deletes a folder of checksums, durably: what is written without them makes them wrong,
// and nothing could detect that.
func (s *Store) endSums(dir, why string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.log.Warn("deleting checksums", "dir", dir, "why", why)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return fd.SyncDir(filepath.Dir(dir))
}

func (s *Store) relative(path string) string {
	if rel, err := filepath.Rel(s.dir, path); err == nil {
		return rel
	}
	return path
}

func (v *BackingVolume) sumsMarked() bool {
	_, err := os.Stat(filepath.Join(v.folder(kindLUN), sumsMark))
	return err == nil
}

func (v *BackingVolume) sumsFolder(k kind) string {
	return filepath.Join(v.s.dir, sumsDir, v.name, string(k))
}

// sumsPath is where the checksums of an object are, whose uuid has been looked at.
func (v *BackingVolume) sumsPath(k kind, id string) string {
	return filepath.Join(v.sumsFolder(k), id+sumsSuffix)
}

func (v *BackingVolume) sumsOwner(id string) (sums.Owner, error) {
	u, err := uuid.Parse(id)
	return sums.Owner{LUN: u, Store: v.s.sums.owner}, err
}

// prepareSums makes the folders, and removes what does not belong to an image that is there. The
// mark is made when there is nothing any more that it could be wrong about.
func (v *BackingVolume) prepareSums() error {
	top := filepath.Join(v.s.dir, sumsDir, v.name)
	if v.sumsStale {
		if err := v.s.endSums(top, "the backing volume was used without checksums"); err != nil {
			return err
		}
	}
	for _, k := range []kind{kindLUN, kindSnapshot} {
		dir := v.sumsFolder(k)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := removeLeftovers(dir); err != nil {
			return err
		}
		if err := v.removeSumsOrphans(k); err != nil {
			return err
		}
		if err := fd.SyncDir(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{top, filepath.Dir(top), v.s.dir} {
		if err := fd.SyncDir(dir); err != nil {
			return err
		}
	}
	if v.sumsStale {
		if err := writeFileDurably(filepath.Join(v.folder(kindLUN), sumsMark), nil); err != nil {
			return err
		}
	}
	return nil
}

// removeSumsOrphans deletes checksums of what is not there: an object made later under the same
// uuid must not find them.
func (v *BackingVolume) removeSumsOrphans(k kind) error {
	entries, err := os.ReadDir(v.sumsFolder(k))
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), sumsSuffix)
		if !ok {
			continue
		}
		if _, err := os.Stat(filepath.Join(v.folder(k), id+imgSuffix)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Remove(filepath.Join(v.sumsFolder(k), e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// createSums makes the checksums of an object that is about to be made, all of it zero.
func (v *BackingVolume) createSums(k kind, id string, size int64) error {
	if v.s.sums == nil {
		return nil
	}
	path := v.sumsPath(k, id)
	rel := v.s.relative(path)
	owner, err := v.sumsOwner(id)
	if err == nil {
		err = v.s.fault(FaultSums, rel, 0, size)
	}
	if err == nil {
		err = sums.Create(path, owner, size, true)
	}
	if err != nil {
		return classify("create", rel, err)
	}
	return nil
}

// removeSums deletes the checksums of an object that is gone. If that fails they wait for the next
// start of the store: an object that is made under the same uuid before gets others in their place.
func (v *BackingVolume) removeSums(k kind, id string) {
	if v.s.sums == nil {
		return
	}
	path := v.sumsPath(k, id)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.s.log.Warn("cannot remove the checksums of a deleted object", "file", path, "err", err)
	}
}
