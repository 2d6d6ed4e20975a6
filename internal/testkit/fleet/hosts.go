package fleet

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// MapHost maps a LUN to a host.
func (p *Pairs) MapHost(ctx context.Context, q *targetv1.MapHostRequest) (*targetv1.Mapping, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.Mapping, error) {
		l, err := x.lun(q.LunUuid)
		if err != nil {
			return nil, err
		}
		for _, m := range l.Mappings {
			if m.HostIqn == q.HostIqn {
				return m, nil
			}
		}
		if q.Exclusive && len(l.Mappings) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "LUN %s is mapped to %s", l.Uuid, l.Mappings[0].HostIqn)
		}
		m := &targetv1.Mapping{HostIqn: q.HostIqn, Lun: uint32(x.hosts[q.HostIqn] % 16384), TargetIqn: x.iqn(), Portals: x.portals(), Wwid: l.Wwid, Generation: x.changes, ReadOnly: proto.Bool(q.ReadOnly), Near: q.Near}
		x.hosts[q.HostIqn]++
		l.Mappings = append(l.Mappings, m)
		return m, nil
	})
}

// UnmapHost ends a mapping.
func (p *Pairs) UnmapHost(ctx context.Context, q *targetv1.UnmapHostRequest) (*targetv1.UnmapHostResponse, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.UnmapHostResponse, error) {
		if l := x.luns[q.LunUuid]; l != nil {
			l.Mappings = slices.DeleteFunc(l.Mappings, func(m *targetv1.Mapping) bool { return q.HostIqn == "" || m.HostIqn == q.HostIqn })
		}
		return &targetv1.UnmapHostResponse{}, nil
	})
}

// ListSessions says that a host has a session with the node, and asked it for the target port
// groups a moment ago.
func (p *Pairs) ListSessions(ctx context.Context, q *targetv1.ListSessionsRequest) (*targetv1.ListSessionsResponse, error) {
	n, err := p.at(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.Index([]string{"a", "b"}, n.name)
	now := timestamppb.Now()
	return &targetv1.ListSessionsResponse{Node: n.name, Portal: n.pair.portals()[at], Time: now, Sessions: []*targetv1.Session{{HostIqn: q.HostIqn, Remote: "192.0.2.9:4000", Since: timestamppb.New(time.Now().Add(-time.Hour)), LastRtpg: now}}}, nil
}
