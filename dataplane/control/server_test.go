package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A node outside the pair answers no question about LUNs and changes none: it may have old
// metadata.
func TestNodeOutsideThePairRefersToTheOther(t *testing.T) {
	f := newFake(t)
	c, ctx, id := f.client(), t.Context(), f.lun()
	f.phase = pair.Outside
	for name, call := range map[string]func() error{
		"create": func() error {
			_, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 1 << 20})
			return err
		},
		"get":    func() error { _, err := c.GetLUN(ctx, &targetv1.GetLUNRequest{Uuid: id}); return err },
		"list":   func() error { _, err := c.ListLUNs(ctx, &targetv1.ListLUNsRequest{}); return err },
		"delete": func() error { _, err := c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: id}); return err },
		"modify": func() error { _, err := c.ModifyLUN(ctx, &targetv1.ModifyLUNRequest{Uuid: id}); return err },
		"unmap":  func() error { _, err := c.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: id}); return err },
		"list snapshots": func() error {
			_, err := c.ListSnapshots(ctx, &targetv1.ListSnapshotsRequest{})
			return err
		},
		"scrub": func() error { _, err := c.Scrub(ctx, &targetv1.ScrubRequest{}); return err },
	} {
		if err := call(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "use the other node") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.GetStatus(ctx, &targetv1.GetStatusRequest{}); err != nil {
		t.Errorf("the status is for every node: %v", err)
	}
}

// Clients decide by the code of an error.
func TestErrorsHaveTheirCodes(t *testing.T) {
	f := newFake(t)
	c := f.client()
	for _, x := range []struct {
		err  error
		want codes.Code
	}{
		{ErrUnavailable, codes.Unavailable}, {fmt.Errorf("node b: %w", ErrUnavailable), codes.Unavailable},
		{fmt.Errorf("copy: %w", ErrCopying), codes.Aborted},
		{pair.ErrForceState, codes.FailedPrecondition}, {pair.ErrForceEpoch, codes.FailedPrecondition}, {pair.ErrForceAlive, codes.FailedPrecondition},
		{errors.New("the disk"), codes.Internal},
	} {
		f.err = x.err
		if _, err := c.Force(t.Context(), &targetv1.ForceRequest{Epoch: 1, AcceptDataLoss: true}); status.Code(err) != x.want || !strings.Contains(err.Error(), x.err.Error()) {
			t.Errorf("force: %v, want %v", err, x.want)
		}
		if _, err := c.TransferOwnership(t.Context(), &targetv1.TransferOwnershipRequest{All: true, ToNode: "a"}); status.Code(err) != x.want {
			t.Errorf("transfer: %v, want %v", err, x.want)
		}
	}
}

// A LUN and its mappings say where a host finds it.
func TestLUNNamesItsPathsAndUsage(t *testing.T) {
	f := newFake(t)
	c, id := f.client(), f.lun()
	m, err := c.MapHost(t.Context(), &targetv1.MapHostRequest{LunUuid: id, HostIqn: "IQN.2026-01.test:H"})
	if err != nil {
		t.Fatal(err)
	}
	if m.HostIqn != "iqn.2026-01.test:h" || m.TargetIqn != "iqn.2026-11.test:p0" || len(m.Portals) != 2 || m.Portals[1].Node != "b" || m.Portals[1].GroupTag != 2 {
		t.Errorf("%v", m)
	}
	l, err := c.GetLUN(t.Context(), &targetv1.GetLUNRequest{Name: "lun-" + id})
	if err != nil {
		t.Fatal(err)
	}
	if l.Uuid != id || l.Owner != "b" || l.AllocatedBytes != 4096 || len(l.Mappings) != 1 || l.Mappings[0].Wwid != l.Wwid || l.Wwid != m.Wwid {
		t.Errorf("%v", l)
	}
}

// Sessions are listed by host, without discovery sessions, in a fixed order.
func TestSessionsAreListedByHost(t *testing.T) {
	f := newFake(t)
	now := time.Now()
	f.sessions = []iscsi.SessionInfo{{Initiator: "iqn.2026-01.test:B", Since: now}, {Initiator: "iqn.2026-01.test:a", Since: now},
		{Initiator: "iqn.2026-01.test:a", Since: now.Add(-time.Minute), AskedGroups: now}, {Initiator: "iqn.2026-01.test:a", Discovery: true}}
	c := f.client()
	for host, want := range map[string]int{"": 3, "IQN.2026-01.test:a": 2, "iqn.2026-01.test:b": 1, "iqn.2026-01.test:c": 0} {
		r, err := c.ListSessions(t.Context(), &targetv1.ListSessionsRequest{HostIqn: host})
		if err != nil || len(r.Sessions) != want || r.Node != "b" || r.Portal.GetAddress() != "10.0.0.2:3260" {
			t.Fatalf("%q: %v, %v", host, r, err)
		}
		if want == 2 && (r.Sessions[0].LastRtpg == nil || r.Sessions[1].LastRtpg != nil) {
			t.Errorf("the older session comes first: %v", r.Sessions)
		}
	}
}

// A watch begins with the status, passes events on, and ends with the node.
func TestWatchEndsWithTheNode(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w, err := f.client().Watch(ctx, &targetv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := w.Recv(); err != nil || e.Kind != "status" || e.Status.GetNode() != "b" {
		t.Fatalf("%v, %v", e, err)
	}
	f.events.Send(&targetv1.Event{Kind: "pair", Message: "something"}) // the watcher is there: it has had the status
	if e, err := w.Recv(); err != nil || e.Message != "something" {
		t.Fatalf("%v, %v", e, err)
	}
	close(f.done)
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

// A watcher that does not read loses events; the sender does not wait.
func TestSlowWatcherLosesEvents(t *testing.T) {
	var b Events
	c, stop := b.subscribe()
	for range eventQueue + 10 {
		b.Send(&targetv1.Event{})
	}
	if len(c) != eventQueue {
		t.Errorf("%d events wait", len(c))
	}
	stop()
	if len(b.subs) != 0 {
		t.Error("a watch that has ended is still there")
	}
}
