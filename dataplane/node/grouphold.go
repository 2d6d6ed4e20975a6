package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// The holds of a cut. The node that the coordinator asks holds its own LUNs, and has the other node
// hold those that it owns. A hold ends by itself, at its limit, until it is fixed: for the cut both
// fix theirs, and begin with the copies. From then on the other node's hold waits for the word of
// the asked one, that it has begun as well. If the word does not come, the other node asks the log,
// with an entry that makes the cut void unless it has been: then it does not matter any more when
// the asked one begins.

// groupHoldMax is how long commands are held for an attempt: shorter than a held command may wait
// before it ends with BUSY.
const groupHoldMax = 800 * time.Millisecond

// Times of a cut between the nodes.
const (
	voidAfter = 500 * time.Millisecond // from when a hold was fixed until its node asks the log
	voidAgain = 50 * time.Millisecond  // between two tries of that
)

// groups are the holds of this node, by group. Its zero value is ready.
type groups struct {
	mu    sync.Mutex
	holds map[string]*groupHold
	tally groupTally
}

// groupHold is one of them. What it holds is in the machine, under id.
type groupHold struct {
	holdName
	since   time.Time
	id      uint64    // 0: no LUN of this node is in it
	plan    groupPlan // of the node that was asked
	asked   bool
	fixed   bool // guarded by groups.mu
	release func()
	over    chan struct{} // closed by the release
}

// holdName names a hold. A request that was repeated, or comes late, has another token: it must not
// end a hold that a cut relies on.
type holdName struct {
	Group   string `json:"group"`
	Attempt uint64 `json:"attempt"`
	Token   uint64 `json:"token"`
}

// hold holds the commands that change data of LUNs of this node, and waits until none is at work.
func (n *Node) hold(ctx context.Context, luns []string, limit time.Duration) (id uint64, release func(), err error) {
	var ids []pair.LUNID
	for _, u := range luns {
		l, err := parseID(u)
		if err != nil {
			return 0, nil, fmt.Errorf("uuid %q: %w: %w", u, meta.ErrInvalid, err)
		}
		ids = append(ids, l)
	}
	return n.still(ctx, limit, func(m *pair.Machine, now int64, id uint64) { m.Hold(now, id, ids, int64(limit)) })
}

// HoldGroup implements control.Node.
func (n *Node) HoldGroup(ctx context.Context, group string, attempt uint64, ttl time.Duration) (hold uint64, err error) {
	if err := n.groupsKnown(); err != nil {
		return 0, err
	}
	if ttl <= 0 || ttl > groupHoldMax {
		return 0, fmt.Errorf("ttl: %v is not above 0 and up to %v: %w", ttl, groupHoldMax, meta.ErrInvalid)
	}
	plan, err := n.planGroup(group, attempt)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	name := holdName{group, attempt, rand.Uint64()}
	other := make(chan error, 1)
	if len(plan.other) > 0 {
		go func() { other <- n.call(ctx, "hold_group", holdGroup{name, plan.other, ttl}, nil) }()
	} else {
		other <- nil
	}
	err = n.holdGroupHere(ctx, holdGroup{name, plan.own, ttl}, &plan)
	if oerr := <-other; oerr != nil && err == nil {
		err = fmt.Errorf("the other node: %w", oerr)
	}
	if err != nil {
		n.unhold(name)
		n.tellOther("unhold_group", name)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the commands of the members did not end within %v: %w", ttl, control.ErrUnavailable)
		}
		return 0, err
	}
	return name.Token, nil
}

// holdGroup asks the other node to hold its LUNs.
type holdGroup struct {
	holdName
	LUNs []string      `json:"luns"`
	TTL  time.Duration `json:"ttl"`
}

// holdGroupHere holds the LUNs of this node; plan is nil at the node that was not asked.
func (n *Node) holdGroupHere(ctx context.Context, r holdGroup, plan *groupPlan) error {
	h := &groupHold{holdName: r.holdName, since: time.Now(), asked: plan != nil, release: func() {}, over: make(chan struct{})}
	if h.asked {
		h.plan = *plan
	}
	if len(r.LUNs) > 0 {
		var err error
		if h.id, h.release, err = n.hold(ctx, r.LUNs, r.TTL); err != nil {
			return err
		}
	}
	n.groups.mu.Lock()
	old := n.groups.holds[r.Group]
	if old != nil && old.fixed { // of a cut whose outcome is open; this one holds what is not in it
		n.groups.mu.Unlock()
		h.release()
		return fmt.Errorf("attempt %d of group snapshot %s is being cut: %w", old.Attempt, r.Group, control.ErrUnavailable)
	}
	if n.groups.holds == nil {
		n.groups.holds = map[string]*groupHold{}
	}
	n.groups.holds[r.Group] = h
	n.groups.mu.Unlock()
	if old != nil { // it has lapsed, or was of another coordinator
		old.end()
	}
	n.run.tasks.Go(taskHold, func() { // the machine lets the commands continue by itself; this forgets the hold
		if h.outlasts(n.run.ctx, r.TTL) {
			n.unhold(h.holdName)
		}
	})
	return nil
}

func (h *groupHold) end() {
	h.release()
	close(h.over)
}

// endHold ends the hold of a group if it is one that may end.
func (n *Node) endHold(group string, may func(*groupHold) bool) {
	n.groups.mu.Lock()
	h := n.groups.holds[group]
	if h == nil || !may(h) {
		n.groups.mu.Unlock()
		return
	}
	delete(n.groups.holds, group)
	n.groups.mu.Unlock()
	h.end()
}

// unhold takes back a hold that was answered here and refused elsewhere.
func (n *Node) unhold(name holdName) {
	n.endHold(name.Group, func(h *groupHold) bool { return h.holdName == name && !h.fixed })
}

