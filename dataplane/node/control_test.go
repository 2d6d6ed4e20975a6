package node

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Bad input gets the code that a client decides by, and a text that names the field.
func TestControlRefusesBadInput(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(1<<20, "a")
	snap := uuid.NewString()
	c, ctx := p.client(0), p.ctx
	if _, err := c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "snap", SourceLunUuid: id}); err != nil {
		t.Fatal(err)
	}
	other := uuid.NewString()
	create := func(change func(*targetv1.CreateLUNRequest)) func() error {
		return func() error {
			q := &targetv1.CreateLUNRequest{Uuid: other, Name: "other", SizeBytes: 1 << 20}
			change(q)
			_, err := c.CreateLUN(ctx, q)
			return err
		}
	}
	mapHost := func(change func(*targetv1.MapHostRequest)) func() error {
		return func() error {
			q := &targetv1.MapHostRequest{LunUuid: id, HostIqn: "iqn.2026-01.test:h"}
			change(q)
			_, err := c.MapHost(ctx, q)
			return err
		}
	}
	for name, x := range map[string]struct {
		call func() error
		code codes.Code
		says string
	}{
		"uuid":            {create(func(q *targetv1.CreateLUNRequest) { q.Uuid = "../x" }), codes.InvalidArgument, "uuid"},
		"uuid upper case": {create(func(q *targetv1.CreateLUNRequest) { q.Uuid = strings.ToUpper(other) }), codes.InvalidArgument, "uuid"},
		"size 0":          {create(func(q *targetv1.CreateLUNRequest) { q.SizeBytes = 0 }), codes.InvalidArgument, "size_bytes"},
		"size odd":        {create(func(q *targetv1.CreateLUNRequest) { q.SizeBytes = 1<<20 + 512 }), codes.InvalidArgument, "size_bytes"},
		"size huge":       {create(func(q *targetv1.CreateLUNRequest) { q.SizeBytes = 1 << 63 }), codes.InvalidArgument, "size_bytes"},
		"no name":         {create(func(q *targetv1.CreateLUNRequest) { q.Name = "" }), codes.InvalidArgument, "name"},
		"long name":       {create(func(q *targetv1.CreateLUNRequest) { q.Name = strings.Repeat("n", 254) }), codes.InvalidArgument, "name"},
		"two sources":     {create(func(q *targetv1.CreateLUNRequest) { q.SourceLunUuid, q.SourceSnapshotUuid = id, snap }), codes.InvalidArgument, "only one"},
		"bad source":      {create(func(q *targetv1.CreateLUNRequest) { q.SourceLunUuid = "x" }), codes.InvalidArgument, "source_lun_uuid"},
		"no such source":  {create(func(q *targetv1.CreateLUNRequest) { q.SourceSnapshotUuid = other }), codes.NotFound, other},
		"no such LUN":     {create(func(q *targetv1.CreateLUNRequest) { q.SourceLunUuid = uuid.NewString() }), codes.NotFound, "LUN"},
		"third node":      {create(func(q *targetv1.CreateLUNRequest) { q.PreferredNode = "c" }), codes.InvalidArgument, "preferred_node"},
		"name taken":      {create(func(q *targetv1.CreateLUNRequest) { q.Name = "lun-" + id }), codes.AlreadyExists, "another uuid"},
		"uuid taken":      {create(func(q *targetv1.CreateLUNRequest) { q.Uuid = id }), codes.AlreadyExists, id},
		"many labels": {create(func(q *targetv1.CreateLUNRequest) {
			q.Labels = map[string]string{}
			for i := range 65 {
				q.Labels[fmt.Sprint(i)] = "x"
			}
		}), codes.InvalidArgument, "labels"},
		"long label":      {create(func(q *targetv1.CreateLUNRequest) { q.Labels = map[string]string{"k": strings.Repeat("v", 1025)} }), codes.InvalidArgument, "labels"},
		"host name":       {mapHost(func(q *targetv1.MapHostRequest) { q.HostIqn = "worker1" }), codes.InvalidArgument, "host_iqn"},
		"map nothing":     {mapHost(func(q *targetv1.MapHostRequest) { q.LunUuid = other }), codes.NotFound, other},
		"short secret":    {mapHost(func(q *targetv1.MapHostRequest) { q.Chap = &targetv1.CHAP{User: "u", Secret: "short"} }), codes.InvalidArgument, "chap.secret"},
		"secret, no user": {mapHost(func(q *targetv1.MapHostRequest) { q.Chap = &targetv1.CHAP{Secret: "twelve bytes long"} }), codes.InvalidArgument, "chap.user"},
		"same secrets": {mapHost(func(q *targetv1.MapHostRequest) {
			q.Chap = &targetv1.CHAP{User: "u", Secret: "twelve bytes long", MutualUser: "v", MutualSecret: "twelve bytes long"}
		}), codes.InvalidArgument, "mutual_secret"},
		"delete in use":   {func() error { _, err := c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: id}); return err }, codes.FailedPrecondition, "unmap"},
		"delete nonsense": {func() error { _, err := c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: "x"}); return err }, codes.InvalidArgument, "uuid"},
		"get nothing":     {func() error { _, err := c.GetLUN(ctx, &targetv1.GetLUNRequest{Name: "nobody"}); return err }, codes.NotFound, "nobody"},
		"expand nothing": {func() error {
			_, err := c.ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: other, SizeBytes: 2 << 20})
			return err
		}, codes.NotFound, other},
		"snapshot of nothing": {func() error {
			_, err := c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: other, Name: "x", SourceLunUuid: other})
			return err
		}, codes.NotFound, other},
		"move to nobody": {func() error {
			_, err := c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "c"})
			return err
		}, codes.InvalidArgument, "to_node"},
		"move nothing": {func() error {
			_, err := c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{ToNode: "b"})
			return err
		}, codes.InvalidArgument, "lun_uuids"},
		"move unknown": {func() error {
			_, err := c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{other}, ToNode: "b"})
			return err
		}, codes.NotFound, other},
	} {
		err := x.call()
		if status.Code(err) != x.code || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, x.code, x.says)
		}
	}
	if l, err := c.ListLUNs(ctx, &targetv1.ListLUNsRequest{}); err != nil || len(l.Luns) != 1 {
		t.Errorf("refused requests leave LUNs behind: %v, %v", l, err)
	}
}

