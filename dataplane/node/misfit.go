package node

import (
	"fmt"
	"slices"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// A misfit is a file that is not what the metadata here says of it: a LUN's file that is missing or
// shorter than the LUN, a snapshot's file that is missing or has another length, a file that was
// born at another index of the log than the object (store.NoBirth), and an object of which a part
// is gone that lay in a member of its backing volume. What is gone from it would
// read as zeros, and what another object has left in it as what it is. A crash leaves none but of
// an object that is being copied to this node, whose content counts for nothing yet: a file is
// made, and made longer, before the metadata says so. Any other one was changed while the node was
// stopped, by a person, a program or the filesystem: the object needs to be copied whole (R12). The
// install of the next resync makes the file again; until then every command for the object fails,
// and nothing is copied from it, also at a lone member and at a node that a person has forced.

// checkFiles finds the misfits among the files that the store has. It runs before the node does
// anything else.
func (n *Node) checkFiles(have map[fileKey]store.Info) error {
	copying, err := n.loadCopying()
	if err != nil {
		return err
	}
	n.md.misfits = map[string]string{}
	note := func(id, text string, args ...any) {
		if n.md.misfits[id] = ""; copying[id] {
			return
		}
		n.md.misfits[id] = fmt.Sprintf(text, args...)
		n.log.Error("a file differs from the metadata, so it must be copied from the other node", "file", n.md.misfits[id])
	}
	for _, l := range n.md.state.SortedLUNs() {
		what := fmt.Sprintf("the file of LUN %s (%q) in backing volume %s", l.UUID, l.Name, meta.VolumeName(l.Volume))
		switch f, ok := have[lunKey(l)]; {
		case l.Stage != meta.Ready: // it has no content yet
		case !ok:
			note(l.UUID, "%s is missing", what)
		case f.Lost != "":
			note(l.UUID, "%s is not whole: %s", what, f.Lost)
		case f.Size < l.Size:
			note(l.UUID, "%s has %d bytes, but the LUN has %d bytes", what, f.Size, l.Size)
		case f.Known && f.Born != l.Born:
			note(l.UUID, "%s was created by log entry %d, but the LUN by log entry %d: the file belongs to another LUN with this uuid", what, f.Born, l.Born)
		}
	}
	for _, s := range n.md.state.SortedSnapshots() {
		what := fmt.Sprintf("the file of snapshot %s (%q) in backing volume %s", s.UUID, s.Name, meta.VolumeName(s.Volume))
		switch f, ok := have[snapshotKey(s)]; {
		case s.Stage != meta.Ready:
		case !ok:
			note(s.UUID, "%s is missing", what)
		case f.Lost != "":
			note(s.UUID, "%s is not whole: %s", what, f.Lost)
		case f.Size != s.Size:
			note(s.UUID, "%s has %d bytes, but the snapshot has %d bytes", what, f.Size, s.Size)
		case f.Known && f.Born != s.Born:
			note(s.UUID, "%s was created by log entry %d, but the snapshot by log entry %d: the file belongs to another snapshot with this uuid", what, f.Born, s.Born)
		}
	}
	return nil
}

// isMisfit reports whether the file of an object is not what the metadata says. The caller holds
// md.mu.
func (n *Node) isMisfit(id string) bool {
	_, ok := n.md.misfits[id]
	return ok
}

// misfitText names the misfits, and says what a person can do; "" if there are none but what is
// being copied. The caller holds md.mu.
func (n *Node) misfitText() string {
	var texts []string
	for _, text := range n.md.misfits {
		if text != "" {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return ""
	}
	slices.Sort(texts)
	more := ""
	if k := len(texts) - 1; k > 0 {
		more = fmt.Sprintf(", and %d more files differ from the metadata", k)
	}
	return texts[0] + more + ": the data is copied from the other node if that node was a member last; otherwise stop this node and put back the file, or delete the object"
}

// whole refuses to make anything of an object whose file is not what the metadata says: a longer
// file, a snapshot or a clone would look as if nothing were missing.
func (n *Node) whole(fx *meta.Effect) error {
	var ids []string
	for _, l := range []*meta.LUN{fx.Grown, fx.Resized} {
		if l != nil {
			ids = append(ids, l.UUID)
		}
	}
	if l := fx.CreatedLUN; l != nil {
		ids = append(ids, l.SourceLUN, l.SourceSnapshot)
	}
	if s := fx.CreatedSnapshot; s != nil {
		ids = append(ids, s.Source)
	}
	for _, x := range fx.Marked {
		ids = append(ids, x.Source)
	}
	for _, id := range ids {
		if n.isMisfit(id) {
			return fmt.Errorf("node %s: %s", n.self, n.md.misfits[id])
		}
	}
	return nil
}

// standIns gives each LUN whose file is missing an empty one, which is a misfit as well, so that
// the LUN has its place in the tables.
func (n *Node) standIns(have map[fileKey]store.Info) error {
	for _, l := range n.md.state.SortedLUNs() {
		if _, ok := have[lunKey(l)]; ok || !n.isMisfit(l.UUID) {
			continue
		}
		v, err := n.store.Volume(l.Volume)
		if err == nil {
			err = v.StandIn(l.UUID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropMisfits records that files have been created again, or are not needed any more. The caller
// holds md.mu.
func (n *Node) dropMisfits(ids ...string) (dropped bool) {
	for _, id := range ids {
		dropped = dropped || n.isMisfit(id)
		delete(n.md.misfits, id)
	}
	return dropped
}
