package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// DefaultScrubRate is how many bytes a second a scrub compares at most, unless the scrub request
// sets another rate.
const DefaultScrubRate = 64 << 20

// Errors of a scrub.
var (
	errScrubActive = fmt.Errorf("a scrub is already running: %w", meta.ErrExists)
	errScrubPair   = fmt.Errorf("a scrub compares the copies of two nodes that are in sync: %w", meta.ErrInUse)
)

// featureScrub on the link: the other node takes the share that it is given, and tells how far it
// is.
const featureScrub = "scrub-share"

// scrubRequest has a node begin its share. Without an id it is of a release that knows no shares:
// then the node compares what it owns.
type scrubRequest struct {
	UUIDs  []string             `json:"uuids,omitempty"` // with an id: the share, which may be empty. Without: empty is everything
	Repair bool                 `json:"repair"`
	Rate   int64                `json:"rate"`
	ID     string               `json:"id,omitempty"`
	Origin targetv1.ScrubOrigin `json:"origin,omitempty"`
	Whole  bool                 `json:"whole,omitempty"`
}

type scrubReply struct {
	Total int64       `json:"total"`
	Busy  bool        `json:"busy,omitempty"`  // another one is under way
	Share *scrubShare `json:"share,omitempty"` // that has begun, or is under way
}

// scrubAnswer is the answer to a request for a scrub.
type scrubAnswer struct {
	total    uint64
	underWay bool // before
	shares   []*scrubShare
}

// scrub has each node compare its share: what it owns now. Each LUN and snapshot is in one share,
// whatever moves meanwhile. While a scrub is under way, the answer describes that scrub instead of
// a new one.
//
// Two who ask at once: a share is begun at node a first, and the one that comes second finds it
// there.
func (n *Node) scrub(ctx context.Context, req scrubRequest) (scrubAnswer, error) {
	req.Whole = len(req.UUIDs) == 0
	shares, err := n.splitScrub(req.UUIDs)
	if err != nil {
		return scrubAnswer{}, err
	}
	if known, err := n.scrubUnderWay(ctx); err != nil || known.underWay {
		return known, err
	}
	req.ID = uuid.NewString()
	first := pair.A
	if !n.peerKnows(featureScrub) { // it cannot be asked before
		first = n.self.Peer()
	}
	var a scrubAnswer
	for i, at := range []pair.Node{first, first.Peer()} {
		req.UUIDs = shares[at]
		r, err := n.beginScrub(ctx, at, req)
		if err != nil {
			err = fmt.Errorf("node %s: %w", at, err)
			if i > 0 && at != n.self { // no half of a scrub
				n.do(func(m *pair.Machine, now int64) { m.ScrubStop(now, "node "+at.String()+" has not started its share") })
			}
			return a, err
		}
		if r.Busy && i == 0 {
			known, err := n.scrubUnderWay(ctx)
			known.underWay = true
			return known, err
		}
		a.total += uint64(r.Total)
		if r.Share != nil {
			a.shares = append(a.shares, r.Share)
		}
	}
	return a, nil
}

// splitScrub gives each object to the node that owns it, and snapshots to the chair. No uuids:
// everything.
func (n *Node) splitScrub(uuids []string) (shares [2][]string, err error) {
	n.md.mu.Lock()
	objs := n.objectsLocked(false)
	n.md.mu.Unlock()
	known := map[string]bool{}
	for _, o := range objs {
		known[o.ID.String()] = true
	}
	for _, id := range uuids {
		if !known[id] {
			return shares, fmt.Errorf("LUN or snapshot %s: %w", id, meta.ErrNotFound)
		}
	}
	if len(uuids) > 0 {
		objs = slices.DeleteFunc(objs, func(o pair.CopyObject) bool { return !slices.Contains(uuids, o.ID.String()) })
	}
	n.do(func(m *pair.Machine, now int64) {
		v := m.View(now)
		if err = n.scrubbable(&v); err != nil {
			return
		}
		for _, o := range objs {
			owner, ok := m.Owner(o.ID)
			if !ok {
				owner = v.Record.Chair()
			}
			shares[owner] = append(shares[owner], o.ID.String())
		}
	})
	return shares, err
}

func (n *Node) scrubbable(v *pair.View) error {
	if v.Phase != pair.Paired || !v.Agreed || !v.Serving {
		return fmt.Errorf("%w; this node is %s: %s", errScrubPair, standing(n.phase(*v)), v.Reason)
	}
	return nil
}

// scrubUnderWay are the shares that are under way at either node, with the other node's of the same
// scrub.
func (n *Node) scrubUnderWay(ctx context.Context) (a scrubAnswer, err error) {
	var r [2]scrubRecord
	r[0].Now, r[0].Last = n.shares()
	if n.peerKnows(featureScrub) {
		if err := n.call(ctx, "scrub_shares", struct{}{}, &r[1]); err != nil {
			return a, err
		}
	}
	id := ""
	for i := range r {
		if r[i].Now != nil && id == "" {
			a.underWay, id = true, r[i].Now.ID
		}
	}
	for i := range r {
		for _, x := range []*scrubShare{r[i].Now, r[i].Last} {
			if x != nil && a.underWay && x.ID == id {
				a.shares = append(a.shares, x)
				a.total += x.Total
				break
			}
		}
	}
	return a, nil
}

