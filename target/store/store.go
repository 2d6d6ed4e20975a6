// Package store keeps one node's state in a directory: a sparse file per LUN and per snapshot, and one small bbolt
// database for replicated metadata and the node's own state.
//
//	lock                               flock: one process at a time
//	store.json                         format, store id, cluster, pair, node
//	untrusted                          present after a failed write or flush, until Trust
//	meta.db                            bbolt, see DB
//	volumes/<name>/luns/<uuid>.img     sparse, as long as the LUN
//	volumes/<name>/snapshots/<uuid>.img
//	volumes/<name>/intents/<uuid>.bits which regions of a LUN may differ between the nodes, see Intents
//
// There is one backing volume today, "default".
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Format is the newest on-disk format this package reads, and the one it writes.
const Format = 1

const (
	identityFile  = "store.json"
	lockFile      = "lock"
	metaFile      = "meta.db"
	untrustedFile = "untrusted"
	defaultVolume = "default"
	tmpSuffix     = ".tmp"
)

// Identity says whose store a directory is.
type Identity struct {
	Cluster string `json:"cluster"`
	Pair    string `json:"pair"`
	Node    string `json:"node"` // "a" or "b"
}

// FaultFunc is consulted before a file operation; an error it returns takes the place of the operation.
// op is one of the Fault names, path is relative to the store's directory. It is called concurrently.
type FaultFunc func(op, path string, off, length int64) error

// Operations that Options.Faults sees.
const (
	FaultRead     = "read"
	FaultWrite    = "write"
	FaultSync     = "sync"
	FaultDiscard  = "discard"
	FaultCreate   = "create"
	FaultDelete   = "delete"
	FaultTruncate = "truncate"
	FaultClone    = "clone"
	FaultIntent   = "intent" // a write of one block of an intents file; it is durable when it returns
)

// Options are what is not part of the identity. The zero value is for production, with the default logger.
type Options struct {
	Log    *slog.Logger
	Faults FaultFunc // tests of the layers above; nil costs one comparison
	// NoReflink makes the store copy although the filesystem could share extents (tests).
	NoReflink bool
}

// Store is an open directory. All methods are safe for concurrent use.
type Store struct {
	dir     string
	id      string
	ident   Identity
	log     *slog.Logger
	faults  FaultFunc
	lock    *os.File
	db      *bbolt.DB
	reflink bool

	objects sync.Mutex // serialises create, delete, resize and the final rename of copies
	failed  atomic.Pointer[error]
	failC   chan struct{}
	once    sync.Once
}

type identityRecord struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	Identity
}

// Open opens dir as the store of ident, making it when it is empty or missing. It fails with ErrLocked, ErrForeign or
// ErrNewer, and a text that says what to do. What a crash left unfinished is removed.
func Open(dir string, ident Identity, opts Options) (_ *Store, err error) {
	if ident.Cluster == "" || ident.Pair == "" || ident.Node == "" {
		return nil, fmt.Errorf("store identity %+v: cluster, pair and node must all be set", ident)
	}
	s := &Store{dir: dir, ident: ident, log: opts.Log, faults: opts.Faults, failC: make(chan struct{})}
	if s.log == nil {
		s.log = slog.Default()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.lock.Close()
		}
	}()
	if err := s.loadIdentity(); err != nil {
		return nil, err
	}
	for _, d := range []string{s.volumeDir("luns"), s.volumeDir("snapshots"), s.volumeDir("intents")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		if err := removeLeftovers(d); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	// The folders must be there after a power loss too, or a durable LUN could vanish with its folder.
	for _, d := range []string{s.volumeDir(""), filepath.Join(dir, "volumes"), dir} {
		if err := syncDir(d); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	if err := s.removeOrphans(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if !opts.NoReflink {
		if s.reflink, err = probeReflink(s.volumeDir("luns")); err != nil {
			return nil, fmt.Errorf("open store: probing for reflink: %w", err)
		}
	}
	if !s.reflink {
		s.log.Warn("the filesystem can not share extents: snapshots and clones are full copies", "dir", dir)
	}
	s.db, err = bbolt.Open(filepath.Join(dir, metaFile), 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Join(dir, metaFile), err)
	}
	if err := reserveMeta(filepath.Join(dir, metaFile)); err != nil {
		s.log.Warn("metadata shares what space is left with the LUNs: make room", "dir", dir, "err", err)
	}
	return s, nil
}

func (s *Store) takeLock() error {
	path := filepath.Join(s.dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("%s: %w; stop it, or give this node a directory of its own", s.dir, ErrLocked)
		}
		return fmt.Errorf("lock %s: %w", path, err)
	}
	s.lock = f
	return nil
}

