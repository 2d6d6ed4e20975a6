// Package store keeps one node's state: a directory with one small bbolt database, for replicated
// metadata and the node's own state, and backing volumes with a sparse file per LUN and per
// snapshot. The first backing volume is in that directory; more of them are directories on
// filesystems of their own.
//
//	lock                               flock: one process at a time
//	store.json                         format, store id, cluster, pair, node
//	untrusted                          present after a failed write or flush, until Trust
//	meta.db                            bbolt, see DB
//	sums/<volume>/luns/<uuid>.sums     checksums of the blocks of LUNs, see package sums, and
//	sums/<volume>/snapshots/           of snapshots, with Options.Sums
//	volumes/default/                   the first backing volume:
//	  meta.mark                        how far the database had come, see metaMark
//	  luns/<uuid>.img                  sparse, as long as the LUN
//	  snapshots/<uuid>.img
//	  intents/<uuid>.bits              which regions of a LUN may differ between the nodes, see Intents
//	  aside/<uuid>.img-<number>        files that were not made here and were in the place of a new object
//
// and in the directory of each other backing volume:
//
//	lock
//	volume.json                        format, id, cluster, pair, node, name, the store's id
//	mark                               see SetMarks
//	luns/, snapshots/, intents/, aside/  as above
//
// Trust is the store's, not a volume's: a node is a member with all that it holds or not at all
// (R12).
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/internal/fd"
)

// Format is the newest on-disk format this package reads. A backing volume with members has it, and
// a store or volume without any the one before, which earlier releases read.
const Format = 2

const formatAlone = 1

const (
	identityFile  = "store.json"
	lockFile      = "lock"
	metaFile      = "meta.db"
	untrustedFile = "untrusted"
	volumeFile    = "volume.json"
	tmpSuffix     = ".tmp"
)

// Identity says whose store a directory is.
type Identity struct {
	Cluster string `json:"cluster"`
	Pair    string `json:"pair"`
	Node    string `json:"node"` // "a" or "b"
}

// FaultFunc is consulted before a file operation; an error it returns takes the place of the
// operation. op is one of the Fault names, path is relative to the store's directory. It is called
// concurrently.
type FaultFunc func(op, path string, off, length int64) error

// CachedFunc says whether the page cache answers a read.
type CachedFunc func(path string, off, length int64) bool

// Operations that Options.Faults sees.
const (
	FaultRead      = "read"
	FaultWrite     = "write"
	FaultSync      = "sync"
	FaultWriteback = "writeback" // a range is written out to make room in the page cache
	FaultDiscard   = "discard"
	FaultCreate    = "create"
	FaultDelete    = "delete"
	FaultTruncate  = "truncate"
	FaultClone     = "clone"
	FaultIntent    = "intent" // a write of one block of an intents file; it is durable when it returns
	FaultMark      = "mark"   // the same of a volume's mark
	FaultSums      = "sums"   // a write of checksums, by its place in their file
	FaultSumsSync  = "sums-sync"
	FaultMap       = "map" // a write of a map of extents, by its place in the file
)

// Options are what is not part of the identity. The zero value is for production, with the default
// logger.
type Options struct {
	Log    *slog.Logger
	Faults FaultFunc  // tests of the layers above; nil costs one comparison
	Cached CachedFunc // with Faults: which reads ReadCached answers; nil: none, for a fault may be a wait
	// NoReflink makes the store copy although the filesystem could share extents (tests).
	NoReflink bool
	// NoBirths makes the store do as if the filesystem had no extended attributes (tests).
	NoBirths bool
	// Volumes are backing volumes beside the default one, Members are more directories of backing
	// volumes.
	Volumes []BackingVolumeDir
	Members []MemberDir
	// Lost are the ids of members whose disk is gone: another one takes the place of each. What was
	// on it counts as missing, see Info.Lost.
	Lost []string
	// Tiers of places that are not all alike.
	Tiers []PlaceTier
	// Sums has a checksum of each block kept, and looked at when it is read; nil: none. A store
	// that is opened without loses those that it had.
	Sums *SumsOptions
	// SharedFilesystem lets them lie on one filesystem (trials, tests).
	SharedFilesystem bool
}

