package node

import (
	"slices"
	"sync"

	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// featureBatch on the link: the other node knows an entry that is a batch of entries.
const featureBatch = "batch"

// maxBatchBytes bounds the encoded parts of a batch, except a part that is alone.
const maxBatchBytes = 256 << 10

// batcher gathers the entries that callers of this node propose while one of them is under way.
// The next batch has them all: they share its transactions, at both nodes. A caller that is alone
// does not wait. Its zero value is ready.
type batcher struct {
	mu      sync.Mutex
	waiting []*proposedEntry
	busy    bool // a goroutine proposes them
}

// proposedEntry waits for its turn.
type proposedEntry struct {
	entry *meta.Entry
	raw   []byte
	end   chan proposalEnd // with room for one
}

// batches reports whether the nodes that are to apply an entry know batches. A node that joins with
// another release at this moment refuses the entry by name, and joins again.
func (n *Node) batches() bool {
	v := n.View()
	return v.Linked && n.peerKnows(featureBatch) || !v.Linked && !v.Record.Both()
}

// add proposes an entry, at once or with others in the next batch.
func (b *batcher) add(n *Node, e *meta.Entry, raw []byte) <-chan proposalEnd {
	x := &proposedEntry{entry: e, raw: raw, end: make(chan proposalEnd, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, x)
	if !b.busy {
		b.busy = true
		n.run.tasks.Go(taskPropose, func() { b.run(n) })
	}
	return x.end
}

// run proposes until nothing waits.
func (b *batcher) run(n *Node) {
	for {
		batch := b.take()
		if len(batch) == 0 {
			return
		}
		n.proposeBatch(batch)
	}
}

// take chooses the next batch: the entries that have waited longest, but one for each LUN. Without
// any, the batcher is not busy any more.
func (b *batcher) take() (batch []*proposedEntry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var parts []*meta.Entry
	bytes := 0
	b.waiting = slices.DeleteFunc(b.waiting, func(x *proposedEntry) bool {
		if !x.entry.FitsBatch(parts) || len(parts) > 0 && bytes+len(x.raw) > maxBatchBytes {
			return false
		}
		batch, parts, bytes = append(batch, x), append(parts, x.entry), bytes+len(x.raw)
		return true
	})
	b.busy = len(batch) > 0
	return batch
}

// proposeBatch proposes entries as one, and waits for their end.
func (n *Node) proposeBatch(batch []*proposedEntry) {
	if len(batch) > 1 && n.batches() {
		e := &meta.Entry{}
		for _, x := range batch {
			e.Batch = append(e.Batch, x.entry)
		}
		end := n.awaitEnd(n.proposeAsync(e.Encode()))
		switch {
		case end.res == scsi.OK && len(end.out.Parts) == len(batch):
			for i, x := range batch {
				x.end <- proposalEnd{res: scsi.OK, out: end.out.Parts[i]}
			}
			return
		case end.res == scsi.Unavailable:
			for _, x := range batch {
				x.end <- end
			}
			return
		}
		// A node could not make the files of some. Only one node's outcome comes here, so each is
		// proposed again: of what has succeeded, that changes nothing.
	}
	var ends []<-chan proposalEnd
	for _, x := range batch {
		ends = append(ends, n.proposeAsync(x.raw))
	}
	for i, x := range batch {
		x.end <- n.awaitEnd(ends[i])
	}
}

// awaitEnd waits for the end of a proposal, or of this node.
func (n *Node) awaitEnd(c <-chan proposalEnd) proposalEnd {
	select {
	case end, ok := <-c:
		if ok {
			return end
		}
	case <-n.run.ctx.Done():
	}
	return proposalEnd{res: scsi.Unavailable}
}
