package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// sealEvery is how often the chair looks at copies about which it has heard nothing.
const sealEvery = time.Second

// copyRequest asks the other node what it has.
type copyRequest struct {
	Copies []meta.Copy `json:"copies"`
}

type copyReply struct {
	Standings map[string]copyStanding `json:"standings"`
}

// sealCopies commits and aborts copies for as long as the node runs.
func (n *Node) sealCopies() {
	t := time.NewTicker(sealEvery)
	defer t.Stop()
	for {
		woken := n.copies.wake.next()
		n.sealNow(n.run.ctx)
		select {
		case <-woken:
		case <-t.C:
		case <-n.run.ctx.Done():
			return
		}
	}
}

// sealNow looks once.
func (n *Node) sealNow(ctx context.Context) {
	list := n.copying()
	if len(list) == 0 {
		return
	}
	v := n.View()
	paired := v.Phase == pair.Paired && v.Agreed && v.Record.Both()
	if !v.Serving || !n.leads(v) {
		if paired && slices.ContainsFunc(slices.Collect(maps.Values(n.copyStandings(list))), copyStanding.ended) {
			n.wakeChair(ctx)
		}
		return
	}
	mine := n.copyStandings(list)
	theirs := copyReply{mine} // a member that is alone
	if paired {
		theirs = copyReply{}
		if knows, err := n.linkKnows(featureCopies); err != nil {
			return // it is asked again when it is linked
		} else if !knows { // it has applied no Mark: what it has, a resync has brought
			theirs.Standings = map[string]copyStanding{}
			for _, c := range list {
				theirs.Standings[c.UUID] = copyStanding{Whole: true}
			}
		} else if err := n.askCopies(ctx, list, &theirs); err != nil {
			return
		}
	}
	for _, c := range list {
		if v.Phase == pair.Alone && n.copies.beyond(v.Resync.Active, c) {
			continue
		}
		self, ok := mine[c.UUID]
		other, asked := theirs.Standings[c.UUID]
		if !ok || !asked {
			continue // its end is on its way
		}
		n.conclude(ctx, c, self, other)
	}
}

// lists notes what the last list of a resync from here has: nil, when a resync begins.
func (c *copies) lists(objs []pair.CopyObject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listed = nil; objs != nil {
		c.listed = map[string]bool{}
	}
	for _, o := range objs {
		c.listed[uuid.UUID(o.ID).String()] = true
	}
}

// beyond reports whether a copy was marked after this node had listed for the last time what the
// joiner needs. The log may be barred until the joiner is a member: what this node decides alone
// would be applied then, and the joiner has nothing of the copy.
func (c *copies) beyond(resync bool, x meta.Copy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !resync {
		c.listed = nil
	}
	return c.listed != nil && !c.listed[x.UUID]
}

// copyEnd is what follows from what the members have of a copy.
type copyEnd uint8

const (
	copyOpen copyEnd = iota
	copyComplete
	copyLost
)

// here says that a node has all of a copy.
func (s copyStanding) here() bool { return s.Sealed || s.Whole }

// ended says that a node does not copy any more.
func (s copyStanding) ended() bool { return s.here() || s.Failed != "" }

// with is what follows from what two nodes say, and, of a copy that is lost, the standing that says
// why.
func (s copyStanding) with(other copyStanding) (copyEnd, copyStanding) {
	switch {
	case s.Failed != "":
		return copyLost, s
	case other.Failed != "":
		return copyLost, other
	case s.Whole && other.Whole:
		return copyLost, copyStanding{Failed: errSourceLost}
	case s.here() && other.here():
		return copyComplete, s
	}
	return copyOpen, s
}

func (n *Node) conclude(ctx context.Context, c meta.Copy, self, other copyStanding) {
	switch end, why := self.with(other); end {
	case copyLost:
		at := n.self
		if self.Failed == "" && other.Failed != "" {
			at = n.self.Peer()
		}
		n.giveUpCopy(ctx, c, at, why)
	case copyComplete:
		if _, err := n.propose(ctx, &meta.Entry{Commit: &meta.Object{UUID: c.UUID, Born: c.Born}}); err != nil && ctx.Err() == nil {
			n.log.Warn("cannot commit a copy that is complete; trying again", "uuid", c.UUID, "err", err)
		}
	}
}

// askCopies asks the other node what it has.
func (n *Node) askCopies(ctx context.Context, list []meta.Copy, out *copyReply) error {
	ctx, cancel := context.WithTimeout(ctx, 10*sealEvery)
	defer cancel()
	return n.call(ctx, "copies", copyRequest{list}, out)
}

// leads reports whether this node is the chair of the log, or alone.
func (n *Node) leads(v pair.View) bool {
	return v.Phase == pair.Alone || v.Phase == pair.Paired && v.Agreed && v.Record.Both() && v.Record.Chair() == n.self
}

// wakeChair tells the chair that there may be something to do.
func (n *Node) wakeChair(ctx context.Context) {
	if n.peerKnows(featureCopies) {
		ctx, cancel := context.WithTimeout(ctx, sealEvery)
		defer cancel()
		_ = n.call(ctx, "seal_copies", struct{}{}, nil) // it looks by itself, too
	}
}

func (n *Node) giveUpCopy(ctx context.Context, c meta.Copy, at pair.Node, s copyStanding) {
	reason := fmt.Sprintf("node %s: %s", at, s.Failed)
	if _, err := n.propose(ctx, &meta.Entry{Abort: &meta.Object{UUID: c.UUID, Born: c.Born, Reason: reason, Full: s.Full}}); err != nil {
		if ctx.Err() == nil {
			n.log.Warn("cannot remove a copy that has failed; trying again", "uuid", c.UUID, "err", err)
		}
		return
	}
	n.event("copy", fmt.Sprintf("the copy %s was given up: %s", c.UUID, reason))
}
