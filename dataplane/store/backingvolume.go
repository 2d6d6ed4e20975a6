package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
	"github.com/gemel-storage/gemel/internal/longlock"
)

// DefaultBackingVolume is the backing volume in the store's own directory, beside the metadata.
// There always is one.
const DefaultBackingVolume = "default"

// MaxBackingVolumes of a node, the default one included.
const MaxBackingVolumes = 8

// BackingVolumeDir is one more backing volume: a directory on a filesystem of its own.
type BackingVolumeDir struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
}

// ErrBackingVolume is wrapped when the backing volumes that were given cannot be what they are said
// to be.
var ErrBackingVolume = errors.New("backing volume")

// BackingVolume is one backing volume: the folders of LUNs, of snapshots and of intents. A LUN lies
// in one, and so does whatever shares extents with it. All methods are safe for concurrent use.
type BackingVolume struct {
	s       *Store
	name    string
	id      string
	dir     string // of the folders
	rel     string // the same, as errors and faults name it
	reflink bool
	births  bool
	lock    *os.File // nil of the default one: it is under the store's lock
	mark    *markFile

	writeback *writeback
	members   []*member // by number
	bare      bool      // it has no data of its own: all of it is in members

	drains   sync.Mutex // of draining, here and in the members
	draining bool       // nothing new goes to its own directory, and what is there has to move away
	fast     bool       // its own directory is of the fast tier; set when it is opened

	spread spreads

	objects longlock.Mutex // serialises create, delete, resize and the final rename of copies

	opened    registry
	sumsStale bool // what is there of checksums when the store is opened is not of the images
}

// Name of the volume.
func (v *BackingVolume) Name() string { return v.name }

// ID is the random uuid that the volume got when it was made; that of the store for the default
// one.
func (v *BackingVolume) ID() string { return v.id }

// Dir is the directory of its files.
func (v *BackingVolume) Dir() string { return v.dir }

// Reflink reports whether snapshots and clones share extents (FICLONE) or are copied.
func (v *BackingVolume) Reflink() bool {
	return (v.bare || v.reflink) && !slices.ContainsFunc(v.members, func(m *member) bool { return !m.reflink })
}

// Capacity is the size of the volume, its members included, and what is free for unprivileged
// writes, in bytes.
func (v *BackingVolume) Capacity() (total, free int64, err error) {
	if !v.bare {
		if total, free, err = v.room(); err != nil {
			return 0, 0, err
		}
	}
	for _, m := range v.members {
		t, f, err := m.Capacity()
		if err != nil {
			return 0, 0, err
		}
		total, free = total+t, free+f
	}
	return total, free, nil
}

