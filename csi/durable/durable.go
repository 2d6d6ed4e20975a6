// Package durable writes small files atomically: after a crash a file has either the old or the new
// content.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gemel-storage/gemel/internal/fd"
)

// WriteJSON replaces path by the JSON of v, mode 0600: temporary file, fsync, rename, fsync of the
// folder. When it returns nil, the content survives a power loss.
func WriteJSON(path string, v any) (err error) {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return Write(path, append(raw, '\n'))
}

// Write is WriteJSON for bytes.
func Write(path string, raw []byte) error {
	return WriteBy(filepath.Dir(path), tempPrefix+filepath.Base(path)+"-*", path, raw)
}

// WriteBy is Write with a temporary file in another folder of the same filesystem, with a name
// pattern as for os.CreateTemp, for folders in which every file counts as complete. After a crash,
// the caller has to remove the temporary file.
func WriteBy(tempDir, pattern, path string, raw []byte) (err error) {
	f, err := os.CreateTemp(tempDir, pattern) // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return fd.SyncDir(filepath.Dir(path))
}

// ReadJSON reads what WriteJSON wrote; a missing file is no error. An error names the file.
func ReadJSON(path string, v any) (there bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

const tempPrefix = ".tmp-"

// RemoveTemp removes temporary files that crashes left in a folder. No process may be writing
// there.
func RemoveTemp(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
