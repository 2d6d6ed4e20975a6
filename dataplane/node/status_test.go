package node

import (
	"context"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

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
	if code, _ := p.get(1, "/debug/pprof/"); code != 404 {
		t.Errorf("profiles are served without --profiling: %d", code)
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

// Profiles are served when they are asked for, of waits for locks too.
func TestProfiles(t *testing.T) {
	p := newTestPair(t)
	p.cfg[0].Profiling = true
	p.startBoth()
	for _, path := range []string{"goroutine?debug=1", "mutex?debug=1", "profile?seconds=1"} {
		if code, body := p.get(0, "/debug/pprof/"+path); code != 200 || body == "" {
			t.Errorf("%s: %d, %d bytes", path, code, len(body))
		}
	}
}
