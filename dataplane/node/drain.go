package node

import (
	"context"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// featureOwnership on the link: the other node applies entries of decided moves, homes and drains,
// and tells who uses what (use.go). Without it no LUN of the pair moves by itself.
const featureOwnership = "ownership"

var errNoOwnership = fmt.Errorf("the other node is of a release that knows no drains: transfer the LUNs instead, or upgrade it: %w", control.ErrUnsupported)

// Drain implements control.Node. The entry comes first, so that nothing moves to the node while it
// is emptied. A call that ends between the two is made again: the drain stands, and the rest of the
// LUNs is moved, by that call or by the chair.
func (n *Node) Drain(ctx context.Context, node pair.Node, d time.Duration, reason string) (moved int, pause time.Duration, err error) {
	if v := n.View(); v.Record.Both() {
		if err := n.bothKnow(errNoOwnership); err != nil {
			return 0, 0, err
		}
	}
	at := meta.Now()
	if _, err := n.propose(ctx, &meta.Entry{Drain: &meta.Drain{Node: node.String(), At: at, Until: at.Add(d), Reason: reason}}); err != nil || d == 0 {
		return 0, 0, err
	}
	if v := n.View(); !v.Record.Both() {
		return 0, 0, nil // the member that is alone owns every LUN, whatever drains
	}
	return n.evacuate(ctx, node.Peer())
}

// drained is the drain that stands, nil if there is none.
func (n *Node) drained() *meta.Drain {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	if d := n.md.state.Drain; d.Stands(time.Now()) {
		return d
	}
	return nil
}

var errNoPins = fmt.Errorf("pinned_node: the other node is of a release that knows no pins: upgrade it, or use preferred_node: %w", control.ErrUnsupported)

// bothKnow refuses an entry of the log that the other node may pass over; tooOld is the error for a
// node that does.
func (n *Node) bothKnow(tooOld error) error {
	return n.bothHave(featureOwnership, tooOld)
}

// bothHave is bothKnow for any feature.
func (n *Node) bothHave(feature string, tooOld error) error {
	v := n.View()
	switch {
	case !v.Record.Both() && !v.Linked:
		return nil
	case !v.Linked:
		return fmt.Errorf("the other node is not connected, and may be of a release that cannot apply this: %w", control.ErrUnavailable)
	}
	if knows, err := n.linkKnows(feature); err != nil || knows {
		return err
	}
	return tooOld
}

// pinnable refuses a pin, or its end, that the other node would pass over.
func (n *Node) pinnable(pin string) error {
	if pin == "" {
		return nil
	}
	return n.bothKnow(errNoPins)
}

// pinnedElsewhere tells of a LUN that a person wants to move away from where it is pinned.
func (n *Node) pinnedElsewhere(uuids []string, to pair.Node) error {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	for _, id := range uuids {
		if l := n.md.state.LUNs[id]; l != nil && l.Pin != "" && l.Pin != to.String() {
			return fmt.Errorf("LUN %s is pinned to node %s: set its pinned_node to %s first: %w", id, l.Pin, meta.NoPin, meta.ErrInUse)
		}
	}
	return nil
}

// heldByPeople counts the LUNs that a transfer by a person keeps where they are, and says when the
// last of these transfers ends.
func (n *Node) heldByPeople() (count int, last time.Time) {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	now := time.Now()
	for _, l := range n.md.state.LUNs {
		h := l.Held(now)
		if h == nil {
			continue
		}
		if count++; h.Until.After(last) {
			last = h.Until
		}
	}
	return count, last
}
