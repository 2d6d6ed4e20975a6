package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Limits on how long host commands are held.
const (
	transferHold = 1500 * time.Millisecond
	snapshotHold = 2500 * time.Millisecond // until no command is at work; an entry follows, which takes milliseconds
)

// CreateLUN prepares the LUN on every member and makes it visible, or undoes it.
func (n *Node) CreateLUN(ctx context.Context, l meta.LUN) error {
	if err := n.pinnable(l.Pin); err != nil {
		return err
	}
	if err := n.tierPinnable(ctx, l.Tier, cmp.Or(l.Volume, n.volumeOf(l.SourceLUN), n.volumeOf(l.SourceSnapshot))); err != nil {
		return err
	}
	if l.SourceLUN != "" {
		return n.atOwner(ctx, l.SourceLUN, "clone_lun", l, func() error { return n.cloneHere(ctx, l) })
	}
	if l.SourceSnapshot == "" { // a copy is where its source is, which both nodes have
		if err := n.volumeOnBoth(ctx, l.Volume); err != nil {
			return err
		}
	} else if err := n.copiesOnBoth(ctx, l.UUID, l.SourceSnapshot); err != nil {
		return err
	}
	if lazy, err := n.lazyCopies(); l.SourceSnapshot != "" && (lazy || err != nil) {
		if err != nil {
			return err
		}
		return n.makeCopy(ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l, Later: true}}, l.UUID, l.SourceSnapshot, true)
	}
	if l.SourceSnapshot != "" {
		if err := n.takeBack(ctx, l.UUID); err != nil {
			return err
		}
	}
	return n.twoStep(ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l}}, l.UUID)
}

// takeBack ends a copy of a snapshot that was begun and not finished. A node that could not make it
// may have an empty file in its place, and a node that was copied to from there a copy of that one:
// neither can tell when the entry that made it comes again.
func (n *Node) takeBack(ctx context.Context, id string) error {
	n.md.mu.Lock()
	l := n.md.state.LUNs[id]
	n.md.mu.Unlock()
	if l == nil || l.Stage == meta.Ready {
		return nil
	}
	_, err := n.propose(ctx, &meta.Entry{Abort: &meta.Object{UUID: id}})
	return err
}

// twoStep proposes a preparation, then its commit or, if any member could not prepare, its abort
// (R14).
func (n *Node) twoStep(ctx context.Context, prepare *meta.Entry, id string) error {
	out, err := n.propose(ctx, prepare)
	if errors.Is(err, meta.ErrUnfinished) {
		if _, err = n.propose(ctx, &meta.Entry{Abort: &meta.Object{UUID: id}}); err == nil {
			out, err = n.propose(ctx, prepare)
		}
	}
	if err == nil && out.Noop {
		return nil
	}
	if err == nil {
		_, err = n.propose(ctx, &meta.Entry{Commit: &meta.Object{UUID: id}})
		return err
	}
	if refused := errors.Is(err, meta.ErrExists) || errors.Is(err, meta.ErrInvalid) || errors.Is(err, meta.ErrNotFound); !refused && ctx.Err() == nil && !errors.Is(err, control.ErrUnavailable) {
		if _, aerr := n.propose(ctx, &meta.Entry{Abort: &meta.Object{UUID: id}}); aerr != nil {
			n.log.Warn("cannot remove an object whose creation failed; repeat the request to resume it", "uuid", id, "err", aerr)
		}
	}
	return err
}

// atOwner runs f here when this node owns the LUN, else asks the peer.
func (n *Node) atOwner(ctx context.Context, lun, method string, req any, f func() error) error {
	id, err := parseID(lun)
	if err != nil {
		return fmt.Errorf("uuid %q: %w: %w", lun, meta.ErrInvalid, err)
	}
	n.mu.Lock()
	owner, known := n.m.Owner(id)
	n.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("LUN %s: %w", lun, meta.ErrNotFound)
	case owner == n.self:
		return f()
	}
	return n.call(ctx, method, req, nil)
}

// cloneHere clones a LUN that this node owns. For a node of 0.1.0 its writes are held while both
// nodes copy.
func (n *Node) cloneHere(ctx context.Context, l meta.LUN) error {
	if err := n.copiesOnBoth(ctx, l.UUID, l.SourceLUN); err != nil {
		return err
	}
	if lazy, err := n.lazyCopies(); err != nil {
		return err
	} else if lazy {
		return n.makeCopy(ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l, Later: true}}, l.UUID, l.SourceLUN, false)
	}
	return n.held(ctx, l.SourceLUN, n.eagerHold(l.SourceLUN), func(ctx context.Context) error {
		return n.twoStep(ctx, &meta.Entry{CreateLUN: &meta.CreateLUN{LUN: l}}, l.UUID)
	})
}