// beginScrub has a node begin its share.
func (n *Node) beginScrub(ctx context.Context, at pair.Node, req scrubRequest) (r scrubReply, err error) {
	switch {
	case at == n.self:
		return n.scrubHere(req)
	case !n.peerKnows(featureScrub) && len(req.UUIDs) == 0: // it would take that for everything
		return r, nil
	}
	err = n.call(ctx, "scrub", req, &r)
	if errors.Is(err, meta.ErrExists) {
		return scrubReply{Busy: true}, nil
	}
	return r, err
}

// scrubHere begins a share of this node.
func (n *Node) scrubHere(req scrubRequest) (r scrubReply, err error) {
	n.md.mu.Lock()
	objs := n.objectsLocked(false)
	snaps := map[pair.LUNID]bool{}
	for id := range n.md.state.Snapshots {
		if k, err := parseID(id); err == nil {
			snaps[k] = true
		}
	}
	n.md.mu.Unlock()
	if req.ID != "" || len(req.UUIDs) > 0 {
		named := map[string]bool{}
		for _, id := range req.UUIDs {
			named[id] = true
		}
		objs = slices.DeleteFunc(objs, func(o pair.CopyObject) bool { return !named[o.ID.String()] })
	}
	if req.Rate == 0 {
		req.Rate = cmp.Or(n.cfg.ScrubRate, DefaultScrubRate)
	}
	began := false
	n.do(func(m *pair.Machine, now int64) {
		v := m.View(now)
		if err = n.scrubbable(&v); err != nil {
			return
		}
		mine := objs
		if req.ID == "" {
			mine = slices.DeleteFunc(objs, func(o pair.CopyObject) bool {
				owner, ok := m.Owner(o.ID)
				return !(ok && owner == n.self || !ok && snaps[o.ID] && v.Record.Chair() == n.self)
			})
		}
		n.settleScrub(m, now)
		if began = m.Scrub(now, mine, req.Rate, req.Repair); began {
			for _, o := range mine {
				r.Total += o.Size
			}
			n.seen.scrubs.now = &scrubShare{ID: cmp.Or(req.ID, uuid.NewString()), Node: n.self.String(), Origin: req.Origin, Repair: req.Repair, Rate: req.Rate,
				Whole: req.Whole || req.ID == "" && len(req.UUIDs) == 0, Started: time.Now()}
			n.settleScrub(m, now)
		}
		r.Share = cmp.Or(n.seen.scrubs.now, n.seen.scrubs.last)
	})
	switch {
	case err != nil:
		return scrubReply{}, err
	case began:
		n.run.tasks.Go(taskScrub, func() { n.saveScrubs(); n.followScrub(r.Share.ID) })
	case req.ID == "":
		return scrubReply{}, errScrubActive // as releases before expect it
	default:
		r.Busy = true
	}
	return r, nil
}

// scrubLoop scrubs everything at intervals, which a restart does not begin again. Both nodes do;
// the second one finds the scrub of the first.
func (n *Node) scrubLoop(every time.Duration) {
	t := time.NewTicker(min(time.Minute, every/4+time.Millisecond))
	defer t.Stop()
	begun := time.Now() // a node that never had one counts from its start
	for {
		select {
		case <-t.C:
		case <-n.run.ctx.Done():
			return
		}
		now, _ := n.shares()
		since, ok := n.lastFullScrub()
		if !ok {
			since = begun
		}
		v := n.View()
		if v.Phase != pair.Paired || !v.Serving || now != nil || time.Since(since) < every {
			continue
		}
		ctx, cancel := context.WithTimeout(n.run.ctx, callTime)
		if _, err := n.scrub(ctx, scrubRequest{Rate: n.cfg.ScrubRate, Origin: targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE}); err != nil {
			n.log.Warn("scheduled scrub", "err", err)
		}
		cancel()
	}
}

// scrubSum is the partner's look at a range: nothing is changed.
func (n *Node) scrubSum(f *store.File, msg *pair.Msg) (differs bool, res scsi.Result) {
	buf := n.io.buffers.get(int(msg.Len))
	defer n.io.buffers.put(buf)
	equal := func() (bool, error) {
		if err := f.ReadAt(buf, msg.Off); err != nil {
			return false, err
		}
		if len(msg.Meta) == 0 { // a hole there
			return store.AllZero(buf), nil
		}
		return bytes.Equal(sumOf(buf), msg.Meta), nil
	}
	same, err := equal()
	if bad := store.Mismatched(err); len(bad) > 0 {
		if same, err = f.AcceptEqual(bad, equal); err == nil && !same {
			return true, scsi.Damaged
		}
	}
	return !same, classify(err, false)
}
