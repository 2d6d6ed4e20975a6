package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

var _ control.Node = (*Node)(nil)

// serveControl serves the control API until stop is called.
func (n *Node) serveControl(l net.Listener) (stop func()) {
	var certs *tls.Config
	if n.tls != nil {
		certs = n.controlTLS()
	}
	s := control.NewServer(control.Config{Self: n.self, TargetIQN: n.cfg.TargetIQN(), Portals: n.cfg.portals(), Events: &n.seen.events,
		TLS: certs, Done: n.run.ctx.Done()}, n)
	n.run.tasks.Go(taskServe, func() {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			n.log.Error("the control API stopped serving", "err", err)
		}
	})
	return s.Stop
}

// Sessions implements control.Node.
func (n *Node) Sessions() []iscsi.SessionInfo { return n.iscsi.Sessions() }

// ReadMetadata implements control.Node.
func (n *Node) ReadMetadata(f func(*meta.State)) {
	n.md.mu.Lock()
	defer n.md.mu.Unlock()
	f(n.md.state)
}

// Usage implements control.Node.
func (n *Node) Usage(uuid string) (owner string, allocated uint64) {
	e := n.entryOf(uuid)
	if e == nil {
		return "", 0
	}
	if a, err := e.file.Allocated(); err == nil {
		allocated = uint64(a)
	}
	return n.ownerOf(e), allocated
}

// ownerOf is the present owner of a LUN, "" if there is none.
func (n *Node) ownerOf(e *unitEntry) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o, ok := n.m.Owner(e.id); ok {
		return o.String()
	}
	return ""
}

// Change implements control.Node.
func (n *Node) Change(ctx context.Context, e *meta.Entry) (meta.Outcome, error) {
	if m := e.MapHost; m != nil && (m.Near != (meta.Near{}) || m.Profile != "") && n.bothKnow(errNoOwnership) != nil {
		// A host is mapped without what the other node cannot apply, which is no reason to refuse
		// it.
		without := *m
		without.Near, without.At, without.Profile = meta.Near{}, time.Time{}, ""
		e = &meta.Entry{MapHost: &without}
	}
	return n.propose(ctx, e)
}

// Scrub implements control.Node.
func (n *Node) Scrub(ctx context.Context, req *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error) {
	a, err := n.scrub(ctx, scrubRequest{UUIDs: req.Uuids, Repair: req.Repair, Rate: int64(req.BytesPerSecond), Origin: req.Origin})
	if err != nil {
		return nil, err
	}
	r := &targetv1.ScrubResponse{TotalBytes: a.total, UnderWay: a.underWay}
	for _, x := range a.shares {
		r.Shares = append(r.Shares, x.proto())
	}
	return r, nil
}

// Force implements control.Node.
func (n *Node) Force(epoch uint64) (err error) {
	n.do(func(m *pair.Machine, now int64) { err = m.Force(now, epoch) })
	return err
}
