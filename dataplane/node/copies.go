package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// Snapshots and clones that are being copied here (R14). Each node copies by itself, from the
// moment at which it has applied the Mark. What it has copied counts in this life of the process
// only: nothing of it is durable before all is. The chair, or the node that is alone, commits a
// copy once every member has all of it, and aborts one that a member has lost (sealCopies). Who
// asked for it only waits, so nothing depends on its life.

// featureCopies on the link: the other node applies Mark, and answers what it has copied.
const featureCopies = "copies"

// sealEvery is how often the chair looks at copies about which it has heard nothing.
const sealEvery = time.Second

// copies are this node's, by uuid. Its zero value is ready.
type copies struct {
	mu      sync.Mutex
	all     map[string]*underCopy
	whole   map[string]uint64      // birth of what a resync has brought in this life, while it is Copying
	reasons map[string]meta.Object // why copies were given up; the last few
	wake    signal                 // something may be to do for the chair
	applied signal                 // an entry has changed what is there
	tally   copyTally
}

// underCopy is one that was marked here.
type underCopy struct {
	born uint64
	c    *store.Copy
}

// copyStanding is what a node says of a copy.
type copyStanding struct {
	Sealed bool   `json:"sealed"`           // all of it is here, durably
	Failed string `json:"failed,omitempty"` // why it never will be
	Full   bool   `json:"full,omitempty"`   // for lack of space
	Done   int64  `json:"done"`             // bytes
	Total  int64  `json:"total"`
}

// errLostCopy is the standing of a copy of which this process knows nothing.
const errLostCopy = "the node was restarted before the copy was complete"

// startCopy begins with a copy at the instant at which it is marked. A joiner has no such content:
// the resync brings it. The caller holds md.mu.
func (n *Node) startCopy(x *meta.Marked, joining bool) error {
	if joining {
		return n.addCopying([]string{x.UUID})
	}
	from, err := n.openObject(x.Source)
	if err != nil {
		return err
	}
	to, err := n.openObject(x.UUID)
	if err != nil {
		return err
	}
	c, err := from.CopyTo(to, x.Size, x.Still)
	if err != nil {
		return err
	}
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	if n.copies.all == nil {
		n.copies.all = map[string]*underCopy{}
	}
	n.copies.all[x.UUID] = &underCopy{x.Born, c}
	return nil
}

// openObject finds the open file of a LUN or snapshot.
func (n *Node) openObject(uuid string) (*store.File, error) {
	id, err := parseID(uuid)
	if err != nil {
		return nil, err
	}
	if f := n.file(id); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("node %s: %s: %w", n.self, uuid, store.ErrNotFound)
}

// runCopy copies what nobody waits for, after the entry has been applied.
func (n *Node) runCopy(uuid string) {
	n.copies.mu.Lock()
	x := n.copies.all[uuid]
	n.copies.mu.Unlock()
	if x == nil {
		return
	}
	n.run.wg.Go(func() {
		begun := time.Now()
		err := x.c.Run(n.run.ctx)
		st := x.c.State()
		switch {
		case err == nil:
			n.copies.tally.complete.Add(1)
			n.log.Info("a copy is complete", "uuid", uuid, "bytes", st.Total, "saved", st.Saved, "took", time.Since(begun).Round(time.Millisecond))
		case n.run.ctx.Err() == nil && errors.Is(err, store.ErrCopyFailed) && !errors.Is(err, store.ErrCopyDropped):
			n.copies.tally.failed.Add(1)
			n.log.Warn("a copy has failed", "uuid", uuid, "err", err)
		}
		n.copies.wake.changed()
	})
}

// endCopies ends copies that are not needed any more: they are complete, or their files go.
func (n *Node) endCopies(uuids ...string) {
	for _, c := range n.takeCopies(uuids...) {
		c.Stop()
	}
}

// takeCopies forgets copies.
func (n *Node) takeCopies(uuids ...string) (list []*store.Copy) {
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	for _, id := range uuids {
		if x := n.copies.all[id]; x != nil {
			list = append(list, x.c)
			delete(n.copies.all, id)
		}
		delete(n.copies.whole, id)
	}
	return list
}

// dropAllCopies ends all copies. Their files are ordinary ones when it returns.
func (n *Node) dropAllCopies() {
	n.copies.mu.Lock()
	var list []string
	for id := range n.copies.all {
		list = append(list, id)
	}
	clear(n.copies.whole)
	n.copies.mu.Unlock()
	for _, c := range n.takeCopies(list...) {
		c.Drop()
	}
}

