package node

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// scrubShare is what one node compares of a scrub: what people, the peer and the database get to
// know of it.
type scrubShare struct {
	ID          string                    `json:"id"` // of the scrub
	Node        string                    `json:"node"`
	Origin      targetv1.ScrubOrigin      `json:"origin"`
	Repair      bool                      `json:"repair"`
	Whole       bool                      `json:"whole"` // of everything, not of what was named
	Rate        int64                     `json:"rate"`
	Active      bool                      `json:"active"`
	Started     time.Time                 `json:"started"`
	Finished    time.Time                 `json:"finished,omitzero"`
	ExpectedEnd time.Time                 `json:"expectedEnd,omitzero"`
	Total       uint64                    `json:"total"`
	Done        uint64                    `json:"done"`
	Mismatched  uint64                    `json:"mismatched"`
	Repaired    uint64                    `json:"repaired"`
	Skipped     map[string]pair.SkipCount `json:"skipped,omitempty"`
	Reason      string                    `json:"reason,omitempty"`
	Findings    []scrubFinding            `json:"findings,omitempty"`
}

type scrubFinding struct {
	N        uint64    `json:"n"`
	UUID     string    `json:"uuid"`
	Off      int64     `json:"off"`
	Len      int64     `json:"len"`
	Repaired bool      `json:"repaired"`
	At       time.Time `json:"at"`
}

// scrubs are the share that is under way and the last one that has ended. What is pointed to never
// changes.
type scrubs struct {
	now, last *scrubShare // under Node.mu
	full      time.Time   // under Node.mu: when a scrub of everything last ran to its end; zero: never
	saving    sync.Mutex  // before it: what is saved is what there is then
}

// scrubRecord is the same in the database.
type scrubRecord struct {
	Now  *scrubShare `json:"now,omitempty"`
	Last *scrubShare `json:"last,omitempty"`
}

// Keys of the node's own bucket: when a scrub of everything last ended here, which releases before
// this one read as well, and the shares, which they pass over.
const (
	keyScrub       = "scrub"
	keyScrubShares = "scrub-shares"
)

// restartSkip is why the rest of a share was not compared whose process has ended: its node was not
// in sync then.
var restartSkip = pair.SkipApart.String()

// shares are the share that is under way, nil if there is none, and the last one that has ended.
func (n *Node) shares() (now, last *scrubShare) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settleScrub(n.m, n.boottime())
	return n.seen.scrubs.now, n.seen.scrubs.last
}

// settleScrub brings the share that is under way up to date, and makes it the last one when it has
// ended. Under Node.mu.
func (n *Node) settleScrub(m *pair.Machine, at int64) {
	s := &n.seen.scrubs
	if s.now == nil {
		return
	}
	v, found := m.View(at).Scrub, m.ScrubFindings()
	x := *s.now
	x.Active, x.Total, x.Done, x.Mismatched, x.Repaired, x.Reason = v.Active, v.Total, v.Done, v.Mismatched, v.Repaired, v.Reason
	x.Skipped = map[string]pair.SkipCount{}
	for why, c := range v.Skips {
		if c.Ranges > 0 {
			x.Skipped[pair.Skip(why).String()] = c
		}
	}
	x.Findings = make([]scrubFinding, 0, len(found))
	for _, f := range found {
		x.Findings = append(x.Findings, scrubFinding{N: f.N, UUID: f.LUN.String(), Off: f.Off, Len: f.Len, Repaired: f.Repaired, At: x.Started.Add(time.Duration(f.At - v.Started))})
	}
	x.ExpectedEnd = time.Time{}
	if left, ok := v.Left(); ok {
		x.ExpectedEnd = x.Started.Add(time.Duration(at-v.Started) + left)
	}
	if s.now = &x; !v.Active {
		x.Finished = x.Started.Add(time.Duration(v.Finished - v.Started))
		if s.now, s.last = nil, &x; x.Whole && x.Reason == "" {
			s.full = x.Finished
		}
	}
}

// followScrub keeps what becomes of the share with an id, for a restart, until it has ended.
func (n *Node) followScrub(id string) {
	t := time.NewTicker(scrubLook)
	defer t.Stop()
	for saved := time.Now(); ; {
		select {
		case <-t.C:
		case <-n.run.ctx.Done():
			n.saveScrubs()
			return
		}
		now, _ := n.shares()
		ended := now == nil || now.ID != id
		if ended || time.Since(saved) > time.Minute {
			n.saveScrubs()
			saved = time.Now()
		}
		if ended {
			return
		}
	}
}

