package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

func (c *control) CreateSnapshot(ctx context.Context, q *targetv1.CreateSnapshotRequest) (*targetv1.Snapshot, error) {
	if err := errors.Join(checkUUID("uuid", q.Uuid), checkUUID("source_lun_uuid", q.SourceLunUuid), checkLabels(q.Labels)); err != nil {
		return nil, firstStatus(err)
	}
	if q.Name == "" || len(q.Name) > meta.MaxName {
		return nil, invalid("name", "%q must have 1 to %d bytes", q.Name, meta.MaxName)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	c.n.metaMu.Lock()
	old := c.n.state.Snapshots[q.Uuid]
	c.n.metaMu.Unlock()
	if old == nil || old.Stage != meta.Ready || old.Source != q.SourceLunUuid || old.Name != q.Name {
		s := meta.Snapshot{UUID: q.Uuid, Name: q.Name, Source: q.SourceLunUuid, Labels: q.Labels, Created: meta.Now()}
		if err := c.n.createSnapshot(ctx, s); err != nil {
			return nil, grpcError(err)
		}
	}
	c.n.metaMu.Lock()
	s := c.n.state.Snapshots[q.Uuid]
	c.n.metaMu.Unlock()
	if s == nil || s.Stage != meta.Ready {
		return nil, status.Errorf(codes.Unavailable, "snapshot %s is committed but not applied here yet: ask again", q.Uuid)
	}
	return snapshotProto(s), nil
}

func (c *control) DeleteSnapshot(ctx context.Context, q *targetv1.DeleteSnapshotRequest) (*targetv1.DeleteSnapshotResponse, error) {
	if err := checkUUID("uuid", q.Uuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	_, err := c.n.propose(ctx, &meta.Entry{DeleteSnapshot: &meta.Object{UUID: q.Uuid}})
	return &targetv1.DeleteSnapshotResponse{}, grpcError(err)
}

func (c *control) ListSnapshots(_ context.Context, q *targetv1.ListSnapshotsRequest) (*targetv1.ListSnapshotsResponse, error) {
	if err := c.member(); err != nil {
		return nil, err
	}
	c.n.metaMu.Lock()
	var sel []*meta.Snapshot
	for _, s := range c.n.state.SortedSnapshots() {
		if s.Stage == meta.Ready && (q.SourceLunUuid == "" || s.Source == q.SourceLunUuid) && (q.Uuid == "" || s.UUID == q.Uuid) && (q.Name == "" || s.Name == q.Name) {
			sel = append(sel, s)
		}
	}
	c.n.metaMu.Unlock()
	out, next := page(sel, func(s *meta.Snapshot) string { return s.UUID }, q.AfterUuid, q.Limit)
	r := &targetv1.ListSnapshotsResponse{NextAfterUuid: next}
	for _, s := range out {
		r.Snapshots = append(r.Snapshots, snapshotProto(s))
	}
	return r, nil
}

func (c *control) GetStatus(ctx context.Context, _ *targetv1.GetStatusRequest) (*targetv1.Status, error) {
	return c.n.status(ctx), nil
}

// Version of this build, set by the linker.
var Version = "dev"

// boottimeStamp turns a CLOCK_BOOTTIME instant into wall time.
func (n *Node) boottimeStamp(at int64) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return timestamppb.New(time.Now().Add(time.Duration(at - n.boottime())))
}

// status reports the standing in full.
func (n *Node) status(ctx context.Context) *targetv1.Status {
	v := n.View()
	s := &targetv1.Status{Cluster: n.cfg.Cluster, Pair: n.cfg.Pair, Node: n.cfg.Node, TargetIqn: n.cfg.TargetIQN(),
		Portals: n.protoPortals(), Epoch: v.Record.Epoch, Reason: v.Reason, Linked: v.Linked, LogIndex: v.LogIndex,
		Reflink: n.reflinks(), Version: Version, Exposed: v.Exposed, Phase: n.phase(v)}
	for _, m := range v.Record.Members {
		s.Members = append(s.Members, m.Node.String())
	}
	volumes, err := n.pairCapacity(ctx)
	if err != nil {
		s.Reason = fmt.Sprintf("%s (capacity: %v)", s.Reason, err)
	}
	s.Volumes = volumes
	for _, b := range volumes {
		if len(b.Lacks) == 0 {
			s.CapacityBytes, s.FreeBytes = s.CapacityBytes+b.CapacityBytes, s.FreeBytes+b.FreeBytes
		}
	}
	if why := n.refused.Load(); why != nil && v.Phase == pair.Outside {
		s.Reason = *why
	}
	if v.Phase == pair.Alone {
		s.AloneSince = n.boottimeStamp(v.Since)
	}
	if r := v.Resync; r.Started != 0 {
		s.Resync = &targetv1.Resync{DoneBytes: r.Done, TotalBytes: r.Total, Full: r.Full, FullReason: r.FullReason,
			SentBytes: r.Sent, Started: n.boottimeStamp(r.Started), Finished: n.boottimeStamp(r.Finished)}
		resyncPace(s.Resync, r, n.boottime())
	}
	now, last := n.shares()
	s.Scrub, s.LastScrub = cmp.Or(now, last).proto(), last.proto()
	s.Checksums = n.checksums()
	s.DirtyBytes, s.ForceEpoch, s.Arbiter = uint64(n.hotRegions())*store.RegionSize, v.ForceEpoch, n.arbiterProto()
	n.metaMu.Lock()
	luns, held := n.state.SortedLUNs(), n.state.Volumes()
	n.metaMu.Unlock()
	if v.Linked && v.Phase == pair.Alone && n.misread(held) {
		s.Reason = fmt.Sprintf("LUNs lie in backing volumes that the release of node %s does not know: upgrade it", n.self.Peer())
	}
	for _, l := range luns {
		for _, m := range l.Maps {
			if m.Lost {
				s.LostLuns = append(s.LostLuns, l.UUID)
				break
			}
		}
	}
	n.mu.Lock()
	for _, l := range luns {
		if id, err := parseID(l.UUID); err == nil {
			if o, ok := n.m.Owner(id); ok && o == n.self {
				s.OwnedLuns = append(s.OwnedLuns, l.UUID)
			}
		}
	}
	n.mu.Unlock()
	return s
}

// resyncPace says how fast it goes and, from what has gone by, when it will end.
func resyncPace(p *targetv1.Resync, r pair.ResyncView, now int64) {
	end := now
	if r.Finished != 0 {
		end = r.Finished
	}
	took := time.Duration(end - r.Started)
	if took <= 0 || r.Done == 0 {
		return
	}
	rate := float64(r.Done) / took.Seconds()
	p.BytesPerSecond = uint64(rate)
	if r.Active && r.Total >= r.Done && rate > 0 {
		p.ExpectedEnd = timestamppb.New(time.Now().Add(time.Duration(float64(r.Total-r.Done) / rate * float64(time.Second))))
	}
}

func (n *Node) phase(v pair.View) targetv1.Phase {
	switch {
	case n.stopping.Load() || v.Leaving:
		return targetv1.Phase_PHASE_STOPPING
	case v.Phase == pair.Starting:
		return targetv1.Phase_PHASE_STARTING
	case v.Phase == pair.Paired && v.Serving:
		return targetv1.Phase_PHASE_IN_SYNC
	case v.Phase == pair.Paired:
		return targetv1.Phase_PHASE_UNLINKED
	case v.Phase == pair.Alone && v.Resync.Active:
		return targetv1.Phase_PHASE_RESYNCING
	case v.Phase == pair.Alone:
		return targetv1.Phase_PHASE_ALONE
	case v.Phase == pair.Outside:
		return targetv1.Phase_PHASE_JOINING
	}
	return targetv1.Phase_PHASE_FENCED
}

// event tells the watchers.
func (n *Node) event(kind, text string) {
	n.events.send(&targetv1.Event{Time: timestamppb.Now(), Kind: kind, Message: text})
}

// broadcaster hands events to watchers; a slow one loses events rather than holding anything up.
type broadcaster struct {
	mu   sync.Mutex
	subs map[chan *targetv1.Event]struct{}
}

func (b *broadcaster) send(e *targetv1.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.subs {
		select {
		case c <- e:
		default:
		}
	}
}

func (b *broadcaster) subscribe() (<-chan *targetv1.Event, func()) {
	c := make(chan *targetv1.Event, 256)
	b.mu.Lock()
	if b.subs == nil {
		b.subs = map[chan *targetv1.Event]struct{}{}
	}
	b.subs[c] = struct{}{}
	b.mu.Unlock()
	return c, func() {
		b.mu.Lock()
		delete(b.subs, c)
		b.mu.Unlock()
	}
}

// Watch streams events, the present status first.
func (c *control) Watch(_ *targetv1.WatchRequest, s grpc.ServerStreamingServer[targetv1.Event]) error {
	events, stop := c.n.events.subscribe()
	defer stop()
	if err := s.Send(&targetv1.Event{Time: timestamppb.Now(), Kind: "status", Status: c.n.status(s.Context())}); err != nil {
		return err
	}
	for {
		select {
		case e := <-events:
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		case <-c.n.ctx.Done():
			return status.Error(codes.Unavailable, "the node stops")
		}
	}
}
