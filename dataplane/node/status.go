package node

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// Version of this build, set by the linker.
var Version = "dev"

// boottimeStamp turns a CLOCK_BOOTTIME instant into wall time.
func (n *Node) boottimeStamp(at int64) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return timestamppb.New(time.Now().Add(time.Duration(at - n.boottime())))
}

// Status implements control.Node.
func (n *Node) Status(ctx context.Context) *targetv1.Status {
	v := n.View()
	s := &targetv1.Status{Cluster: n.cfg.Cluster, Pair: n.cfg.Pair, Node: n.cfg.Node, TargetIqn: n.cfg.TargetIQN(),
		Portals: control.Portals(n.cfg.portals()), Epoch: v.Record.Epoch, Reason: v.Reason, Linked: v.Linked, LogIndex: v.LogIndex,
		Reflink: n.reflinks(), Version: Version, Exposed: v.Exposed, Phase: n.phase(v)}
	for _, m := range v.Record.Members {
		s.Members = append(s.Members, m.Node.String())
	}
	volumes, err := n.pairCapacity(ctx)
	if err != nil {
		s.Reason = fmt.Sprintf("%s (capacity: %v)", s.Reason, err)
	}
	s.Volumes, s.Places = volumes, n.places()
	for _, b := range volumes {
		if len(b.Lacks) == 0 {
			s.CapacityBytes, s.FreeBytes = s.CapacityBytes+b.CapacityBytes, s.FreeBytes+b.FreeBytes
		}
	}
	if why := n.own.refused.Load(); why != nil && v.Phase == pair.Outside {
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
	s.Checksums, s.Ownership, s.Supervisor = n.checksums(), n.ownership(), n.supervisorProto()
	s.DirtyBytes, s.ForceEpoch, s.Arbiter = uint64(n.hotRegions())*store.RegionSize, v.ForceEpoch, n.arbiterProto()
	n.md.mu.Lock()
	luns, held := n.md.state.SortedLUNs(), n.md.state.Volumes()
	n.md.mu.Unlock()
	if v.Linked && v.Phase == pair.Alone && n.misread(held) {
		s.Reason = fmt.Sprintf("LUNs are in backing volumes that the release of node %s does not support: upgrade node %s", n.self.Peer(), n.self.Peer())
	}
	for _, l := range luns {
		if n.quarantined(l) {
			s.QuarantinedLuns = append(s.QuarantinedLuns, l.UUID)
		}
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

// standing is a phase of the control API as text.
func standing(p targetv1.Phase) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(p.String(), "PHASE_"), "_", " "))
}

// phase is the standing as the control API names it.
func (n *Node) phase(v pair.View) targetv1.Phase {
	switch {
	case n.run.stopping.Load() || v.Leaving:
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
