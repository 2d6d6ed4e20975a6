package userspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/durable"
	"github.com/gemel-storage/gemel/internal/fd"
)

// Names in an attachment's folder.
const (
	recordName = "record.json"
	lockName   = "lock"
	mountName  = "mnt"
)

// record identifies an attachment after a crash. It has no secrets.
type record struct {
	Version    int               `json:"version"` // Attachment.RecordVersion
	BootID     string            `json:"bootID"`  // after another boot, only the record can be left
	Attachment attach.Attachment `json:"attachment"`
	Inode      uint64            `json:"inode"` // of the file in the FUSE mount
	File       string            `json:"file"`  // name of the file
}

func (a *Attacher) folder(volumeID string) (string, error) {
	if !attach.ValidID(volumeID) {
		return "", fmt.Errorf("%w: invalid volume ID %q", attach.ErrInvalid, volumeID)
	}
	return filepath.Join(a.cfg.Dir, volumeID), nil
}

// loadRecord returns nil without an error if there is none.
func loadRecord(dir string) (*record, error) {
	r := &record{}
	if there, err := durable.ReadJSON(filepath.Join(dir, recordName), r); err != nil {
		return nil, fmt.Errorf("attachment record: %w", err)
	} else if !there {
		return nil, nil
	}
	if r.Version < 1 || r.Version > attach.MaxRecordVersion {
		return nil, fmt.Errorf("attachment record %s has version %d, this program knows %d", dir, r.Version, attach.MaxRecordVersion)
	}
	return r, nil
}

func (r *record) save(dir string) error { return durable.WriteJSON(filepath.Join(dir, recordName), r) }

// forget removes the record last: until it is gone, a detach can be repeated.
func forget(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == recordName {
			continue
		}
		// os.Remove, not RemoveAll: a mount point that is still in use must fail, not be emptied.
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("attachment: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("attachment: %w", err)
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("attachment: %w", err)
	}
	return fd.SyncDir(filepath.Dir(dir))
}
