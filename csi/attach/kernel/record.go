package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/durable"
	"github.com/gemel-storage/gemel/internal/fd"
)

const recordSuffix = ".json"

// record is what an attachment is known by after a crash. It holds no secret.
type record struct {
	Version    int               `json:"version"` // Attachment.RecordVersion
	BootID     string            `json:"bootID"`  // of another boot, nothing but records can be left
	Attachment attach.Attachment `json:"attachment"`
	// Partial: it is being made or taken down. Only a call completes or removes it then; the healer
	// leaves it alone.
	Partial bool `json:"partial,omitempty"`
	// CHAP: its sessions authenticate, at one target at least.
	CHAP bool `json:"chap,omitempty"`
}

// goal is the attachment as the record has it, of which the secrets are not known.
func (r *record) goal() (goal, error) {
	u, err := parse(r.Attachment)
	return goal{unit: u, noSecrets: r.CHAP}, err
}

// authenticates reports whether the sessions of an attachment authenticate, at one target at least.
func authenticates(a attach.Attachment) bool {
	return slices.ContainsFunc(a.Targets(), func(t attach.Target) bool { return t.Auth != nil })
}

func (a *Attacher) path(volumeID string) (string, error) {
	if !attach.ValidID(volumeID) {
		return "", fmt.Errorf("%w: volume id %q", attach.ErrInvalid, volumeID)
	}
	return filepath.Join(a.cfg.Dir, volumeID+recordSuffix), nil
}

// load returns nil without an error when there is no record.
func (a *Attacher) load(volumeID string) (*record, error) {
	path, err := a.path(volumeID)
	if err != nil {
		return nil, err
	}
	r := &record{}
	if there, err := durable.ReadJSON(path, r); err != nil {
		return nil, fmt.Errorf("attachment record: %w", err)
	} else if !there {
		return nil, nil
	}
	if r.Version < 1 || r.Version > attach.MaxRecordVersion || r.Attachment.VolumeID != volumeID {
		return nil, fmt.Errorf("attachment record %s is of volume %q, version %d: this program knows version %d", path, r.Attachment.VolumeID, r.Version, attach.MaxRecordVersion)
	}
	return r, nil
}

func (a *Attacher) save(r *record) error {
	path, err := a.path(r.Attachment.VolumeID)
	if err != nil {
		return err
	}
	return durable.WriteJSON(path, r)
}

func (a *Attacher) forget(volumeID string) error {
	path, err := a.path(volumeID)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("attachment record: %w", err)
	}
	return fd.SyncDir(a.cfg.Dir)
}

// Attached implements attach.Attacher.
func (a *Attacher) Attached() ([]string, error) {
	entries, err := os.ReadDir(a.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("kernel attach: %w", err)
	}
	var out []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && attach.ValidID(id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, nil
}

// entry is an attachment by its record.
type entry struct {
	record *record
	goal   goal
}

// entries reads all records once; unread says of each that cannot be read why.
func (a *Attacher) entries() (read []entry, unread []error, err error) {
	ids, err := a.Attached()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		r, err := a.load(id)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		if r == nil {
			continue // detached meanwhile
		}
		g, err := r.goal()
		if err != nil {
			unread = append(unread, fmt.Errorf("attachment record of %s: %w", id, err))
			continue
		}
		read = append(read, entry{r, g})
	}
	return read, unread, nil
}

// LUNs implements attach.Attacher.
func (a *Attacher) LUNs() (int, error) {
	read, unread, err := a.entries()
	n := len(unread)
	for _, e := range read {
		n += len(e.record.Attachment.LUNs())
	}
	return n, err
}

// all is entries for who acts on what attachments share. One that cannot be read may use any
// target: then nothing is known, and that is an error.
func (a *Attacher) all() ([]entry, error) {
	read, unread, err := a.entries()
	if err != nil {
		return nil, err
	}
	if len(unread) > 0 {
		return nil, unread[0]
	}
	return read, nil
}

// besides are the attachments of all other volumes.
func besides(all []entry, volumeID string) (out []unit) {
	for _, e := range all {
		if e.goal.volume != volumeID {
			out = append(out, e.goal.unit.each()...)
		}
	}
	return out
}