// scrubLook is how often a scrub is looked at.
const scrubLook = 250 * time.Millisecond

// lastFullScrub is when a scrub of everything last ran to its end on this node; false: never.
func (n *Node) lastFullScrub() (time.Time, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen.scrubs.full, !n.seen.scrubs.full.IsZero()
}

// saveScrubs makes the shares durable as they are.
func (n *Node) saveScrubs() {
	n.seen.scrubs.saving.Lock()
	defer n.seen.scrubs.saving.Unlock()
	var r scrubRecord
	r.Now, r.Last = n.shares()
	err := n.store.DB().Update(func(tx *store.Tx) error {
		if at, ok := n.lastFullScrub(); ok {
			if err := put(tx, bucketState, keyScrub, at); err != nil {
				return err
			}
		}
		return put(tx, bucketState, keyScrubShares, r)
	})
	if err != nil {
		n.log.Warn("result of the last scrub", "err", err)
	}
}

// loadScrubs takes up the last result. A share that was under way has ended with its process. What
// cannot be read is forgotten: nothing depends on it.
func (n *Node) loadScrubs(now time.Time) {
	var r scrubRecord
	err := n.store.DB().View(func(tx *store.Tx) error {
		for key, into := range map[string]any{keyScrub: &n.seen.scrubs.full, keyScrubShares: &r} {
			raw, err := tx.Get(bucketState, key)
			if err == nil && raw != nil {
				err = json.Unmarshal(raw, into)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		return nil
	})
	if err != nil {
		n.log.Warn("result of the last scrub", "err", err)
		return
	}
	if n.seen.scrubs.last = r.Last; r.Now != nil {
		n.seen.scrubs.last = r.Now.cut(now)
	}
}

// cut is the share as it ended with its process.
func (x *scrubShare) cut(now time.Time) *scrubShare {
	x.Active, x.Finished, x.ExpectedEnd, x.Reason = false, now, time.Time{}, "the process of node "+x.Node+" has ended"
	if rest := x.Total - min(x.Total, x.Done+x.skippedBytes()); rest > 0 {
		if x.Skipped == nil {
			x.Skipped = map[string]pair.SkipCount{}
		}
		c := x.Skipped[restartSkip]
		x.Skipped[restartSkip] = pair.SkipCount{Ranges: c.Ranges + (rest+pair.ScrubRange-1)/pair.ScrubRange, Bytes: c.Bytes + rest}
	}
	return x
}

func (x *scrubShare) skippedBytes() (sum uint64) {
	for _, c := range x.Skipped {
		sum += c.Bytes
	}
	return sum
}

func (x *scrubShare) proto() *targetv1.Scrub {
	if x == nil {
		return nil
	}
	p := &targetv1.Scrub{Active: x.Active, DoneBytes: x.Done, TotalBytes: x.Total, MismatchedRanges: x.Mismatched, RepairedRanges: x.Repaired,
		Started: timestamppb.New(x.Started), Reason: x.Reason, Id: x.ID, Node: x.Node, Origin: x.Origin, Repair: x.Repair,
		BytesPerSecond: uint64(x.Rate), SkippedBytes: x.skippedBytes(), Whole: x.Whole}
	if !x.Finished.IsZero() {
		p.Finished = timestamppb.New(x.Finished)
	}
	if !x.ExpectedEnd.IsZero() {
		p.ExpectedEnd = timestamppb.New(x.ExpectedEnd)
	}
	for _, why := range pair.Skips() {
		if c := x.Skipped[why.String()]; c.Ranges > 0 {
			p.SkippedRanges += c.Ranges
			p.Skipped = append(p.Skipped, &targetv1.ScrubSkip{Reason: why.String(), Ranges: c.Ranges, Bytes: c.Bytes})
		}
	}
	for _, f := range x.Findings {
		p.Findings = append(p.Findings, &targetv1.ScrubFinding{Number: f.N, Uuid: f.UUID, Offset: uint64(f.Off), Length: uint64(f.Len), Repaired: f.Repaired, Time: timestamppb.New(f.At)})
	}
	return p
}