// CreateSnapshot makes a snapshot at one log position of both nodes.
func (n *Node) CreateSnapshot(ctx context.Context, s meta.Snapshot) error {
	return n.atOwner(ctx, s.Source, "create_snapshot", s, func() error { return n.createSnapshotHere(ctx, s) })
}

func (n *Node) createSnapshotHere(ctx context.Context, s meta.Snapshot) error {
	if err := n.copiesOnBoth(ctx, s.UUID, s.Source); err != nil {
		return err
	}
	if lazy, err := n.lazyCopies(); err != nil {
		return err
	} else if lazy {
		return n.makeCopy(ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: s, Later: true}}, s.UUID, s.Source, false)
	}
	return n.held(ctx, s.Source, n.eagerHold(s.Source), func(ctx context.Context) error {
		return n.twoStep(ctx, &meta.Entry{CreateSnapshot: &meta.CreateSnapshot{Snapshot: s}}, s.UUID)
	})
}

// held runs f while the LUN's commands are held and none is at work, so that both nodes' copies are
// alike (R14). f does not end with the caller's patience: as long as an entry's outcome is open the
// commands must stay held.
func (n *Node) held(ctx context.Context, lun string, limit time.Duration, f func(context.Context) error) error {
	id, err := parseID(lun)
	if err != nil {
		return err
	}
	release, err := n.quiesce(ctx, []pair.LUNID{id}, limit)
	if err != nil {
		return err
	}
	defer release()
	return f(n.run.ctx)
}

// eagerHold is how long commands may be held while both nodes copy.
func (n *Node) eagerHold(lun string) time.Duration {
	if n.reflink(lun) {
		return snapshotHold
	}
	return callTime // hosts get BUSY after a while and come back
}

type transferRequest struct {
	UUIDs []string `json:"uuids"`
	To    string   `json:"to"`

	// Of decisions and of releases that make them (featureOwnership); an earlier one passes over
	// the rest.
	Seqs      map[string]uint64 `json:"seqs,omitempty"`
	Epoch     uint64            `json:"epoch,omitempty"`  // in which it was decided; 0: by a person
	Policy    *uint64           `json:"policy,omitempty"` // version of the policy that it was decided under; nil: by a person
	Home      bool              `json:"home,omitempty"`
	HeldUntil time.Time         `json:"held_until,omitzero"` // how long it counts (meta.Hold)
	Hold      time.Duration     `json:"hold,omitempty"`      // how long commands may be held; 0: transferHold
	Warm      time.Duration     `json:"warm,omitempty"`      // by how much the move may be later for reading ahead (warm.go)
}

type transferReply struct {
	Moved int           `json:"moved"`
	Pause time.Duration `json:"pause"`
}

// Transfer moves LUNs to a node in one batch, makes that node their home, and keeps them there for
// so long. Without the other node, or with one of a release before, it only moves them: nothing
// would move them back.
func (n *Node) Transfer(ctx context.Context, uuids []string, to pair.Node, hold time.Duration) (t control.Transferred, err error) {
	if err := n.pinnedElsewhere(uuids, to); err != nil {
		return t, err
	}
	req := transferRequest{To: to.String(), Warm: warmCalm, Home: n.peerKnows(featureOwnership)}
	if req.Home && hold > 0 {
		req.HeldUntil = meta.Now().Add(hold + time.Second - 1).Truncate(time.Second)
	}
	t.HeldUntil = req.HeldUntil
	t.Moved, t.Pause, err = n.move(ctx, uuids, req)
	return t, err
}

