// Package durable writes small files so that after a crash there is either the old content or the new.
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

// WriteJSON replaces path by the JSON of v, mode 0600: temporary file, fsync, rename, fsync of the folder. When it
// returns nil the content survives a loss of power.
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

// WriteBy is Write by way of a temporary file in another folder of the same filesystem, named by a pattern as os.CreateTemp has it, for
// folders in which somebody takes every file for a finished one. What a crash leaves there is the caller's to remove.
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

// ReadJSON reads what WriteJSON wrote; not there is no error. A file that is not JSON is named.
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

// RemoveTemp removes what crashes left in a folder between the creation of a file and its renaming. Nobody may be
// writing there.
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
