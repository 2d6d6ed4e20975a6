package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/internal/fd"
)

// openVolumes opens the backing volumes beside the default one, which is open, and all members.
func (s *Store) openVolumes(opts Options) error {
	homes := append(slices.Clone(opts.Volumes), bareHomes(s.dir, opts.Volumes, opts.Members)...)
	for _, d := range slices.SortedFunc(slices.Values(homes), func(a, b BackingVolumeDir) int { return strings.Compare(a.Name, b.Name) }) {
		bare := !slices.Contains(opts.Volumes, d)
		if bare {
			if err := errors.Join(os.MkdirAll(d.Dir, 0o700), fd.SyncDir(filepath.Dir(d.Dir))); err != nil {
				return fmt.Errorf("open store: %w", err)
			}
		}
		v, err := s.openVolume(d, opts)
		if err != nil {
			return err
		}
		v.bare = bare
		s.volumes = append(s.volumes, v)
	}
	for _, v := range s.volumes {
		if err := v.openMembers(opts.Members, opts); err != nil {
			return fmt.Errorf("open store: %w", err)
		}
		v.setTiers(opts.Tiers)
		if err := v.sweepMembers(); err != nil {
			return fmt.Errorf("open store: %w", err)
		}
	}
	return nil
}

func (s *Store) closeVolumes() error {
	var errs []error
	for _, v := range s.Directories() {
		errs = append(errs, v.close())
	}
	return errors.Join(errs...)
}

// Directories are the backing volumes, the default one first, each followed by its members, as
// backing volumes of their own.
func (s *Store) Directories() (all []*BackingVolume) {
	for _, v := range s.volumes {
		all = append(all, v)
		for _, m := range v.members {
			all = append(all, m.BackingVolume)
		}
	}
	return all
}
