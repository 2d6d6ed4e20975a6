package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// A backing volume may have members: more directories, on filesystems of their own, over which the
// extents of its LUNs are spread. Names, births, sizes, write-intent bits and maps of extents are
// in the directory of the volume itself, the home; a member has images, and nothing else counts. A
// home without a directory of its own is in that of the store, and has no data: it is bare.
//
// Every object has a map, and an image in each member, as long as the object. One that has not has
// lost something.
//
// Maps name members by numbers. A member gets its number when it is seen first, durably, and keeps
// it; the home has number 1.

// membersFile is in the directory of a volume that has had members.
const membersFile = "members.json"

// homeNumber is that of the volume itself.
const homeNumber uint8 = 1

// MaxMembers of a backing volume, beside the home.
const MaxMembers = 32

// MemberDir is one more directory of a backing volume.
type MemberDir struct {
	Of   string `json:"of"` // the backing volume
	Name string `json:"name"`
	Dir  string `json:"dir"`
}

// volumeName is what the record in its directory calls it.
func (d *MemberDir) volumeName() string { return d.Of + "/" + d.Name }

// member is a directory with images.
type member struct {
	*BackingVolume
	number     uint8
	memberName string
}

// memberRecord is what members.json says of one.
type memberRecord struct {
	Number   uint8  `json:"number"`
	Name     string `json:"name"`
	ID       string `json:"id"` // of its directory
	Draining bool   `json:"draining,omitempty"`
	Removed  bool   `json:"removed,omitempty"` // it was drained, and is not given any more: its number stays its own
}

type membersRecord struct {
	Format       int            `json:"format"`
	Members      []memberRecord `json:"members"`
	HomeDraining bool           `json:"home-draining,omitempty"`
}

// find returns the record of a member that is not removed, nil if there is none.
func (r *membersRecord) find(name string) *memberRecord {
	for i := range r.Members {
		if m := &r.Members[i]; m.Name == name && !m.Removed {
			return m
		}
	}
	return nil
}

// checkMembers refuses mistakes that are visible without access to the disks.
func checkMembers(dir string, volumes []BackingVolumeDir, list []MemberDir) error {
	var errs []error
	bad := func(d MemberDir, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w %s: "+format, append([]any{ErrBackingVolume, d.volumeName()}, args...)...))
	}
	given := append([]BackingVolumeDir{{DefaultBackingVolume, dir}}, volumes...)
	count := map[string]int{}
	if n := len(volumes) + len(bareHomes(dir, volumes, list)); n >= MaxBackingVolumes && len(volumes) < MaxBackingVolumes {
		errs = append(errs, fmt.Errorf("%w number %d: a node can have at most %d, including the first one", ErrBackingVolume, n+1, MaxBackingVolumes))
	}
	for _, d := range list {
		switch {
		case !volumeName.MatchString(d.Of):
			bad(d, "the name of a backing volume must have 1 to 32 of a-z, 0-9 and -, and must not begin or end with -")
			continue
		case !volumeName.MatchString(d.Name) || d.Name == HomePlace:
			bad(d, "a name must have 1 to 32 of a-z, 0-9 and -, must not begin or end with -, and must not be \"home\"")
			continue
		case d.Dir == "":
			bad(d, "its directory is missing")
			continue
		}
		if count[d.Of]++; count[d.Of] == MaxMembers+1 {
			bad(d, "a backing volume can have at most %d members", MaxMembers)
		}
		x := BackingVolumeDir{d.volumeName(), d.Dir}
		errs = append(errs, x.clashes(given)...)
		given = append(given, x)
	}
	return errors.Join(errs...)
}

// bareHomes are those of members whose volume has no directory of its own.
func bareHomes(dir string, volumes []BackingVolumeDir, list []MemberDir) (homes []BackingVolumeDir) {
	for _, d := range list {
		named := func(v BackingVolumeDir) bool { return v.Name == d.Of }
		if d.Of != DefaultBackingVolume && !slices.ContainsFunc(volumes, named) && !slices.ContainsFunc(homes, named) {
			homes = append(homes, BackingVolumeDir{Name: d.Of, Dir: filepath.Join(dir, "volumes", d.Of)})
		}
	}
	return homes
}