// room is Capacity of the directory alone.
func (v *BackingVolume) room() (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(v.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("capacity of backing volume %s: %w", v.name, err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

func (v *BackingVolume) folder(k kind) string { return filepath.Join(v.dir, string(k)) }

// prepare makes the folders, removes what a crash left unfinished, and finds out what the
// filesystem can do.
func (v *BackingVolume) prepare(opts Options) (err error) {
	var keep []string
	if v.sumsStale = !v.sumsMarked(); opts.Sums != nil {
		keep = []string{sumsMark}
	}
	for _, k := range []kind{kindLUN, kindSnapshot, kindIntents} {
		if err := os.MkdirAll(v.folder(k), 0o700); err != nil {
			return err
		}
		if err := removeLeftovers(v.folder(k), keep...); err != nil {
			return err
		}
	}
	// The folders must be there after a power loss too, or a durable LUN could vanish with its
	// folder.
	if err := fd.SyncDir(v.dir); err != nil {
		return err
	}
	if err := v.removeOrphans(); err != nil {
		return err
	}
	if !opts.NoReflink {
		if v.reflink, err = v.probeReflink(); err != nil {
			return fmt.Errorf("probing for reflink: %w", err)
		}
	}
	if !v.reflink {
		v.s.log.Warn("the filesystem cannot share extents: snapshots and clones would be full copies, and are made with --full-copies only", "volume", v.name, "dir", v.dir)
	}
	err = errNoBirths
	if !opts.NoBirths {
		err = v.probeBirths()
	}
	if v.births = err == nil; !v.births {
		v.s.log.Warn("the filesystem does not support extended user attributes; images of deleted objects cannot be identified and are set aside instead of removed",
			"volume", v.name, "dir", v.dir, "err", err)
	}
	return nil
}

var volumeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// CheckVolumes refuses mistakes in the lists of backing volumes and their members that are visible
// without access to the disks.
func CheckVolumes(dir string, volumes []BackingVolumeDir, members []MemberDir) error {
	return errors.Join(checkVolumes(dir, volumes), checkMembers(dir, volumes, members))
}

func checkVolumes(dir string, volumes []BackingVolumeDir) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w "+format, append([]any{ErrBackingVolume}, args...)...))
	}
	if len(volumes) >= MaxBackingVolumes {
		bad("number %d: a node can have at most %d, including the first one", len(volumes)+1, MaxBackingVolumes)
	}
	given := []BackingVolumeDir{{DefaultBackingVolume, dir}}
	for _, v := range volumes {
		switch {
		case v.Name == DefaultBackingVolume:
			bad("%s: this is the name of the first backing volume, which is in the state directory; choose another name", v.Name)
			continue
		case !volumeName.MatchString(v.Name):
			bad("%q: a name must have 1 to 32 of a-z, 0-9 and -, and must not begin or end with -", v.Name)
			continue
		case v.Dir == "":
			bad("%s: its directory is missing", v.Name)
			continue
		}
		errs = append(errs, v.clashes(given)...)
		given = append(given, v)
	}
	return errors.Join(errs...)
}

// clashes are those of the volume with others that were given: a name or a directory that is used
// twice.
func (v *BackingVolumeDir) clashes(given []BackingVolumeDir) (errs []error) {
	for _, o := range given {
		switch {
		case o.Name == v.Name:
			errs = append(errs, fmt.Errorf("%w %s: the name is used twice, for %s and %s", ErrBackingVolume, v.Name, o.Dir, v.Dir))
		case overlap(absolute(o.Dir), absolute(v.Dir)):
			errs = append(errs, fmt.Errorf("%w %s: %s and %s, the directory of backing volume %s, are the same directory, or one contains the other; give each backing volume its own directory",
				ErrBackingVolume, v.Name, v.Dir, o.Dir, o.Name))
		}
	}
	return errs
}

func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return filepath.Clean(dir)
}

// overlap of two clean paths: the same, or one within the other.
func overlap(a, b string) bool {
	in := func(a, b string) bool { return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/") }
	return in(a, b) || in(b, a)
}

// checkPlaces looks at the directories, which are there: behind other names, by links, they may be
// one, or within each other; and two on one filesystem would count its space twice, and one could
// fill the other.
func checkPlaces(dir string, volumes []BackingVolumeDir, shared bool) error {
	type place struct {
		BackingVolumeDir
		real string
		dev  uint64
	}
	var places []place
	for _, v := range append([]BackingVolumeDir{{DefaultBackingVolume, dir}}, volumes...) {
		real, err := filepath.EvalSymlinks(absolute(v.Dir))
		if err != nil {
			return fmt.Errorf("%w %s: %w", ErrBackingVolume, v.Name, err)
		}
		st, err := os.Stat(real)
		if err != nil {
			return fmt.Errorf("%w %s: %w", ErrBackingVolume, v.Name, err)
		}
		p := place{v, real, st.Sys().(*syscall.Stat_t).Dev}
		for _, o := range places {
			switch {
			case overlap(o.real, p.real):
				return fmt.Errorf("%w %s: %s and %s, the directory of backing volume %s, are the same directory, or one contains the other; give each backing volume its own directory",
					ErrBackingVolume, p.Name, p.Dir, o.Dir, o.Name)
			case o.dev == p.dev && !shared:
				return fmt.Errorf("%w %s: %s is on the same filesystem as %s, the directory of backing volume %s, so its space would count twice; mount another filesystem at one of them",
					ErrBackingVolume, p.Name, p.Dir, o.Dir, o.Name)
			}
		}
		places = append(places, p)
	}
	return nil
}

// volumeRecord is volume.json: whose volume a directory is. Store ties it to one store: what a
// volume holds means something only with the metadata that it belongs to.
type volumeRecord struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	Identity
	Volume string `json:"volume"`
	Store  string `json:"store"`
}

