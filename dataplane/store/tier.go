package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// A volume's places may be of two tiers. The store puts what is new on the places that are not
// fast; which extents lie on fast ones is decided above (package tiering). A tier is a matter of
// the configuration, and nothing of it is recorded: a place that becomes fast, or is not any more,
// keeps what lies there.

// PlaceTier gives a place of a backing volume its tier. A place that none names is not fast.
type PlaceTier struct {
	Of   string // the backing volume
	Name string // of the member, or HomePlace
	Fast bool
}

// CheckTiers refuses tiers of places that do not exist, two tiers of one place, and volumes that
// have fast places only.
func CheckTiers(tiers []PlaceTier, volumes []BackingVolumeDir, members []MemberDir) error {
	var errs []error
	bad := func(t PlaceTier, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w %s/%s: "+format, append([]any{ErrBackingVolume, t.Of, t.Name}, args...)...))
	}
	for i, t := range tiers {
		var places []string
		if t.Of == DefaultBackingVolume || slices.ContainsFunc(volumes, func(v BackingVolumeDir) bool { return v.Name == t.Of }) {
			places = append(places, HomePlace)
		}
		for _, m := range members {
			if m.Of == t.Of {
				places = append(places, m.Name)
			}
		}
		isFast := func(name string) bool { return slices.Contains(tiers, PlaceTier{t.Of, name, true}) }
		same := func(x PlaceTier) bool { return x.Of == t.Of && x.Name == t.Name }
		switch {
		case len(places) == 0:
			bad(t, "there is no backing volume of that name")
		case !slices.Contains(places, t.Name):
			bad(t, "the backing volume has no such member; it has %s", strings.Join(places, ", "))
		case slices.IndexFunc(tiers, same) != i:
			bad(t, "it is given a tier twice")
		case t.Fast && !slices.ContainsFunc(places, func(name string) bool { return !isFast(name) }):
			bad(t, "a fast tier needs a member beside it that is not fast, where new data goes: add one, or leave the tier out")
		}
	}
	return errors.Join(errs...)
}

// setTiers marks the places of an open volume that are fast.
func (v *BackingVolume) setTiers(tiers []PlaceTier) {
	v.fast = slices.Contains(tiers, PlaceTier{v.name, HomePlace, true})
	for _, m := range v.members {
		m.fast = slices.Contains(tiers, PlaceTier{v.name, m.memberName, true})
	}
}

// Tiered says whether the volume has places of both tiers.
func (v *BackingVolume) Tiered() bool {
	list := v.Places()
	isFast := func(p Place) bool { return p.Fast }
	return slices.ContainsFunc(list, isFast) && slices.ContainsFunc(list, func(p Place) bool { return !p.Fast })
}

// ReadTime is how long the disk of a place takes to read a block that the page cache does not have.
// It waits as long.
func (p *Place) ReadTime() (time.Duration, error) {
	rel := filepath.Join(p.dir.rel, probeFile)
	took, err := p.readTime(rel)
	if err != nil {
		return 0, classify("read", rel, err)
	}
	return took, nil
}

func (p *Place) readTime(rel string) (took time.Duration, err error) {
	name := filepath.Join(p.dir.dir, probeFile)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		if err := p.dir.writeProbe(); err != nil {
			return 0, err
		}
		f, err = os.Open(name)
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// Writes of this file are durable before they end, so nothing keeps its page.
	if err := fd.With(f, func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) }); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.dir.s.fault(FaultRead, rel, 0, probeBlock); err != nil {
		return 0, err
	}
	if _, err := f.ReadAt(make([]byte, probeBlock), 0); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}
