package node

import (
	"context"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

var errNoPolicy = fmt.Errorf("the other node is of a release that decides nothing: upgrade it: %w", control.ErrUnsupported)

// SetPolicy implements control.Node.
func (n *Node) SetPolicy(ctx context.Context, p meta.Policy) error {
	if err := n.bothKnow(errNoPolicy); err != nil {
		return err
	}
	_, err := n.propose(ctx, &meta.Entry{Policy: &p})
	return err
}

// policyVersion is the version of the policy that stands, 0 if none was ever set.
func (n *Node) policyVersion() uint64 {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return n.md.state.PolicyVersion()
}
