package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/tiering"
)

var errNoTiers = fmt.Errorf("pinned_tier: the other node is of a release that knows no tiers: upgrade it: %w", control.ErrUnsupported)

// tierPinnable refuses a pin to a tier that a node's backing volume lacks, and one that the other
// node would pass over.
func (n *Node) tierPinnable(ctx context.Context, tier, volume string) error {
	if tier == "" {
		return nil
	}
	if err := n.bothHave(featureTiers, errNoTiers); err != nil || tier == meta.NoPin {
		return err
	}
	if err := n.tiersHere(volume); err != nil {
		return err
	}
	v := n.View()
	switch err := n.call(ctx, "tiers", tiersRequest{volume}, nil); {
	case err == nil || errors.Is(err, meta.ErrInvalid):
		return err
	case v.Record.Both() || !errors.Is(err, errNoLink):
		return fmt.Errorf("the other node: %w: %w", err, control.ErrUnavailable)
	}
	return nil // this node is alone, and the other one is not there to ask
}

type tiersRequest struct {
	Volume string `json:"volume"`
}

// tiersHere refuses a backing volume that has one tier here.
func (n *Node) tiersHere(volume string) error {
	if name := meta.VolumeName(volume); n.tiers.of[name] == nil {
		return fmt.Errorf("pinned_tier: backing volume %q of node %s has no fast tier: give it a fast member (--tier), or leave the pin out: %w", name, n.self, meta.ErrInvalid)
	}
	return nil
}

// volumeOf is the backing volume of a LUN or snapshot, "" if there is none or if it is the default
// one.
func (n *Node) volumeOf(id string) string {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	if l := n.md.state.LUNs[id]; l != nil {
		return l.Volume
	}
	if s := n.md.state.Snapshots[id]; s != nil {
		return s.Volume
	}
	return ""
}

// pinOf is the pin of a LUN's metadata.
func pinOf(tier string) tiering.Pin {
	switch tier {
	case meta.TierFast:
		return tiering.PinFast
	case meta.TierCapacity:
		return tiering.PinCapacity
	}
	return tiering.Unpinned
}
