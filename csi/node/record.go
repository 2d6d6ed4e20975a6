package node

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

// recordVersion is increased when an older program could misread a record.
const recordVersion = 1

// record is what was done on this machine for a volume. It suffices to undo it when everything else
// is gone.
type record struct {
	Version    int               `json:"version"`
	VolumeID   string            `json:"volumeID"`
	Attachment attach.Attachment `json:"attachment"`
	// Published is the publish of the request if another one has replaced it, because the log was
	// replayed. Attachment is the new one.
	Published *attach.Attachment `json:"published,omitempty"`
	// Replayed is the generation of the publish under which this node has replayed the log; 0: it
	// has not. That publish may be withdrawn already, and the new one may not exist yet.
	Replayed uint64   `json:"replayed,omitempty"`
	Staging  string   `json:"stagingPath"`
	Block    bool     `json:"block,omitempty"`
	FSType   string   `json:"fsType,omitempty"`
	Flags    []string `json:"mountFlags,omitempty"`
	Targets  []target `json:"targets,omitempty"`
}

// published is the publish of the request.
func (r *record) published() attach.Attachment {
	if r.Published != nil {
		return *r.Published
	}
	return r.Attachment
}

// target is one publication.
type target struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

func (n *unlocked) recordPath(id string) string { return filepath.Join(n.dir, id+".json") }

// load returns nil without an error if the volume has no record; an invalid ID has none.
func (n *unlocked) load(id string) (*record, error) {
	if !attach.ValidID(id) {
		return nil, nil
	}
	r := &record{}
	if there, err := durable.ReadJSON(n.recordPath(id), r); err != nil {
		return nil, fmt.Errorf("stage record: %w", err)
	} else if !there {
		return nil, nil
	}
	if r.Version != recordVersion || r.VolumeID != id {
		return nil, fmt.Errorf("stage record %s is of volume %q, version %d: this program knows version %d", n.recordPath(id), r.VolumeID, r.Version, recordVersion)
	}
	return r, nil
}

func (n *unlocked) save(r *record) error {
	r.Version = recordVersion
	return durable.WriteJSON(n.recordPath(r.VolumeID), r)
}

func (n *unlocked) forget(id string) error {
	if err := os.Remove(n.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stage record: %w", err)
	}
	return fd.SyncDir(n.dir)
}

// has reports whether the path is one of the volume's.
func (r *record) has(path string) bool {
	if filepath.Clean(path) == r.Staging {
		return true
	}
	_, ok := r.target(path)
	return ok
}

func (r *record) target(path string) (target, bool) {
	for _, t := range r.Targets {
		if t.Path == filepath.Clean(path) {
			return t, true
		}
	}
	return target{}, false
}

// without removes a target.
func (r *record) without(path string) {
	var keep []target
	for _, t := range r.Targets {
		if t.Path != filepath.Clean(path) {
			keep = append(keep, t)
		}
	}
	r.Targets = keep
}
