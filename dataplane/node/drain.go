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
	if v := n.View(); v.Record.Both() && !n.peerKnows(featureOwnership) {
		return 0, 0, errNoOwnership
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