// openMembers opens the members of a volume, and gives numbers to new ones. One that the volume has
// had is missing if it is not given: its images may hold extents.
func (v *BackingVolume) openMembers(list []MemberDir, opts Options) error {
	rec, err := v.readMembers()
	if err != nil {
		return err
	}
	first := len(rec.Members) == 0
	var fresh, replaced []*member
	for _, d := range list {
		if d.Of != v.name {
			continue
		}
		x, err := v.s.openVolume(BackingVolumeDir{Name: d.volumeName(), Dir: d.Dir}, opts)
		if err != nil {
			return err
		}
		m := &member{BackingVolume: x, memberName: d.Name}
		v.members = append(v.members, m)
		switch r := rec.find(d.Name); {
		case r == nil:
			n, err := rec.next()
			if err != nil {
				return fmt.Errorf("%w %s: %w", ErrBackingVolume, x.name, err)
			}
			rec.Members = append(rec.Members, memberRecord{Number: n, Name: d.Name, ID: x.id})
			fresh = append(fresh, m)
		case r.ID == x.id:
		case slices.Contains(opts.Lost, r.ID):
			v.s.log.Warn("a lost member of a backing volume is replaced; what was on it has to be copied from the other node", "volume", x.name, "lost", r.ID, "new", x.id, "dir", d.Dir)
			r.ID, r.Draining = x.id, false
			replaced = append(replaced, m)
		default:
			return fmt.Errorf("%w %s: it had the id %s, but the one in %s has the id %s: mount the former one; or, if its disk is lost, start with --lost-volume %s to copy what was on it from the other node",
				ErrBackingVolume, x.name, r.ID, d.Dir, x.id, r.ID)
		}
		r := rec.find(d.Name)
		m.number, m.draining = r.Number, r.Draining
	}
	removed := false
	for i := range rec.Members {
		r := &rec.Members[i]
		if r.Removed || slices.ContainsFunc(v.members, func(m *member) bool { return m.number == r.Number }) {
			continue
		}
		if r.Draining {
			left, err := v.holds(r.Number)
			if err != nil {
				return err
			}
			if left == "" {
				v.s.log.Info("a drained member of a backing volume is not used any more", "volume", v.name+"/"+r.Name, "id", r.ID)
				r.Removed, removed = true, true
				continue
			}
			return fmt.Errorf("%w %s/%s: it is missing from the configuration before it was empty (%s has extents there): add it with its directory until it is",
				ErrBackingVolume, v.name, r.Name, left)
		}
		return fmt.Errorf("%w %s/%s: it is missing from the configuration, and may hold data of LUNs: add it with its directory, and drain it before it is taken away; or, if its disk is lost, add it with an empty directory and --lost-volume %s to copy what was on it from the other node",
			ErrBackingVolume, v.name, r.Name, r.ID)
	}
	v.draining = rec.HomeDraining
	slices.SortFunc(v.members, func(a, b *member) int { return int(a.number) - int(b.number) })
	if len(fresh)+len(replaced) == 0 && !removed {
		return nil
	}
	// In this order: a release that knows no members does not open what has any, an object that has
	// no map has lost it, and a member that is recorded has an image of each object. A crash before
	// the record is written has it all made again.
	if first {
		if err := v.raiseFormat(); err != nil {
			return err
		}
	}
	if err := v.admit(first, fresh, replaced); err != nil {
		return fmt.Errorf("%w %s: make images in new members: %w", ErrBackingVolume, v.name, err)
	}
	return writeRecord(filepath.Join(v.dir, membersFile), rec)
}

// raiseFormat keeps releases away that know no members.
func (v *BackingVolume) raiseFormat() error {
	if v.name == DefaultBackingVolume {
		return writeRecord(filepath.Join(v.s.dir, identityFile), identityRecord{Format: Format, ID: v.s.id, Identity: v.s.ident})
	}
	rec := v.record(v.id)
	rec.Format = Format
	return writeRecord(filepath.Join(v.dir, volumeFile), rec)
}

// next is the lowest number that no member has had.
func (r *membersRecord) next() (uint8, error) {
	n := int(homeNumber) + 1
	for _, m := range r.Members {
		n = max(n, int(m.Number)+1)
	}
	if n > 255 {
		return 0, errors.New("it would be the 255th directory that the backing volume has had")
	}
	return uint8(n), nil
}

func (v *BackingVolume) readMembers() (*membersRecord, error) {
	rec := &membersRecord{Format: Format}
	path := filepath.Join(v.dir, membersFile)
	raw, err := readSmall(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rec, nil
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("%s: %w: the file cannot be decoded (%w)", path, ErrForeign, err)
	}
	if rec.Format > Format {
		return nil, fmt.Errorf("%s: %w: format %d, this release supports formats up to %d", path, ErrNewer, rec.Format, Format)
	}
	return rec, nil
}
