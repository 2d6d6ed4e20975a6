package direct

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/csi/backend"
)

// errGroups: a group snapshot needs a coordinator that outlives the call and ends what it began,
// which only the operator is.
var errGroups = fmt.Errorf("group snapshots: %w: use --backend objects", backend.ErrUnsupported)

// GroupSnapshots implements backend.Backend.
func (b *Backend) GroupSnapshots() bool { return false }

// GroupSnapshotID implements backend.Backend.
func (b *Backend) GroupSnapshotID(name string) string {
	return uuid.NewSHA1(space, []byte("group/"+name)).String()
}

// CreateGroupSnapshot implements backend.Backend.
func (b *Backend) CreateGroupSnapshot(context.Context, string, string, []string) (backend.GroupSnapshot, error) {
	return backend.GroupSnapshot{}, errGroups
}

// DeleteGroupSnapshot implements backend.Backend.
func (b *Backend) DeleteGroupSnapshot(context.Context, string, []string) error { return errGroups }

// GetGroupSnapshot implements backend.Backend.
func (b *Backend) GetGroupSnapshot(context.Context, string) (backend.GroupSnapshot, error) {
	return backend.GroupSnapshot{}, errGroups
}