// Store is an open directory. All methods are safe for concurrent use.
type Store struct {
	dir     string
	id      string
	ident   Identity
	log     *slog.Logger
	faults  FaultFunc
	cached  CachedFunc
	lock    *os.File
	db      *DB
	volumes []*BackingVolume // the default one first, then by name
	sums    *sumsStore       // nil: no checksums

	failed atomic.Pointer[error]
	ending atomic.Bool // Ending was called
	failC  chan struct{}
	once   sync.Once
}

type identityRecord struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	Identity
}

// Open opens dir as the store of ident, with its backing volumes, making what is empty or missing.
// It fails with ErrLocked, ErrForeign, ErrNewer, ErrVolume, ErrDamaged or ErrMissing, and a text
// that says what to do. What a crash left unfinished is removed.
func Open(dir string, ident Identity, opts Options) (_ *Store, err error) {
	if ident.Cluster == "" || ident.Pair == "" || ident.Node == "" {
		return nil, fmt.Errorf("store identity %+v: cluster, pair and node must all be set", ident)
	}
	if err := errors.Join(CheckVolumes(dir, opts.Volumes, opts.Members), CheckTiers(opts.Tiers, opts.Volumes, opts.Members)); err != nil {
		return nil, err
	}
	all := slices.Clone(opts.Volumes)
	for _, d := range opts.Members {
		all = append(all, BackingVolumeDir{Name: d.volumeName(), Dir: d.Dir})
	}
	s := &Store{dir: dir, ident: ident, log: opts.Log, faults: opts.Faults, cached: opts.Cached, failC: make(chan struct{})}
	if s.log == nil {
		s.log = slog.Default()
	}
	for _, d := range append([]BackingVolumeDir{{Dir: dir}}, all...) {
		if err := os.MkdirAll(d.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if err := checkPlaces(dir, all, opts.SharedFilesystem); err != nil {
		return nil, err
	}
	if s.lock, err = takeLock(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeVolumes(), s.lock.Close())
		}
	}()
	if err := s.loadIdentity(all); err != nil {
		return nil, err
	}
	first := &BackingVolume{s: s, writeback: newWriteback(s), name: DefaultBackingVolume, id: s.id, dir: filepath.Join(dir, "volumes", DefaultBackingVolume), rel: filepath.Join("volumes", DefaultBackingVolume)}
	s.volumes = []*BackingVolume{first}
	if err := first.prepare(opts); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	for _, d := range []string{filepath.Join(dir, "volumes"), dir} {
		if err := fd.SyncDir(d); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if err := s.openVolumes(opts); err != nil {
		return nil, err
	}
	if err := s.hearStale(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.openSums(opts.Sums); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if s.db, err = openMeta(dir, first.dir, uuid.MustParse(s.id)); err != nil {
		return nil, err
	}
	s.db.onEnd = s.end
	if err := reserveMeta(filepath.Join(dir, metaFile)); err != nil {
		s.log.Warn("cannot reserve space for the metadata; free space, or the metadata may not fit when LUNs fill the volume", "dir", dir, "err", err)
	}
	return s, nil
}

func takeLock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w; stop that process, or give this node another directory", dir, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// loadIdentity reads store.json, or writes it into an empty directory.
func (s *Store) loadIdentity(volumes []BackingVolumeDir) error {
	path := filepath.Join(s.dir, identityFile)
	raw, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s.initialise(path, volumes)
	}
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	rec, err := parseIdentity(raw)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case rec.Cluster != s.ident.Cluster:
		return foreign(path, "cluster", rec.Cluster, s.ident.Cluster)
	case rec.Pair != s.ident.Pair:
		return foreign(path, "pair", rec.Pair, s.ident.Pair)
	case rec.Node != s.ident.Node:
		return foreign(path, "node", rec.Node, s.ident.Node)
	}
	s.id = rec.ID
	return nil
}

func parseIdentity(raw []byte) (rec identityRecord, err error) {
	err = parseRecord(raw, &rec, func() (int, string) { return rec.Format, rec.ID })
	return rec, err
}

// parseRecord reads store.json or volume.json. The format is looked at before anything else, since
// a newer one may have changed it.
func parseRecord(raw []byte, into any, read func() (format int, id string)) error {
	var f struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(raw, &f); err == nil && f.Format > Format {
		return fmt.Errorf("%w: format %d, this release supports formats up to %d; run the release that wrote it, or a newer one",
			ErrNewer, f.Format, Format)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%w: the file cannot be decoded (%w); restore the file, or start with an empty directory", ErrForeign, err)
	}
	format, name := read()
	if format < 1 {
		return fmt.Errorf("%w: format %d does not exist", ErrForeign, format)
	}
	if id, err := uuid.Parse(name); err != nil || id.String() != name {
		return fmt.Errorf("%w: store id %q: %w", ErrForeign, name, ErrBadUUID)
	}
	return nil
}

