package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
	"github.com/gemel-storage/gemel/target/meta"
	"github.com/gemel-storage/gemel/target/pair"
	"github.com/gemel-storage/gemel/target/scsi"
	"github.com/gemel-storage/gemel/target/store"
)

// DefaultScrubRate is how many bytes a second a scrub compares at most, unless it is told otherwise.
const DefaultScrubRate = 64 << 20

// Errors of a scrub.
var (
	errScrubActive = fmt.Errorf("a scrub is under way: %w", meta.ErrExists)
	errScrubPair   = fmt.Errorf("a scrub compares the copies of two nodes that are in sync: %w", meta.ErrInUse)
)

type scrubRequest struct {
	UUIDs  []string `json:"uuids,omitempty"`
	Repair bool     `json:"repair"`
	Rate   int64    `json:"rate"`
}

type scrubReply struct {
	Total int64 `json:"total"`
}

// scrub has each node compare what it owns.
func (n *Node) scrub(ctx context.Context, q scrubRequest) (total int64, err error) {
	n.metaMu.Lock()
	for _, id := range q.UUIDs {
		if n.state.LUNs[id] == nil && n.state.Snapshots[id] == nil {
			err = fmt.Errorf("LUN or snapshot %s: %w", id, meta.ErrNotFound)
		}
	}
	n.metaMu.Unlock()
	if err != nil {
		return 0, err
	}
	own, err := n.scrubHere(q)
	if err != nil && !errors.Is(err, errScrubActive) {
		return 0, err
	}
	var r scrubReply
	if perr := n.call(ctx, "scrub", q, &r); perr != nil || err != nil {
		return own + r.Total, errors.Join(err, perr)
	}
	return own + r.Total, nil
}

// scrubHere begins to compare the objects that this node owns; snapshots are the chair's.
func (n *Node) scrubHere(q scrubRequest) (int64, error) {
	n.metaMu.Lock()
	objs := n.objectsLocked(false)
	snaps := map[pair.LUNID]bool{}
	for id := range n.state.Snapshots {
		if k, err := parseID(id); err == nil {
			snaps[k] = true
		}
	}
	n.metaMu.Unlock()
	if len(q.UUIDs) > 0 {
		objs = slices.DeleteFunc(objs, func(o pair.CopyObject) bool { return !slices.Contains(q.UUIDs, o.ID.String()) })
	}
	if q.Rate == 0 {
		q.Rate = DefaultScrubRate
	}
	var total int64
	var err error
	n.do(func(m *pair.Machine, now int64) {
		v := m.View(now)
		if v.Phase != pair.Paired || !v.Serving {
			err = fmt.Errorf("%w; now: %s %s", errScrubPair, v.Phase, v.Reason)
			return
		}
		mine := objs[:0]
		for _, o := range objs {
			owner, ok := m.Owner(o.ID)
			if ok && owner == n.self || !ok && snaps[o.ID] && v.Record.Chair() == n.self {
				mine = append(mine, o)
				total += o.Size
			}
		}
		if !m.Scrub(now, mine, q.Rate, q.Repair) {
			total, err = 0, errScrubActive
		}
	})
	return total, err
}

// scrubLoop scrubs what this node owns at intervals, which a restart does not begin anew.
func (n *Node) scrubLoop(every time.Duration) {
	t := time.NewTicker(min(time.Minute, every/4+time.Millisecond))
	defer t.Stop()
	last := n.lastScrub()
	for {
		select {
		case <-t.C:
		case <-n.ctx.Done():
			return
		}
		v := n.View()
		if s := v.Scrub; s.Finished != 0 && s.Reason == "" {
			if at := n.boottimeStamp(s.Finished).AsTime(); at.Sub(last) > time.Second {
				last = at
				n.saveScrub(last)
			}
		}
		if v.Phase != pair.Paired || !v.Serving || v.Scrub.Active || time.Since(last) < every {
			continue
		}
		if _, err := n.scrubHere(scrubRequest{Rate: n.cfg.ScrubRate}); err != nil {
			n.log.Warn("scheduled scrub", "err", err)
		}
	}
}

const keyScrub = "scrub"

// lastScrub is when a scrub last ended here. A node that never had one counts from its start.
func (n *Node) lastScrub() (at time.Time) {
	at = time.Now()
	err := n.store.DB().View(func(tx *store.Tx) error {
		raw, err := tx.Get(bucketLife, keyScrub)
		if err != nil || raw == nil {
			return err
		}
		return json.Unmarshal(raw, &at)
	})
	if err != nil {
		n.log.Warn("time of the last scrub", "err", err)
	}
	return at
}

func (n *Node) saveScrub(at time.Time) {
	err := n.store.DB().Update(func(tx *store.Tx) error { return put(tx, bucketLife, keyScrub, at) })
	if err != nil {
		n.log.Warn("time of the last scrub", "err", err)
	}
}

// scrubSum is the partner's look at a range: nothing is changed.
func (n *Node) scrubSum(f *store.File, msg *pair.Msg) (differs bool, res scsi.Result) {
	buf := n.buffers.get(int(msg.Len))
	defer n.buffers.put(buf)
	if err := f.ReadAt(buf, msg.Off); err != nil {
		return false, classify(err, false)
	}
	if len(msg.Meta) == 0 { // a hole there
		return !allZero(buf), scsi.OK
	}
	return !bytes.Equal(sumOf(buf), msg.Meta), scsi.OK
}

// Scrub implements targetv1.TargetServiceServer.
func (c *control) Scrub(ctx context.Context, q *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error) {
	for _, id := range q.Uuids {
		if err := checkUUID("uuids", id); err != nil {
			return nil, err
		}
	}
	if q.BytesPerSecond > 1<<40 {
		return nil, invalid("bytes_per_second", "%d is beyond 1 TiB", q.BytesPerSecond)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	total, err := c.n.scrub(ctx, scrubRequest{UUIDs: q.Uuids, Repair: q.Repair, Rate: int64(q.BytesPerSecond)})
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.ScrubResponse{TotalBytes: uint64(total)}, nil
}

// Force implements targetv1.TargetServiceServer.
func (c *control) Force(_ context.Context, q *targetv1.ForceRequest) (*targetv1.ForceResponse, error) {
	if !q.AcceptDataLoss {
		return nil, invalid("accept_data_loss", "must be true: writes that only the lost member has are given up")
	}
	if q.Epoch == 0 {
		return nil, invalid("epoch", "is needed: force_epoch of this node's status")
	}
	var err error
	c.n.do(func(m *pair.Machine, now int64) { err = m.Force(now, q.Epoch) })
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.ForceResponse{}, nil
}
