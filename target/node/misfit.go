package node

import (
	"fmt"

	"github.com/gemel-storage/gemel/target/meta"
)

// A misfit is a file that is not what the metadata here says of it: a LUN's file that is missing or shorter than the LUN, a snapshot's file that is
// missing or has another length. What is gone from it would read as zeros. A crash leaves none but of an object that is being copied to this node, whose
// content counts for nothing yet: a file is made, and made longer, before the metadata says so. Any other one was changed while the node was stopped, by a
// person, a program or the filesystem: the node needs a full copy (R12). The install of its next resync makes the file again; until then every command for
// it fails, also at a node that a person has forced.

// checkFiles finds the misfits among the files that the store has, and is the reason not to trust this store, "" if there are none. It runs before the
// node does anything else.
func (n *Node) checkFiles(have map[fileKey]int64) (doubt string, err error) {
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
		switch size, ok := have[fileKey{l.Volume, l.UUID}]; {
		case l.Stage != meta.Ready: // it has no content yet
		case !ok:
			note(l.UUID, "%s is missing", what)
		case size < l.Size:
			note(l.UUID, "%s has %d bytes, and the LUN %d", what, size, l.Size)
		}
	}
	for _, s := range n.state.SortedSnapshots() {
		what := fmt.Sprintf("the file of snapshot %s (%q) in backing volume %s", s.UUID, s.Name, meta.VolumeName(s.Volume))
		switch size, ok := have[fileKey{s.Volume, s.UUID}]; {
		case s.Stage != meta.Ready:
		case !ok:
			note(s.UUID, "%s is missing", what)
		case size != s.Size:
			note(s.UUID, "%s has %d bytes, and the snapshot %d", what, size, s.Size)
		}
	}
	if others > 0 {
		doubt += fmt.Sprintf(", and %d more files are not what the metadata says", others)
	}
	return doubt, nil
}

// standIns gives each LUN whose file is missing an empty one, which is a misfit as well, so that the LUN has its place in the tables.
func (n *Node) standIns(have map[fileKey]int64) error {
	for _, l := range n.state.SortedLUNs() {
		if _, ok := have[fileKey{l.Volume, l.UUID}]; ok || !n.misfits[l.UUID] {
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
