package arbiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// File keeps the record in a file on storage that both nodes share and that outlives either: the
// demo, tests, two processes on one machine. A lock file beside it serialises writers; readers see
// whole versions by rename.
type File struct{ path string }

// NewFile uses path; its folder must exist.
func NewFile(path string) (*File, error) {
	st, err := os.Stat(filepath.Dir(path))
	if err != nil || !st.IsDir() {
		return nil, fmt.Errorf("arbiter file %s: its directory does not exist: create it, or name another file", path)
	}
	return &File{path}, nil
}

type fileRecord struct {
	Version uint64      `json:"version"`
	Record  pair.Record `json:"record"`
}

func (f *File) read() (fileRecord, error) {
	var r fileRecord
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, ErrNotFound
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("arbiter file %s is damaged: %w", f.path, err)
	}
	return r, nil
}

// Get implements Arbiter.
func (f *File) Get(context.Context) (pair.Record, string, error) {
	r, err := f.read()
	return r.Record, strconv.FormatUint(r.Version, 10), err
}

// CompareAndSwap implements Arbiter. The new version is durable before it can be seen.
func (f *File) CompareAndSwap(ctx context.Context, version string, rec pair.Record) (string, error) {
	unlock, err := f.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	cur, err := f.read()
	switch {
	case errors.Is(err, ErrNotFound):
		if version != "" {
			return "", ErrConflict
		}
	case err != nil:
		return "", err
	case version != strconv.FormatUint(cur.Version, 10):
		return "", ErrConflict
	}
	next := fileRecord{Version: cur.Version + 1, Record: rec}
	b, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return "", err
	}
	if err := f.replace(append(b, '\n')); err != nil {
		return "", err
	}
	return strconv.FormatUint(next.Version, 10), nil
}

func (f *File) replace(b []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return err
	}
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}

// lock takes the lock file; a writer that died releases it with its descriptor.
func (f *File) lock(ctx context.Context) (unlock func(), err error) {
	l, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(l.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = l.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-ctx.Done():
			_ = l.Close()
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	_ = l.Close()
	return nil, err
}