// wholeCopies notes that a resync has brought everything, copies that are not complete elsewhere
// included: it is over, and durable.
func (n *Node) wholeCopies() {
	n.md.mu.Lock()
	list := n.md.state.Copies()
	n.md.mu.Unlock()
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	n.copies.whole = map[string]uint64{}
	for _, c := range list {
		n.copies.whole[c.UUID] = c.Born
	}
}

// unsealed are the copies of the source that this node has, under the same birth, as what was not
// committed here yet: the resync has to bring them whole. What they hold is of a life that is over,
// or of a LUN that the source continued to write to. The caller holds md.mu.
func (n *Node) unsealed(s *meta.State) (ids []string) {
	for id, x := range s.Snapshots {
		if old := n.md.state.Snapshots[id]; old != nil && old.Born == x.Born && old.Stage != meta.Ready {
			ids = append(ids, id)
		}
	}
	for id, l := range s.LUNs {
		if old := n.md.state.LUNs[id]; old != nil && old.Born == l.Born && old.Stage != meta.Ready && (l.SourceLUN != "" || l.SourceSnapshot != "") {
			ids = append(ids, id)
		}
	}
	return ids
}

// copyStandings says what this node has of copies.
func (n *Node) copyStandings(list []meta.Copy) map[string]copyStanding {
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	out := map[string]copyStanding{}
	for _, c := range list {
		s := copyStanding{Failed: errLostCopy}
		if x := n.copies.all[c.UUID]; x != nil && x.born == c.Born {
			st := x.c.State()
			s = copyStanding{Sealed: st.Complete, Done: st.Done, Total: st.Total}
			if st.Err != nil {
				s.Failed, s.Full = st.Err.Error(), errors.Is(st.Err, store.ErrNoSpace)
			}
		} else if n.copies.whole[c.UUID] == c.Born {
			s = copyStanding{Sealed: true}
		}
		out[c.UUID] = s
	}
	return out
}

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
		if ended := func(s copyStanding) bool { return s.Sealed || s.Failed != "" }; paired && slices.ContainsFunc(slices.Collect(maps.Values(n.copyStandings(list))), ended) {
			n.wakeChair(ctx)
		}
		return
	}
	mine := n.copyStandings(list)
	var theirs copyReply
	if paired && n.peerKnows(featureCopies) { // one that does not has applied no Mark: what it has, a resync has brought
		ctx, cancel := context.WithTimeout(ctx, time.Duration(10)*sealEvery)
		defer cancel()
		if err := n.call(ctx, "copies", copyRequest{list}, &theirs); err != nil {
			return
		}
	}
	for _, c := range list {
		other, asked := theirs.Standings[c.UUID]
		if !asked {
			other.Sealed = true
		}
		self := mine[c.UUID]
		switch {
		case self.Failed != "":
			n.giveUpCopy(ctx, c, n.self, self)
		case other.Failed != "":
			n.giveUpCopy(ctx, c, n.self.Peer(), other)
		case self.Sealed && other.Sealed:
			if _, err := n.propose(ctx, &meta.Entry{Commit: &meta.Object{UUID: c.UUID, Born: c.Born}}); err != nil && ctx.Err() == nil {
				n.log.Warn("cannot commit a copy that is complete; trying again", "uuid", c.UUID, "err", err)
			}
		}
	}
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

// copying lists the copies that are not complete.
func (n *Node) copying() []meta.Copy {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return n.md.state.Copies()
}

// maxReasons bounds what is remembered of copies that were given up.
const maxReasons = 256

// copyEnds follows an entry that has been applied: a commit, an abort.
func (n *Node) copyEnds(e *meta.Entry) {
	switch {
	case e.Commit != nil && e.Commit.Born != 0:
		n.endCopies(e.Commit.UUID)
	case e.Abort != nil && e.Abort.Born != 0 && e.Abort.Reason != "":
		n.copies.mu.Lock()
		if n.copies.reasons == nil || len(n.copies.reasons) >= maxReasons {
			n.copies.reasons = map[string]meta.Object{}
		}
		n.copies.reasons[e.Abort.UUID] = *e.Abort
		n.copies.mu.Unlock()
	}
	n.copies.applied.changed()
}