// loadIdentity reads store.json, or writes it into an empty directory.
func (s *Store) loadIdentity() error {
	path := filepath.Join(s.dir, identityFile)
	raw, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s.initialise(path)
	}
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	rec, err := parseIdentity(raw)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case rec.Cluster != s.ident.Cluster:
		return s.foreign(path, "cluster", rec.Cluster, s.ident.Cluster)
	case rec.Pair != s.ident.Pair:
		return s.foreign(path, "pair", rec.Pair, s.ident.Pair)
	case rec.Node != s.ident.Node:
		return s.foreign(path, "node", rec.Node, s.ident.Node)
	}
	s.id = rec.ID
	return nil
}

// parseIdentity reads store.json. The format is looked at before anything else, since a newer one may have changed it.
func parseIdentity(raw []byte) (rec identityRecord, err error) {
	var f struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(raw, &f); err == nil && f.Format > Format {
		return rec, fmt.Errorf("%w: format %d, this version reads up to %d; run the version that wrote it, or a newer one",
			ErrNewer, f.Format, Format)
	}
	if err := json.Unmarshal(raw, &rec); err != nil {
		return rec, fmt.Errorf("%w: unreadable (%w); restore the file or start with an empty directory", ErrForeign, err)
	}
	if rec.Format < 1 {
		return rec, fmt.Errorf("%w: format %d does not exist", ErrForeign, rec.Format)
	}
	if id, err := uuid.Parse(rec.ID); err != nil || id.String() != rec.ID {
		return rec, fmt.Errorf("%w: store id %q: %w", ErrForeign, rec.ID, ErrBadUUID)
	}
	return rec, nil
}

func (s *Store) foreign(path, what, has, want string) error {
	return fmt.Errorf("%s: %w: it belongs to %s %q, this is %s %q; point the node at its own directory, or at an empty one to have it copied from the peer",
		path, ErrForeign, what, has, what, want)
}

// initialise makes a new store, only where nothing is that could be somebody's data. store.json is written first,
// so a crash right after leaves either an empty directory or a named one.
func (s *Store) initialise(path string) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockFile, identityFile + tmpSuffix, "lost+found":
		default:
			return fmt.Errorf("%s: %w: it has no %s but holds %q; restore the file, or use an empty directory",
				s.dir, ErrForeign, identityFile, e.Name())
		}
	}
	rec := identityRecord{Format: Format, ID: uuid.NewString(), Identity: s.ident}
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFileDurably(path, append(raw, '\n')); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	s.id = rec.ID
	s.log.Info("new store", "dir", s.dir, "id", s.id, "cluster", s.ident.Cluster, "pair", s.ident.Pair, "node", s.ident.Node)
	return nil
}

// ID is the random uuid the store got when it was made. A wiped or replaced store has another one (R6).
func (s *Store) ID() string { return s.id }

// Identity is what Open was given.
func (s *Store) Identity() Identity { return s.ident }

// Dir is the store's directory.
func (s *Store) Dir() string { return s.dir }

// DB is the metadata database. Buckets belong to their users; none is made here.
func (s *Store) DB() *bbolt.DB { return s.db }

// Reflink reports whether snapshots and clones share extents (FICLONE) or are copied.
func (s *Store) Reflink() bool { return s.reflink }

// Capacity is the size of the backing volumes and what is free for unprivileged writes, in bytes.
func (s *Store) Capacity() (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.volumeDir(""), &st); err != nil {
		return 0, 0, fmt.Errorf("capacity: %w", err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// Close releases the directory. Files must have been closed before.
func (s *Store) Close() error {
	err := s.db.Close()
	return errors.Join(err, s.lock.Close())
}

func (s *Store) volumeDir(kind string) string {
	return filepath.Join(s.dir, "volumes", defaultVolume, kind)
}