// openVolume opens one more backing volume, making it when its directory is empty or missing.
func (s *Store) openVolume(d BackingVolumeDir, opts Options) (_ *BackingVolume, err error) {
	v := &BackingVolume{s: s, writeback: newWriteback(s), name: d.Name, dir: d.Dir, rel: filepath.Join("volumes", d.Name)}
	if v.lock, err = takeLock(d.Dir); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrBackingVolume, d.Name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.close())
		}
	}()
	if err = v.load(); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrBackingVolume, d.Name, err)
	}
	if v.mark, err = openMark(v); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrBackingVolume, d.Name, err)
	}
	if err = v.prepare(opts); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrBackingVolume, d.Name, err)
	}
	return v, nil
}

func (v *BackingVolume) close() (err error) {
	if v.mark != nil {
		err = v.mark.f.Close()
	}
	if v.lock != nil {
		err = errors.Join(err, v.lock.Close())
	}
	return err
}

// load reads volume.json, or writes it into an empty directory.
func (v *BackingVolume) load() error {
	path := filepath.Join(v.dir, volumeFile)
	raw, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return v.initialise(path)
	}
	if err != nil {
		return err
	}
	var rec volumeRecord
	if err := parseRecord(raw, &rec, func() (int, string) { return rec.Format, rec.ID }); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	own := v.record("")
	for _, x := range []struct{ what, has, want string }{{"cluster", rec.Cluster, own.Cluster}, {"pair", rec.Pair, own.Pair},
		{"node", rec.Node, own.Node}, {"backing volume", rec.Volume, own.Volume}, {"store", rec.Store, own.Store}} {
		if x.has != x.want {
			return foreign(path, x.what, x.has, x.want)
		}
	}
	v.id = rec.ID
	return nil
}

// notBesideAnother refuses to make a new store beside backing volumes that this node has used with
// another one: that one's metadata say what is in them, and its disk may only not be mounted.
// Nothing is written before. What else may be wrong with them is seen when they are opened.
func (s *Store) notBesideAnother(volumes []BackingVolumeDir) error {
	for _, d := range volumes {
		path := filepath.Join(d.Dir, volumeFile)
		raw, err := readSmall(path)
		if err != nil || inUse(d.Dir) {
			continue
		}
		var rec volumeRecord
		err = parseRecord(raw, &rec, func() (int, string) { return rec.Format, rec.ID })
		if err != nil || rec.Identity != s.ident || rec.Volume != d.Name {
			continue
		}
		return fmt.Errorf("%w %s: %s: %w: it belongs to store %q of this node, and %s is empty: mount the disk of that store there; "+
			"if that disk is lost, start with empty backing volumes too to copy everything from the other node", ErrBackingVolume, d.Name, path, ErrForeign, rec.Store, s.dir)
	}
	return nil
}

func inUse(dir string) bool {
	f, err := takeLock(dir)
	if err == nil {
		_ = f.Close()
	}
	return err != nil
}

func (v *BackingVolume) record(id string) volumeRecord {
	return volumeRecord{Format: formatAlone, ID: id, Identity: v.s.ident, Volume: v.name, Store: v.s.id}
}

// initialise makes a new volume, only in a directory without files that could be other data. The
// mark comes first, so that a volume that has a name has a mark too.
func (v *BackingVolume) initialise(path string) error {
	if err := onlyOurs(v.dir, volumeFile, markName); err != nil {
		return err
	}
	if err := makeMark(v.dir); err != nil {
		return err
	}
	v.id = uuid.NewString()
	if err := writeRecord(path, v.record(v.id)); err != nil {
		return err
	}
	v.s.log.Info("created a backing volume", "volume", v.name, "dir", v.dir, "id", v.id, "store", v.s.id)
	return nil
}