func foreign(path, what, has, want string) error {
	return fmt.Errorf("%s: %w: it belongs to %s %q, but this is %s %q; give this node its own directory, or an empty one to copy everything from the other node",
		path, ErrForeign, what, has, what, want)
}

// onlyOurs refuses a directory without the file that says whose it is, but with something in it
// that could be data.
func onlyOurs(dir, file string, known ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), tmpSuffix)
		if name == lockFile || name == "lost+found" || name == file && name != e.Name() || slices.Contains(known, name) || slices.Contains(known, e.Name()) {
			continue
		}
		return fmt.Errorf("%s: %w: it has no file %s but contains %q; restore the file, or use an empty directory",
			dir, ErrForeign, file, e.Name())
	}
	return nil
}

// writeRecord says whose a directory is, durably.
func writeRecord(path string, record any) error {
	raw, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFileDurably(path, append(raw, '\n')); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	return nil
}

// initialise makes a new store, only where nothing is that could be data of another owner. The
// metadata database is made first, under a temporary name, then store.json: a crash leaves an empty
// directory, one with an unused database, or a store with all that it has to have.
func (s *Store) initialise(path string, volumes []BackingVolumeDir) error {
	if err := onlyOurs(s.dir, identityFile, metaFile+tmpSuffix); err != nil {
		return err
	}
	if err := s.notBesideAnother(volumes); err != nil {
		return err
	}
	id := uuid.New()
	if err := createMeta(s.dir, id); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.id = id.String()
	if err := writeRecord(path, identityRecord{Format: formatAlone, ID: s.id, Identity: s.ident}); err != nil {
		return err
	}
	s.log.Info("created a store", "dir", s.dir, "id", s.id, "cluster", s.ident.Cluster, "pair", s.ident.Pair, "node", s.ident.Node)
	return nil
}

// LockID names the file by which this process holds the store: device and inode. Within one boot
// of the operating system, a copy of the directory has another one; across boots it has no
// meaning.
func (s *Store) LockID() (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.lock.Fd()), &st); err != nil {
		return "", fmt.Errorf("lock of %s: %w", s.dir, err)
	}
	return fmt.Sprintf("%x:%d", st.Dev, st.Ino), nil
}

// ID is the random uuid the store got when it was made. A wiped or replaced store has another one
// (R6).
func (s *Store) ID() string { return s.id }

// Identity is what Open was given.
func (s *Store) Identity() Identity { return s.ident }

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// DB is the metadata database.
func (s *Store) DB() *DB { return s.db }

// Default is the backing volume in the store's own directory.
func (s *Store) Default() *BackingVolume { return s.volumes[0] }

// Volumes are the backing volumes, the default one first, then by name. The slice is the store's.
func (s *Store) Volumes() []*BackingVolume { return s.volumes }

// Volume finds a backing volume; the empty name is that of the default one. ErrNoVolume.
func (s *Store) Volume(name string) (*BackingVolume, error) {
	if name == "" {
		return s.volumes[0], nil
	}
	for _, v := range s.volumes {
		if v.name == name {
			return v, nil
		}
	}
	return nil, fmt.Errorf("%w %q: there are %s", ErrNoVolume, name, strings.Join(s.names(), ", "))
}

func (s *Store) names() (out []string) {
	for _, v := range s.volumes {
		out = append(out, v.name)
	}
	return out
}

// Ending says that Files are closed for good, so that no checksums need to be flushed for the
// process that opens them next. Unflushed checksums are of regions whose write-intent bit is
// set, and the next process doubts those. So an orderly stop need not wait for a flush of every
// LUN.
func (s *Store) Ending() { s.ending.Store(true) }

// Close releases the directories. Files must have been closed before.
func (s *Store) Close() error {
	for _, v := range s.Directories() {
		v.writeback.wg.Wait()
	}
	for _, v := range s.volumes {
		v.opened.close()
	}
	err := s.db.close()
	return errors.Join(err, s.closeVolumes(), s.lock.Close())
}