// decided ends a hold whose cut has an outcome.
func (n *Node) decided(name holdName) {
	n.endHold(name.Group, func(h *groupHold) bool { return h.holdName == name })
}

// endedGroup ends the hold of a group if it is of an attempt below one that the log has: whatever
// was on its way of it is decided.
type endedGroup struct {
	Group string `json:"group"`
	Below uint64 `json:"below"`
}

func (n *Node) groupEnded(r endedGroup) {
	n.endHold(r.Group, func(h *groupHold) bool { return h.Attempt < r.Below })
}

// tellOther tells the other node that its hold may end. If it does not hear of it, it finds out.
// The channel is closed when it has answered, or is not to be asked any more.
func (n *Node) tellOther(method string, what any) (told <-chan struct{}) {
	c := make(chan struct{})
	if !n.View().Linked {
		close(c)
		return c
	}
	n.run.tasks.Go(taskHold, func() {
		defer close(c)
		ctx, cancel := context.WithTimeout(n.run.ctx, callTime)
		defer cancel()
		if err := n.call(ctx, method, what, nil); err != nil && n.run.ctx.Err() == nil {
			n.log.Info("the other node was not told that a hold is over, and finds out by itself", "method", method, "err", err)
		}
	})
	return c
}

// CutGroup implements control.Node: both nodes fix their holds and begin with the copies of all
// members, whose changes then continue, and one entry of the log marks them.
func (n *Node) CutGroup(ctx context.Context, group string, attempt, hold uint64) (held time.Duration, err error) {
	// One request cuts a hold: another one that fails would release what the first relies on.
	h, err := n.fixGroup(func(h *groupHold) bool { return h.asked && !h.fixed && h.Attempt == attempt && h.Token == hold }, group, attempt)
	if err != nil {
		n.groups.tally.refused.Add(1)
		return 0, err
	}
	over := func() (told <-chan struct{}) {
		n.decided(h.holdName)
		return n.tellOther("decided_group", h.holdName)
	}
	r := beginCopies{Copies: h.plan.marks}
	if len(h.plan.other) > 0 {
		r.Group = &h.holdName
	}
	err = n.beginBoth(ctx, r, func() bool { return n.stands(h) })
	if err != nil {
		n.groups.tally.refused.Add(1)
		over()
		return 0, fmt.Errorf("%w: %w", err, meta.ErrAborted)
	}
	outcome := n.proposeAsync((&meta.Entry{CutGroup: &meta.CutGroup{UUID: group, Attempt: attempt, Seqs: h.plan.seqs}}).Encode())
	if told := over(); len(h.plan.other) > 0 {
		<-told // the other node's LUNs are held until then; the outcome needs that node as well
	}
	held = time.Since(h.since)
	if _, err := n.outcome(n.run.ctx, outcome); err != nil {
		n.groups.tally.refused.Add(1)
		return 0, err
	}
	n.groups.tally.cut(held)
	n.event("group", fmt.Sprintf("group snapshot %s was cut in attempt %d: %d LUNs, whose changes were held for %v", group, attempt, len(h.plan.seqs), held.Round(time.Microsecond)))
	return held, nil
}

// fixGroup has the hold of this node stand until its cut is decided. It must not have ended.
func (n *Node) fixGroup(is func(*groupHold) bool, group string, attempt uint64) (*groupHold, error) {
	n.groups.mu.Lock()
	h := n.groups.holds[group]
	if h == nil || !is(h) {
		n.groups.mu.Unlock()
		return nil, fmt.Errorf("node %s does not hold what attempt %d of group snapshot %s relies on: %w", n.self, attempt, group, meta.ErrAborted)
	}
	h.fixed = true
	n.groups.mu.Unlock()
	if !n.stands(h) {
		n.decided(h.holdName)
		return nil, fmt.Errorf("the hold of attempt %d of group snapshot %s has ended at node %s: %w", attempt, group, n.self, meta.ErrAborted)
	}
	return h, nil
}

// stands reports whether a fixed hold still holds what this node has in it.
func (n *Node) stands(h *groupHold) bool { return h.id == 0 || n.fixed(h.id) }

// fixGroupHere is the part of the node that was not asked: from here on it releases its hold when
// the asked node says so, or when the log has decided.
func (n *Node) fixGroupHere(name holdName) (*groupHold, error) {
	h, err := n.fixGroup(func(h *groupHold) bool { return h.holdName == name }, name.Group, name.Attempt)
	if err != nil {
		return nil, err
	}
	n.run.tasks.Go(taskHold, func() {
		if h.outlasts(n.run.ctx, voidAfter) {
			n.voidGroup(h)
		}
	})
	return h, nil
}

// outlasts reports whether a hold is still there after a while.
func (h *groupHold) outlasts(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-h.over:
	case <-ctx.Done():
	case <-t.C:
		return true
	}
	return false
}

// voidGroup asks the log. A node that is not a member any more holds nothing.
func (n *Node) voidGroup(h *groupHold) {
	for {
		_, err := n.propose(n.run.ctx, &meta.Entry{VoidGroup: &meta.VoidGroup{UUID: h.Group, Attempt: h.Attempt}})
		if v := n.View(); err == nil || v.Phase != pair.Paired && v.Phase != pair.Alone {
			n.groups.tally.void.Add(1)
			n.event("group", fmt.Sprintf("the cut of group snapshot %s is decided, attempt %d: this node was not told, and has asked the log", h.Group, h.Attempt))
			n.decided(h.holdName)
			return
		}
		if !h.outlasts(n.run.ctx, voidAgain) {
			return
		}
	}
}