// move moves LUNs to a node in one batch. The node that owns them does it.
func (n *Node) move(ctx context.Context, uuids []string, req transferRequest) (int, time.Duration, error) {
	to, _ := pair.ParseNode(req.To)
	var there []string
	for _, u := range uuids {
		id, err := parseID(u)
		if err != nil {
			return 0, 0, fmt.Errorf("uuid %q: %w: %w", u, meta.ErrInvalid, err)
		}
		n.mu.Lock()
		owner, known := n.m.Owner(id)
		n.mu.Unlock()
		switch {
		case !known:
			return 0, 0, fmt.Errorf("LUN %s: %w", u, meta.ErrNotFound)
		case owner == to:
			there = append(there, u)
		default:
			req.UUIDs = append(req.UUIDs, u)
		}
	}
	if req.Home && len(there) > 0 { // what is there already needs no hold
		if _, err := n.propose(ctx, &meta.Entry{SetOwner: &meta.SetOwner{UUIDs: there, To: req.To, At: meta.Now(), Home: true, HeldUntil: req.HeldUntil}}); err != nil {
			return 0, 0, err
		}
	}
	if len(req.UUIDs) == 0 {
		return 0, 0, nil
	}
	if err := n.inSync(); err != nil {
		return 0, 0, err
	}
	if to == n.self {
		var r transferReply
		err := n.call(ctx, "transfer", req, &r)
		return r.Moved, r.Pause, err
	}
	r, err := n.transferHere(ctx, req)
	return r.Moved, r.Pause, err
}

// inSync refuses a move while the pair is not.
func (n *Node) inSync() error {
	if v := n.View(); v.Phase != pair.Paired || !v.Agreed {
		return fmt.Errorf("ownership moves only while both nodes are in sync; this node is %s: %s: %w", standing(n.phase(v)), v.Reason, control.ErrUnavailable)
	}
	return nil
}

// TransferAll does so with every LUN that is not pinned to the other node.
func (n *Node) TransferAll(ctx context.Context, to pair.Node, hold time.Duration) (control.Transferred, error) {
	free := slices.DeleteFunc(n.allLUNs(), func(id string) bool { return n.pinnedElsewhere([]string{id}, to) != nil })
	return n.Transfer(ctx, free, to, hold)
}

// evacuate moves every LUN to a node, and leaves its home where it is. It does not ask whether that
// node is drained: the other one is about to go. The move may be later by warmUrgent, but not that
// of a stop.
func (n *Node) evacuate(ctx context.Context, to pair.Node) (moved int, pause time.Duration, err error) {
	return n.move(ctx, n.allLUNs(), transferRequest{To: to.String(), Warm: warmUrgent})
}

func (n *Node) allLUNs() []string {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return slices.Sorted(maps.Keys(n.md.state.LUNs))
}

// stillDue refuses a move that was decided on what is not so any more.
func (n *Node) stillDue(req *transferRequest) error {
	if epoch := n.View().Record.Epoch; req.Epoch != 0 && req.Epoch != epoch {
		return fmt.Errorf("the move was decided in epoch %d, and this is epoch %d: %w", req.Epoch, epoch, control.ErrUnavailable)
	}
	if now := n.policyVersion(); req.Policy != nil && *req.Policy != now { // the entry says so too, but commands need not be held for it
		return fmt.Errorf("the move was decided under version %d of the policy, and this is version %d: %w", *req.Policy, now, control.ErrUnavailable)
	}
	return nil
}

// transferHere gives LUNs of this node away: warm, hold, drain, one log entry, release (R10). What
// arrived meanwhile is forwarded to the new owner.
func (n *Node) transferHere(ctx context.Context, req transferRequest) (transferReply, error) {
	var ids []pair.LUNID
	for _, u := range req.UUIDs {
		id, err := parseID(u)
		if err != nil {
			return transferReply{}, err
		}
		ids = append(ids, id)
	}
	if err := n.stillDue(&req); err != nil {
		return transferReply{}, err
	}
	if n.warm(ctx, ids, req.Warm) { // nothing was held meanwhile, and the pair may not be what it was
		if err := cmp.Or(n.inSync(), n.stillDue(&req)); err != nil {
			return transferReply{}, err
		}
	}
	start := time.Now()
	release, err := n.quiesce(ctx, ids, cmp.Or(req.Hold, transferHold))
	if err != nil {
		return transferReply{}, err
	}
	e := &meta.SetOwner{UUIDs: req.UUIDs, To: req.To}
	if decided := req.Epoch != 0 || req.Home; decided && n.peerKnows(featureOwnership) {
		e.Seqs, e.Policy, e.Home, e.HeldUntil, e.At = req.Seqs, req.Policy, req.Home, req.HeldUntil, meta.Now()
	}
	// Not the caller's context: until the outcome is known this node is not the owner any more
	// (R10).
	_, err = n.propose(n.run.ctx, &meta.Entry{SetOwner: e})
	release()
	pause := time.Since(start)
	if err != nil {
		return transferReply{}, err
	}
	n.event("owner", fmt.Sprintf("%d LUNs moved to node %s, held for %v", len(ids), req.To, pause.Round(time.Microsecond)))
	return transferReply{Moved: len(ids), Pause: pause}, nil
}
