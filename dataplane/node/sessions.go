package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
)

// maxSessions that one answer lists.
const maxSessions = 4096

// ListSessions implements targetv1.TargetServiceServer.
func (c *control) ListSessions(_ context.Context, q *targetv1.ListSessionsRequest) (*targetv1.ListSessionsResponse, error) {
	r := &targetv1.ListSessionsResponse{Node: c.n.cfg.Node}
	for _, p := range c.n.protoPortals() {
		if p.Node == r.Node {
			r.Portal = p
		}
	}
	host := strings.ToLower(q.HostIqn)
	list := slices.DeleteFunc(c.n.iscsi.Sessions(), func(s iscsi.SessionInfo) bool {
		return s.Discovery || host != "" && strings.ToLower(s.Initiator) != host
	})
	slices.SortFunc(list, func(a, b iscsi.SessionInfo) int {
		return cmp.Or(cmp.Compare(a.Initiator, b.Initiator), a.Since.Compare(b.Since))
	})
	// Times are told by the calendar as it is now: when it was set again, it does not make a session older than it is.
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
