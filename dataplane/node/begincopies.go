package node

import (
	"context"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// The instant of copies (R14). While the changes of their sources are held, and none is at work,
// each member begins: from then on it copies a block before it changes. When both have begun the
// changes continue, and only then the log marks the copies, on the disks of both nodes. Nothing
// waits for a disk meanwhile. The entry makes a copy of what has begun under the same birth; a node
// that has begun nothing, or another one's, has nothing of it, and the copy is given up.

// beginTime bounds the other node's part.
const beginTime = time.Second

// beginCopies asks a member to begin. Group, if it is set, names the hold of the other node's own
// LUNs, which has to stand.
type beginCopies struct {
	Copies []*meta.Marked `json:"copies"`
	Group  *holdName      `json:"group,omitempty"`
}

// errBroken: the sources were not held until both members had begun.
var errBroken = fmt.Errorf("what was held is not any more: %w", control.ErrUnavailable)

// beginBoth begins with copies at both members, or at a lone one; stands says whether what is held
// here still is, when both have. What has begun in vain ends when the copy is removed.
func (n *Node) beginBoth(ctx context.Context, r beginCopies, stands func() bool) error {
	if v := n.View(); v.Record.Both() {
		ctx, cancel := context.WithTimeout(ctx, beginTime)
		err := n.call(ctx, "begin_copies", r, nil)
		cancel()
		if err != nil {
			return fmt.Errorf("the other node: %w", err)
		}
	} else if v.Phase != pair.Alone {
		return control.ErrUnavailable
	}
	if err := n.beginHere(r); err != nil {
		return err
	}
	if !stands() {
		return errBroken
	}
	return nil
}

// beginOther is the part of the node that was not asked.
func (n *Node) beginOther(r beginCopies) error {
	if r.Group == nil {
		return n.beginHere(r)
	}
	h, err := n.fixGroupHere(*r.Group)
	if err == nil {
		err = n.beginHere(r)
	}
	if err == nil && !n.stands(h) {
		err = errBroken
	}
	return err
}

func (n *Node) beginHere(r beginCopies) error {
	for _, x := range r.Copies {
		if err := n.startCopy(x); err != nil {
			return fmt.Errorf("%w: %w", err, control.ErrUnavailable)
		}
	}
	return nil
}

// toMark describes a copy of a LUN that is Empty, as its Mark would.
func (n *Node) toMark(c meta.Copy) (*meta.Marked, error) {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	if l := n.md.state.LUNs[c.Source]; l != nil {
		return &meta.Marked{Copy: c, Volume: l.Volume, Size: l.Size}, nil
	}
	return nil, fmt.Errorf("source LUN %s: %w", c.Source, meta.ErrNotFound)
}
