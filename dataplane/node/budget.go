package node

import (
	"fmt"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// A joiner is given the whole metadata at once, so the whole has a bound (pair.MaxMetadata). What
// would make it grow beyond a budget below that is refused where it is asked for, before it is in
// the log: what is in the log both nodes apply alike, whatever their release.

// Budgets of the metadata in bytes, as they are given to a joiner. What is on its way when the
// budget is nearly used up, at both nodes, fits into the rest.
const (
	maxMetadata        = pair.MaxMetadata * 3 / 4
	maxMetadataEarlier = pair.MaxFrameMeta * 7 / 8 // while the other node is of a release that takes one frame
)

// sizes keeps how much each object of the metadata takes. Its owner's lock guards it.
type sizes struct {
	of    map[string]int
	total int64
}

// note says that an object takes n bytes now; 0: it is gone.
func (s *sizes) note(bucket, key string, n int) {
	k := bucket + "/" + key
	if s.of == nil {
		s.of = map[string]int{}
	}
	if n > 0 {
		n += len(key) + len(`"":,`)
	}
	s.total += int64(n - s.of[k])
	if s.of[k] = n; n == 0 {
		delete(s.of, k)
	}
}

// affordable refuses an entry that makes the metadata grow beyond the budget, by the name of what
// is asked for. What is there already can be asked for again.
func (n *Node) affordable(e *meta.Entry, raw []byte) error {
	total := n.md.bytes.Load()
	if total+int64(len(raw)) <= maxMetadataEarlier {
		return nil // without the lock: commands of hosts come here
	}
	n.md.mu.Lock()
	what := grows(n.md.state, e)
	n.md.mu.Unlock()
	if what == "" {
		return nil
	}
	limit, fix := int64(maxMetadata), "delete LUNs, snapshots, labels or mappings that you do not need"
	if v := n.View(); v.Linked && !n.peerKnows(featureParts) {
		limit, fix = maxMetadataEarlier, fmt.Sprintf("upgrade node %s, whose release has this limit", n.self.Peer())
	}
	if total+int64(len(raw)) <= limit {
		return nil
	}
	return fmt.Errorf("%s: this adds %d bytes to the metadata of this pair, which has %d bytes and a limit of %d bytes: %s: %w",
		what, len(raw), total, limit, fix, meta.ErrExhausted)
}

// grows names the field of the control API that an entry adds to the metadata; empty: none.
func grows(s *meta.State, e *meta.Entry) string {
	switch {
	case e.CreateLUN != nil && s.LUNs[e.CreateLUN.LUN.UUID] == nil:
		return "name, labels of LUN " + e.CreateLUN.LUN.UUID
	case e.CreateSnapshot != nil && s.Snapshots[e.CreateSnapshot.Snapshot.UUID] == nil:
		return "name, labels of snapshot " + e.CreateSnapshot.Snapshot.UUID
	case e.BeginGroup != nil && s.Groups[e.BeginGroup.UUID] == nil:
		return "group_uuid " + e.BeginGroup.UUID
	case e.MapHost != nil:
		if l := s.LUNs[e.MapHost.UUID]; l != nil {
			if _, ok := l.Maps[e.MapHost.Host]; !ok {
				return "host_iqn of LUN " + e.MapHost.UUID
			}
		}
	case e.PR != nil && e.PR.Req.ServiceKey != 0 && slices.Contains([]scsi.PRAction{scsi.PRRegister, scsi.PRRegisterIgnore, scsi.PRRegisterMove}, e.PR.Req.Action):
		return "registrations of LUN " + e.PR.UUID
	}
	return ""
}
