package node

import (
	"fmt"

	"github.com/gemel-storage/gemel/target/meta"
	"github.com/gemel-storage/gemel/target/store"
)

// A misfit is a file that is not what the metadata here says of it: a LUN's file that is missing or shorter than the LUN, a snapshot's file that is
// missing or has another length, and a file that was born at another index of the log than the object (store.NoBirth). What is gone from it would read as zeros, and what another object has left in it as what it is. A crash leaves none but of an object that is being copied to this node, whose
// content counts for nothing yet: a file is made, and made longer, before the metadata says so. Any other one was changed while the node was stopped, by a
// person, a program or the filesystem: the node needs a full copy (R12). The install of its next resync makes the file again; until then every command for
// it fails, also at a node that a person has forced.

// checkFiles finds the misfits among the files that the store has, and is the reason not to trust this store, "" if there are none. It runs before the
// node does anything else.
func (n *Node) checkFiles(have map[fileKey]store.Info) (doubt string, err error) {
	copying, err := n.loadCopying()
	if err != nil {
		return "", err
	}
	n.misfits = map[string]bool{}
	others := 0
	note := func(id, text string, args ...any) {
		n.misfits[id] = true
		if copying[id] {
			return
		}
		text = fmt.Sprintf(text, args...)
		n.log.Error("a file is not what the metadata says: everything has to be copied from the peer", "file", text)
		if doubt != "" {
			others++
		} else {
			doubt = text
		}
	}
	for _, l := range n.state.SortedLUNs() {
		what := fmt.Sprintf("the file of LUN %s (%q) in backing volume %s", l.UUID, l.Name, meta.VolumeName(l.Volume))
		switch f, ok := have[lunKey(l)]; {
		case l.Stage != meta.Ready: // it has no content yet
		case !ok:
			note(l.UUID, "%s is missing", what)
		case f.Size < l.Size:
			note(l.UUID, "%s has %d bytes, and the LUN %d", what, f.Size, l.Size)
		case f.Known && f.Born != l.Born:
			note(l.UUID, "%s was made by entry %d of the log, and the LUN by entry %d: it is another LUN's of that uuid", what, f.Born, l.Born)
		}
	}
	for _, s := range n.state.SortedSnapshots() {
		what := fmt.Sprintf("the file of snapshot %s (%q) in backing volume %s", s.UUID, s.Name, meta.VolumeName(s.Volume))
		switch f, ok := have[snapshotKey(s)]; {
		case s.Stage != meta.Ready:
		case !ok:
			note(s.UUID, "%s is missing", what)
		case f.Size != s.Size:
			note(s.UUID, "%s has %d bytes, and the snapshot %d", what, f.Size, s.Size)
		case f.Known && f.Born != s.Born:
			note(s.UUID, "%s was made by entry %d of the log, and the snapshot by entry %d: it is another snapshot's of that uuid", what, f.Born, s.Born)
		}
	}
	if others > 0 {
		doubt += fmt.Sprintf(", and %d more files are not what the metadata says", others)
	}
	return doubt, nil
}

// standIns gives each LUN whose file is missing an empty one, which is a misfit as well, so that the LUN has its place in the tables.
func (n *Node) standIns(have map[fileKey]store.Info) error {
	for _, l := range n.state.SortedLUNs() {
		if _, ok := have[lunKey(l)]; ok || !n.misfits[l.UUID] {
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

// mend tells that files have been made again.
func (n *Node) mend(ids []string) {
	for _, id := range ids {
		delete(n.misfits, id)
	}
}
