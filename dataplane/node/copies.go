package node

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// Snapshots and clones that are being copied here (R14). Each node copies by itself, from an
// instant at which the source's changes are held (begincopies.go), in the background once it has
// applied the Mark. What it has copied counts in this life of the process only: nothing of it is
// durable before all is. The chair, or the node that is alone, commits a copy once every member has
// all of it, and aborts one that a member has lost (sealCopies). Who asked for it only waits, so
// nothing depends on its life.

// featureCopies on the link: the other node applies Mark, and answers what it has copied.
const featureCopies = "copies"

// copies are this node's, by uuid. Its zero value is ready.
type copies struct {
	mu      sync.Mutex
	all     map[string]*underCopy
	whole   map[string]uint64      // birth of what a resync has brought in this life, while it is Copying
	reasons map[string]meta.Object // why copies were given up; the last few

	// unlisted are those that were marked while this node joins, and of which the source has not
	// compared anything yet. The source may have looked for the last time at what there is to copy
	// before it applied the mark, which is applied here first: then they are on no list.
	unlisted     map[string]uint64
	someUnlisted atomic.Bool
	listed       map[string]bool // what the last list of a resync from here has; nil: there is none

	wake    signal // something may be to do for the chair
	applied signal // an entry has changed what is there
	tally   copyTally
}

// underCopy is one that has begun here.
type underCopy struct {
	born   uint64
	source string
	began  time.Time
	marked bool // the log has marked it
	c      *store.Copy
}

// copyStanding is what a node says of a copy.
type copyStanding struct {
	Sealed bool   `json:"sealed"`           // all of it is here, durably
	Whole  bool   `json:"whole,omitempty"`  // a resync has brought what the other node had of it then
	Failed string `json:"failed,omitempty"` // why it never will be
	Full   bool   `json:"full,omitempty"`   // for lack of space
	Done   int64  `json:"done"`             // bytes
	Total  int64  `json:"total"`
}

// Why a copy is given up: this process knows nothing of it, or neither does the one that it came
// from. What a resync has brought is what its source had, who may have been restarted before it, or
// have given the copy up: it counts beside a sealed one only.
const (
	errLostCopy   = "the node was restarted, or became a member again, before the copy was complete"
	errSourceLost = "the other node, from which it came, was restarted before the copy was complete"
)

// markCopies is what an entry makes of copies here: those of snapshots, which never change, begin.
// One of a LUN has begun, while its changes were held (begincopies.go); a node that has not begun
// it must not begin now, since they are held no more, and has nothing of it. A joiner has no such
// content: the resync brings it. The caller holds md.mu.
func (n *Node) markCopies(list []*meta.Marked, joining bool) (err error) {
	if joining {
		var ids []string
		for _, x := range list {
			n.copies.list(x.UUID, x.Born)
			ids = append(ids, x.UUID)
		}
		return n.addCopying(ids)
	}
	for _, x := range list {
		if x.Still {
			err = errors.Join(err, n.startCopy(x))
		}
	}
	return err
}

// startCopy begins with a copy: from now on its source's blocks are copied before they change.
func (n *Node) startCopy(x *meta.Marked) error {
	from, err := n.openObject(x.Source)
	if err != nil {
		return err
	}
	to, err := n.openObject(x.UUID)
	if err != nil {
		return err
	}
	n.dropVain(x.Source)
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	if old := n.copies.all[x.UUID]; old != nil {
		return fmt.Errorf("a copy to %s has begun already, of the object that entry %d has made", x.UUID, old.born)
	}
	c, err := from.CopyTo(to, x.Size, x.Still)
	if err != nil {
		return err
	}
	if n.copies.all == nil {
		n.copies.all = map[string]*underCopy{}
	}
	n.copies.all[x.UUID] = &underCopy{born: x.Born, source: x.Source, began: time.Now(), c: c}
	return nil
}

// beginKept is how long a copy that has begun, and is not marked, is in the way of others of its
// source: who asked for it has died, or will undo it.
const beginKept = 10 * time.Second

