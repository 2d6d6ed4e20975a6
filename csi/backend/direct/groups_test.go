package direct

import (
	"errors"
	"testing"

	"github.com/gemel-storage/gemel/csi/backend"
)

// Without an operator there are no group snapshots, and every method says so.
func TestGroupSnapshotsNeedTheOperator(t *testing.T) {
	b := &Backend{}
	if b.GroupSnapshots() || b.GroupSnapshotID("x") == b.SnapshotID("x") {
		t.Error("group snapshots are offered, or share their IDs with snapshots")
	}
	_, created := b.CreateGroupSnapshot(t.Context(), "g", "g", []string{"v"})
	_, got := b.GetGroupSnapshot(t.Context(), "g")
	for _, err := range []error{created, got, b.DeleteGroupSnapshot(t.Context(), "g", nil)} {
		if !errors.Is(err, backend.ErrUnsupported) {
			t.Error(err)
		}
	}
}
