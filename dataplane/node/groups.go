package node

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Group snapshots: this pair's part of a cut through many LUNs (docs/decisions/0070). A coordinator
// makes the calls of an attempt one after the other: begin, prepare, hold, cut. Whatever becomes of
// it, the log refuses what is of an earlier attempt, and holds end by themselves (grouphold.go).

// featureGroups on the link: the other node knows group snapshots.
const featureGroups = "groups"

// preparing is how many members are flushed at once.
const preparing = 4

var errNoGroups = fmt.Errorf("group_uuid: the other node is of a release that knows no group snapshots: upgrade it: %w", control.ErrUnsupported)

// groupsKnown refuses an entry that the other node could not apply.
func (n *Node) groupsKnown() error {
	switch v := n.View(); {
	case !v.Record.Both() && !v.Linked:
		return nil
	case !v.Linked:
		return fmt.Errorf("the other node is not connected, and may be of a release that knows no group snapshots: %w", control.ErrUnavailable)
	}
	if know, err := n.linkKnows(featureGroups, featureCopies); err != nil || know {
		return err
	}
	return errNoGroups
}

// BeginGroup implements control.Node.
func (n *Node) BeginGroup(ctx context.Context, e meta.BeginGroup, discard bool) error {
	if err := n.groupsKnown(); err != nil {
		return err
	}
	if _, err := n.propose(ctx, &meta.Entry{BeginGroup: &e}); err != nil {
		return err
	}
	// A cut of an earlier attempt that was on its way is decided: it came before that entry, or is
	// refused.
	below := e.Attempt
	if e.Final {
		below = ^uint64(0)
	}
	n.groupEnded(endedGroup{e.UUID, below})
	n.tellOther("group_ended", endedGroup{e.UUID, below})
	if discard || e.Final {
		return n.discardGroup(ctx, e)
	}
	return nil
}

// discardGroup removes the members of a group, but for those that were cut in this attempt: the
// request may come late. The log lets none of an earlier attempt be made meanwhile.
func (n *Node) discardGroup(ctx context.Context, g meta.BeginGroup) error {
	var errs []error
	for _, s := range n.members(g.UUID) {
		if !g.Final && s.Attempt >= g.Attempt && s.Stage != meta.Empty {
			continue
		}
		e := &meta.Entry{Abort: &meta.Object{UUID: s.UUID, Born: s.Born}}
		if s.Stage == meta.Ready {
			e = &meta.Entry{DeleteSnapshot: &meta.Object{UUID: s.UUID}}
		}
		if _, err := n.propose(ctx, e); err != nil {
			errs = append(errs, fmt.Errorf("snapshot %s: %w", s.UUID, err))
		}
	}
	return errors.Join(errs...)
}

func (n *Node) members(group string) []*meta.Snapshot {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return n.md.state.Members(group)
}

// PrepareGroup implements control.Node.
func (n *Node) PrepareGroup(ctx context.Context, members []meta.Snapshot) error {
	if err := n.groupsKnown(); err != nil {
		return err
	}
	for _, s := range members {
		if err := n.copiesOnBoth(ctx, s.UUID, s.Source); err != nil {
			return err
		}
	}
	for _, s := range members {
		if err := n.awaitOther(ctx, s.UUID, s.Source); err != nil {
			return fmt.Errorf("LUN %s: %w", s.Source, err)
		}
		if _, err := n.propose(ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: s, Later: true}}); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(preparing)
	for _, s := range members {
		g.Go(func() error { return n.prepareBoth(ctx, prepareModify{UUID: s.Source, Flush: true}) })
	}
	return g.Wait()
}

// groupPlan is what a hold of an attempt covers.
type groupPlan struct {
	own, other []string          // LUNs, by owner
	seqs       map[string]uint64 // of the ownership, by LUN
	marks      []*meta.Marked
}

// planGroup looks who owns the members. The numbers of the ownership are read before anything is
// held, so that a LUN that moves meanwhile is found out when the group is cut.
func (n *Node) planGroup(group string, attempt uint64) (p groupPlan, err error) {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	if g := n.md.state.Groups[group]; g == nil || g.Attempt != attempt || g.Final || g.Void {
		return p, fmt.Errorf("attempt %d of group snapshot %s: %w", attempt, group, meta.ErrAborted)
	}
	p.seqs = map[string]uint64{}
	for _, s := range n.md.state.Members(group) {
		l := n.md.state.LUNs[s.Source]
		switch {
		case s.Attempt != attempt || s.Stage != meta.Empty:
			return p, fmt.Errorf("snapshot %s of group snapshot %s is %s: %w", s.UUID, group, s.Stage, meta.ErrAborted)
		case l == nil:
			return p, fmt.Errorf("LUN %s, a member of group snapshot %s: %w", s.Source, group, meta.ErrNotFound)
		}
		p.seqs[l.UUID] = l.Seq
		c, _ := n.md.state.Copy(s.UUID)
		p.marks = append(p.marks, &meta.Marked{Copy: c, Volume: l.Volume, Size: l.Size})
		if owner, _ := pair.ParseNode(l.Owner); owner == n.self {
			p.own = append(p.own, l.UUID)
		} else {
			p.other = append(p.other, l.UUID)
		}
	}
	if len(p.seqs) == 0 {
		return p, fmt.Errorf("attempt %d of group snapshot %s has no members on this pair: %w", attempt, group, meta.ErrAborted)
	}
	return p, nil
}