// dropVain ends such a copy of a LUN. If its entry still comes, this node has nothing of it.
func (n *Node) dropVain(source string) {
	n.copies.mu.Lock()
	var list []string
	for id, x := range n.copies.all {
		if x.source == source && !x.marked && time.Since(x.began) > beginKept {
			list = append(list, id)
		}
	}
	n.copies.mu.Unlock()
	for _, c := range n.takeCopies(list...) {
		c.Drop()
	}
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

// runCopy begins to copy in the background, after the entry has been applied.
func (n *Node) runCopy(uuid string, born uint64) {
	n.copies.mu.Lock()
	x := n.copies.all[uuid]
	if x == nil || x.born != born {
		n.copies.mu.Unlock()
		return
	}
	x.marked = true
	n.copies.mu.Unlock()
	n.run.tasks.Go(taskCopy, func() {
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
	clear(n.copies.unlisted)
	n.copies.mu.Unlock()
	for _, c := range n.takeCopies(list...) {
		c.Drop()
	}
}

// list notes a copy that the source has to compare before it counts.
func (c *copies) list(uuid string, born uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unlisted == nil {
		c.unlisted = map[string]uint64{}
	}
	c.unlisted[uuid] = born
	c.someUnlisted.Store(true)
}

// compared notes that the source of a resync has an object on its list: it ends the resync only
// when all of the object has been compared.
func (c *copies) compared(id pair.LUNID) {
	if !c.someUnlisted.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unlisted, uuid.UUID(id).String())
}

// wholeCopies notes that a resync has brought everything that was compared, copies that are not
// complete elsewhere included, durably. It returns those that were not.
func (n *Node) wholeCopies() (missed []string) {
	list := n.copying()
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	n.copies.whole = map[string]uint64{}
	for _, c := range list {
		if born, ok := n.copies.unlisted[c.UUID]; ok && born == c.Born {
			missed = append(missed, c.UUID)
			continue
		}
		n.copies.whole[c.UUID] = c.Born
	}
	n.copies.unlisted = nil
	n.copies.someUnlisted.Store(false)
	return missed
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

// copyStandings says what this node has of copies; nothing of one that is not Copying here.
func (n *Node) copyStandings(list []meta.Copy) map[string]copyStanding {
	known := map[string]uint64{}
	for _, c := range n.copying() {
		known[c.UUID] = c.Born
	}
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	out := map[string]copyStanding{}
	for _, c := range list {
		if known[c.UUID] != c.Born {
			continue
		}
		s := copyStanding{Failed: errLostCopy}
		if x := n.copies.all[c.UUID]; x != nil && x.born == c.Born {
			st := x.c.State()
			s = copyStanding{Sealed: st.Complete, Done: st.Done, Total: st.Total}
			if st.Err != nil {
				s.Failed, s.Full = st.Err.Error(), errors.Is(st.Err, store.ErrNoSpace)
			}
		} else if n.copies.whole[c.UUID] == c.Born {
			s = copyStanding{Whole: true}
		}
		out[c.UUID] = s
	}
	return out
}

// copying lists the copies that are not complete.
func (n *Node) copying() []meta.Copy {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	return n.md.state.Copies()
}

// maxReasons bounds what is remembered of copies that were given up.
const maxReasons = 256

// noteGivenUp remembers why a copy is given up. The caller holds md.mu since before it applied the
// entry: who finds the copy gone finds the reason.
func (n *Node) noteGivenUp(e *meta.Entry) {
	if e.Abort == nil || e.Abort.Born == 0 || e.Abort.Reason == "" {
		return
	}
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	if n.copies.reasons == nil || len(n.copies.reasons) >= maxReasons {
		n.copies.reasons = map[string]meta.Object{}
	}
	n.copies.reasons[e.Abort.UUID] = *e.Abort
}

// copyEnds follows an entry that has been applied: a commit, an abort.
func (n *Node) copyEnds(e *meta.Entry) {
	if e.Commit != nil && e.Commit.Born != 0 {
		n.endCopies(e.Commit.UUID)
	}
	n.copies.applied.changed()
}
