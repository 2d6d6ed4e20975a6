package node

import (
	"context"
	"fmt"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

var errNoSpread = fmt.Errorf("spread_group: the other node is of a release that does not balance LUNs: upgrade it: %w", control.ErrUnsupported)

// ModifyLUN changes write cache mode, preferred node, pin and group of a LUN, and ends its
// quarantine.
func (n *Node) ModifyLUN(ctx context.Context, e meta.Modify) error {
	if err := n.pinnable(e.Pin); err != nil {
		return err
	}
	if err := n.tierPinnable(ctx, e.Tier, n.volumeOf(e.UUID)); err != nil {
		return err
	}
	if e.Group != "" {
		if err := n.bothKnow(errNoSpread); err != nil {
			return err
		}
	}
	if e.Quarantine != "" {
		if err := n.bothKnow(errNoQuarantine); err != nil {
			return err
		}
	}
	return n.atOwner(ctx, e.UUID, "modify", e, func() error { return n.modifyHere(ctx, e) })
}

// modifyHere does it for a LUN that this node owns. Write-through is a promise about every write
// that has been acknowledged: what both nodes have in their page caches is flushed while no command
// is at work, and only then the entry is proposed. So the entry, once it is in the log, says that
// this was done, and a call that ends before it is simply made again. Commands that were waiting
// meanwhile execute as durable ones, see check.
func (n *Node) modifyHere(ctx context.Context, e meta.Modify) error {
	n.md.mu.Lock()
	l := n.md.state.LUNs[e.UUID]
	through := l != nil && e.WriteThrough != nil && *e.WriteThrough && !l.WriteThrough()
	n.md.mu.Unlock()
	req := prepareModify{UUID: e.UUID, Flush: through}
	if err := n.prepareBoth(ctx, req); err != nil { // most of what there is to flush, while commands continue
		return err
	}
	entry := &meta.Entry{Modify: &e}
	if !through {
		_, err := n.propose(ctx, entry)
		return err
	}
	return n.held(ctx, e.UUID, snapshotHold, func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, snapshotHold)
		defer cancel()
		if err := n.prepareBoth(limited, req); err != nil {
			return err
		}
		_, err := n.propose(ctx, entry) // without that limit: as long as its outcome is open, commands stay held
		return err
	})
}

// prepareModify asks a node whether it knows the entry, and to flush a LUN.
type prepareModify struct {
	UUID  string `json:"uuid"`
	Flush bool   `json:"flush,omitempty"`
}

// prepareBoth prepares this node and the other one. A node of an earlier release does not know the
// call: its refusal keeps an entry out of the log that it would not carry out.
func (n *Node) prepareBoth(ctx context.Context, req prepareModify) error {
	peer := make(chan error, 1)
	if v := n.View(); v.Record.Both() {
		go func() { peer <- n.call(ctx, "prepare_modify", req, nil) }()
	} else {
		peer <- nil // alone, every write is durable here, and the other node is made a member when it has them as well
	}
	err := n.prepareModifyHere(req)
	if perr := <-peer; perr != nil && err == nil {
		err = fmt.Errorf("the other node: %w: %w", perr, control.ErrUnavailable)
	}
	return err
}

// prepareModifyHere flushes this node's copy. A flush that fails is a failure of the disk, no
// matter who asked for it (R12).
func (n *Node) prepareModifyHere(req prepareModify) error {
	if !req.Flush {
		return nil
	}
	e := n.entryOf(req.UUID)
	if e == nil {
		return fmt.Errorf("LUN %s: %w", req.UUID, meta.ErrNotFound)
	}
	err := e.file.Sync()
	if err != nil {
		n.do(func(m *pair.Machine, now int64) { m.StoreFailed(now, "flush: "+err.Error()) })
		return fmt.Errorf("flush of LUN %s: %w", req.UUID, err)
	}
	return nil
}