// Every call is idempotent, and the same through either node.
func TestControlIsIdempotentThroughBothNodes(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, snap := uuid.NewString(), uuid.NewString()
	for round := range 2 {
		for i := range p.nodes {
			c := p.client(i)
			check := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("round %d, node %d: %s: %v", round, i, what, err)
				}
			}
			l, err := c.CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 1 << 20})
			check("create", err)
			m, err := c.MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: strings.ToUpper(testHost)})
			check("map", err)
			if m.Lun != 0 || m.HostIqn != testHost || m.Wwid != l.Wwid || len(m.Portals) != 2 {
				t.Errorf("%v", m)
			}
			_, err = c.CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: id})
			check("snapshot", err)
			r, err := c.TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"})
			check("transfer", err)
			if first := round == 0 && i == 0; (r.Moved == 1) != first {
				t.Errorf("round %d, node %d: moved %d", round, i, r.Moved)
			}
		}
	}
	for _, i := range []int{1, 0, 1} {
		c := p.client(i)
		if _, err := c.UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: testHost}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteSnapshot(p.ctx, &targetv1.DeleteSnapshotRequest{Uuid: snap}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteLUN(p.ctx, &targetv1.DeleteLUNRequest{Uuid: id}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListPages(t *testing.T) {
	p := newTestPair(t).startBoth()
	want := map[string]bool{}
	for range 7 {
		id, _ := p.lun(1<<20, "")
		want[id] = true
	}
	after, calls := "", 0
	for {
		r, err := p.client(0).ListLUNs(p.ctx, &targetv1.ListLUNsRequest{AfterUuid: after, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		calls++
		for _, l := range r.Luns {
			if !want[l.Uuid] {
				t.Errorf("%s comes twice or was never made", l.Uuid)
			}
			delete(want, l.Uuid)
		}
		if after = r.NextAfterUuid; after == "" {
			break
		}
	}
	if len(want) > 0 || calls != 3 {
		t.Errorf("%d calls, missing %v", calls, want)
	}
}

func TestStatusHealthMetricsAndWatch(t *testing.T) {
	p := newTestPair(t)
	p.start(0)
	if code, body := p.get(0, "/readyz"); code != 503 || !strings.Contains(body, "starting") {
		t.Errorf("a node that has not met its peer: %d %s", code, body)
	}
	if code, _ := p.get(0, "/healthz"); code != 200 {
		t.Errorf("live: %d", code)
	}
	if _, err := p.client(0).ListLUNs(p.ctx, &targetv1.ListLUNsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a node outside the pair answers: %v", err)
	}
	p.start(1)
	p.inSync()
	id, _ := p.lun(8<<20, "b")
	s, err := p.client(1).GetStatus(p.ctx, &targetv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Cluster != "test" || s.Pair != "p0" || s.Node != "b" || s.TargetIqn != p.cfg[0].TargetIQN() || len(s.Portals) != 2 || s.Epoch != 1 ||
		strings.Join(s.Members, "") != "ab" || s.Phase != targetv1.Phase_PHASE_IN_SYNC || s.Reason != "" || !s.Linked || s.LogIndex == 0 ||
		s.CapacityBytes == 0 || s.FreeBytes == 0 || s.FreeBytes > s.CapacityBytes || len(s.OwnedLuns) != 1 || s.OwnedLuns[0] != id ||
		s.AloneSince != nil || s.Exposed {
		t.Errorf("%v", s)
	}
	if code, _ := p.get(1, "/readyz"); code != 200 {
		t.Errorf("ready: %d", code)
	}
	_, body := p.get(1, "/metrics")
	for _, want := range []string{`gemel_pair_phase{phase="paired"} 1`, "gemel_pair_epoch 1", "gemel_pair_linked 1", `gemel_luns{owner="b"} 1`,
		`gemel_store_free_bytes{volume="default"} `, `gemel_pair_events_total{event="mirror"}`, "gemel_arbiter_errors_total 0"} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	w, err := p.client(1).Watch(ctx, &targetv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.Recv()
	if err != nil || first.Kind != "status" || first.Status.GetNode() != "b" {
		t.Fatalf("%v, %v", first, err)
	}
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	for seen := ""; !strings.Contains(seen, "alone"); {
		e, err := w.Recv()
		if err == io.EOF || err != nil {
			t.Fatalf("%v; seen: %s", err, seen)
		}
		seen += e.Message + "\n"
	}
	p.until("node b is alone", func() bool { return p.nodes[1].ready() == nil })
	if s, err = p.client(1).GetStatus(p.ctx, &targetv1.GetStatusRequest{}); err != nil || s.Phase != targetv1.Phase_PHASE_ALONE || s.AloneSince == nil || len(s.Members) != 1 {
		t.Errorf("%v, %v", s, err)
	}
}
