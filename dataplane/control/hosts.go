package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/hostprofile"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// MapHost implements targetv1.TargetServiceServer.
func (c *server) MapHost(ctx context.Context, req *targetv1.MapHostRequest) (*targetv1.Mapping, error) {
	if err := errors.Join(checkUUID("lun_uuid", req.LunUuid), checkCHAP(req.Chap), checkNear(req.Near)); err != nil {
		return nil, firstStatus(err)
	}
	host := strings.ToLower(req.HostIqn)
	if !pdu.ValidName(host) {
		return nil, invalid("host_iqn", "%q is not an iSCSI name (iqn., eui. or naa.)", req.HostIqn)
	}
	profile, err := profileOf(req.Profile)
	if err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	e := &meta.MapHost{Profile: profile, UUID: req.LunUuid, Host: host, ReadOnly: req.ReadOnly, Exclusive: req.Exclusive}
	if req.Near != nil {
		e.Near, e.At = meta.Near{Node: req.Near.Node, By: req.Near.By}, meta.Now()
	}
	if p := req.Chap; p != nil {
		e.CHAP = meta.CHAP{User: p.User, Secret: p.Secret, MutualUser: p.MutualUser, MutualSecret: p.MutualSecret}
	}
	out, err := c.n.Change(ctx, &meta.Entry{MapHost: e})
	if err != nil {
		return nil, grpcError(err)
	}
	return c.mapping(req.LunUuid, host, *out.Map), nil
}

// profileOf is the profile that is kept; none for Auto.
func profileOf(name string) (string, error) {
	switch p := hostprofile.Profile(name); {
	case p == "" || p == hostprofile.Auto:
		return "", nil
	case slices.Contains(hostprofile.All, p):
		return name, nil
	}
	return "", invalid("profile", "%q is none of %v", name, hostprofile.All)
}

// UnmapHost implements targetv1.TargetServiceServer.
func (c *server) UnmapHost(ctx context.Context, req *targetv1.UnmapHostRequest) (*targetv1.UnmapHostResponse, error) {
	if err := checkUUID("lun_uuid", req.LunUuid); err != nil {
		return nil, err
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	return &targetv1.UnmapHostResponse{}, grpcError(c.n.UnmapHost(ctx, req.LunUuid, strings.ToLower(req.HostIqn)))
}

func (c *server) mapping(lun, host string, m meta.Map) *targetv1.Mapping {
	var near *targetv1.Near
	if m.Near != (meta.Near{}) {
		near = &targetv1.Near{Node: m.Near.Node, By: m.Near.By}
	}
	return &targetv1.Mapping{Near: near, HostIqn: host, Lun: uint32(m.LUN), ReadOnly: proto.Bool(m.ReadOnly), TargetIqn: c.cfg.TargetIQN, Portals: Portals(c.cfg.Portals),
		Wwid: scsi.WWIDString(lun), Generation: m.Generation}
}

// maxSessions that one answer lists.
const maxSessions = 4096

// ListSessions implements targetv1.TargetServiceServer.
func (c *server) ListSessions(_ context.Context, req *targetv1.ListSessionsRequest) (*targetv1.ListSessionsResponse, error) {
	r := &targetv1.ListSessionsResponse{Node: c.cfg.Self.String()}
	for _, p := range Portals(c.cfg.Portals) {
		if p.Node == r.Node {
			r.Portal = p
		}
	}
	host := strings.ToLower(req.HostIqn)
	list := slices.DeleteFunc(c.n.Sessions(), func(s iscsi.SessionInfo) bool {
		return s.Discovery || host != "" && strings.ToLower(s.Initiator) != host
	})
	slices.SortFunc(list, func(a, b iscsi.SessionInfo) int {
		return cmp.Or(cmp.Compare(a.Initiator, b.Initiator), a.Since.Compare(b.Since))
	})
	// Times are given by the current wall clock: a step of the wall clock does not make a session
	// older than it is.
	now := time.Now()
	at := func(t time.Time) *timestamppb.Timestamp { return timestamppb.New(now.Add(-now.Sub(t))) }
	r.Time = timestamppb.New(now)
	for _, s := range list[:min(len(list), maxSessions)] {
		x := &targetv1.Session{HostIqn: strings.ToLower(s.Initiator), Remote: s.Remote, Since: at(s.Since)}
		if !s.AskedGroups.IsZero() {
			x.LastRtpg = at(s.AskedGroups)
		}
		r.Sessions = append(r.Sessions, x)
	}
	return r, nil
}
