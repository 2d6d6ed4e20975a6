package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// Where a filesystem cannot share extents, a snapshot or clone is a full copy: it takes as much
// space as its source has data, and the reading of all of it. That is refused, before anything is
// made or held, unless the node was started with --full-copies. A copy that is there or under way
// continues without the flag.

// copiesHere refuses snapshots and clones in a backing volume of this node.
func (n *Node) copiesHere(volume string) error {
	v, err := n.store.Volume(volume)
	if err != nil {
		return err
	}
	if v.Reflink() || n.cfg.FullCopies {
		return nil
	}
	return fmt.Errorf("backing volume %s of node %s is on a filesystem that cannot share extents, so snapshots and clones would be full copies: "+
		"use XFS with reflink=1, or accept full copies with fullCopies of the StorageCluster (--full-copies of the nodes): %w", v.Name(), n.self, meta.ErrInvalid)
}

// copiesOnBoth refuses a copy, unless it is there, of a LUN or snapshot in a backing volume that is
// not for copies at this node or at the other one. A source that does not exist is for the entry to
// refuse.
func (n *Node) copiesOnBoth(ctx context.Context, uuid, source string) error {
	n.md.mu.Lock()
	_, there := n.md.state.Copy(uuid)
	volume, known := "", false
	if l := n.md.state.LUNs[source]; l != nil {
		volume, known = l.Volume, true
	} else if s := n.md.state.Snapshots[source]; s != nil {
		volume, known = s.Volume, true
	}
	n.md.mu.Unlock()
	if there || !known {
		return nil
	}
	if err := n.copiesHere(volume); err != nil {
		return err
	}
	v := n.View()
	if !v.Linked && !v.Record.Both() || v.Linked && !n.peerKnows(featureVolumes) {
		return nil // a node that joins copies from this one, and 0.1.0 makes full copies unasked
	}
	err := n.call(ctx, "prepare_volume", prepareVolume{Volume: volume, Copies: true}, nil)
	if err == nil || errors.Is(err, meta.ErrInvalid) {
		return err
	}
	return fmt.Errorf("the other node: %w: %w", err, control.ErrUnavailable)
}
