package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gemel-storage/gemel/internal/fd"
)

// staleWorkers flush side by side: each flush asks the disk.
const staleWorkers = 16

// hearStale makes the kernel report lost writes of earlier lives. The kernel keeps that error for
// each file until some descriptor of it has got it, also over the end of a process. A store that an
// earlier life distrusted is given a full copy, whatever was lost; but each file whose loss is
// still unreported would make this life fail, with its first flush, and the next one by the next
// file: one short failure of a disk would cost as many lives as there are LUNs. Nothing of the
// store may be open yet.
func (s *Store) hearStale() error {
	why, err := s.Untrusted()
	if err != nil || why == "" {
		return err
	}
	names := make(chan string)
	var wg sync.WaitGroup
	var lost, all atomic.Int64
	for range staleWorkers {
		wg.Go(func() {
			for name := range names {
				f, err := os.Open(name)
				if err != nil {
					continue // the code that needs it says so
				}
				err = fd.Datasync(f)
				if all.Add(1); errors.Join(err, f.Close()) != nil {
					lost.Add(1)
				}
			}
		})
	}
	for _, dir := range append([]string{s.dir}, s.volumeDirs()...) {
		_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				names <- name
			}
			return nil
		})
	}
	close(names)
	wg.Wait()
	s.log.Info("the store is not trusted because of a failure in an earlier process; the failure is now on record", "dir", s.dir, "why", why, "files", all.Load(), "lost", lost.Load())
	return nil
}

// volumeDirs are the folders of the backing volumes beside the first one, which is in the store's
// own.
func (s *Store) volumeDirs() (dirs []string) {
	for _, v := range s.Directories()[1:] {
		dirs = append(dirs, v.dir)
	}
	return dirs
}
