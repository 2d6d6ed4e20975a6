package node

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// A scheduled scrub is one of both nodes, whichever begins it, and its time is kept.
func TestScheduledScrub(t *testing.T) {
	p := newTestPair(t)
	p.cfg[0].ScrubInterval = Duration(time.Second)
	p.startBoth()
	_, m := p.lun(4*mib, "a")
	p.lun(4*mib, "b")
	p.write(p.device(m), 0, 7)
	seen := map[string]bool{}
	for range 2 {
		p.until("a scrub begins and ends by itself", func() bool {
			_, a := p.nodes[0].shares()
			_, b := p.nodes[1].shares()
			fresh := a != nil && b != nil && a.ID == b.ID && !seen[a.ID] && a.Done == 4*mib && b.Done == 4*mib && a.Whole && b.Whole
			if fresh {
				seen[a.ID] = true
			}
			return fresh && a.Origin == targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE
		})
	}
	saved := func() (at time.Time) {
		other := &Node{store: p.nodes[1].store, log: p.nodes[1].log}
		other.loadScrubs(time.Now())
		at, _ = other.lastFullScrub()
		return at
	}
	first := saved()
	p.until("its time is kept", func() bool { return saved().After(first) })
}

func (p *testPair) scrub(i int, req *targetv1.ScrubRequest) *targetv1.ScrubResponse {
	p.t.Helper()
	r, err := p.client(i).Scrub(p.ctx, req)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *testPair) status(i int) *targetv1.Status {
	p.t.Helper()
	s, err := p.client(i).GetStatus(p.ctx, &targetv1.GetStatusRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// The shares of both nodes are the whole, also while LUNs move: what has moved is skipped where it
// was, and says why.
func TestSharesOfAScrubAddUp(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(16*mib, "a")
	p.lun(8*mib, "b")
	p.write(p.device(m), 0, 7)
	begun := time.Now().Add(-time.Second)
	r := p.scrub(1, &targetv1.ScrubRequest{BytesPerSecond: 4 * mib})
	if r.UnderWay || r.TotalBytes != 24*mib || len(r.Shares) != 2 || r.Shares[0].Id == "" || r.Shares[0].Id != r.Shares[1].Id {
		t.Fatalf("%v", r)
	}
	p.until("a rate is known", func() bool { return p.status(0).Scrub.ExpectedEnd != nil })
	if x := p.status(0).Scrub; !x.Active || x.Finished != nil || x.ExpectedEnd.AsTime().After(time.Now().Add(time.Minute)) {
		t.Fatalf("%v", x)
	}
	if _, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil {
		t.Fatal(err)
	}
	p.until("it ends", func() bool { return !p.status(0).Scrub.Active && !p.status(1).Scrub.Active })
	var total uint64
	for i := range p.nodes {
		s := p.status(i)
		x := s.Scrub
		if x.Id != r.Shares[0].Id || s.LastScrub.GetId() != x.Id || x.DoneBytes+x.SkippedBytes != x.TotalBytes || x.Reason != "" ||
			x.Started.AsTime().Before(begun) || x.Finished.AsTime().Before(x.Started.AsTime()) || !x.Whole {
			t.Errorf("%v", x)
		}
		total += x.TotalBytes
	}
	if total != 24*mib {
		t.Errorf("%d bytes in both shares", total)
	}
	if x := p.status(0).Scrub; len(x.Skipped) != 1 || x.Skipped[0].Reason != "moved" || x.Skipped[0].Bytes != x.SkippedBytes || x.DoneBytes == 0 {
		t.Errorf("%v", x)
	}
	if _, body := p.get(0, "/metrics"); !strings.Contains(body, `gemel_scrub_skipped_bytes{reason="moved"}`) || !strings.Contains(body, "gemel_scrub_last_finished_timestamp_seconds") {
		t.Error("the metrics lack it")
	}
}

// A second scrub, at either node, is answered with the first, and leaves it alone.
func TestSecondScrubFindsTheFirst(t *testing.T) {
	p := newTestPair(t).startBoth()
	p.lun(16*mib, "a")
	r := p.scrub(0, &targetv1.ScrubRequest{BytesPerSecond: 2 * mib, Origin: targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE})
	for i := range p.nodes {
		x := p.scrub(i, &targetv1.ScrubRequest{Repair: true, BytesPerSecond: 1 << 30})
		if !x.UnderWay || x.TotalBytes != 16*mib || len(x.Shares) != 2 {
			t.Fatalf("%v", x)
		}
		for _, s := range x.Shares {
			if s.Id != r.Shares[0].Id || s.Origin != targetv1.ScrubOrigin_SCRUB_ORIGIN_SCHEDULE || s.Repair || s.BytesPerSecond != 2*mib || !s.Started.IsValid() {
				t.Errorf("%v", s)
			}
		}
	}
}

// The last result outlives the process, and one that was cut off says so.
func TestResultOfAScrubIsKept(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(4*mib, "a")
	f, err := os.OpenFile(p.image(1, id), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{8}, mib+99)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	first := p.scrub(0, &targetv1.ScrubRequest{Repair: true, BytesPerSecond: 1 << 30}).Shares[0].Id
	p.until("it ends", func() bool { return p.status(0).LastScrub.GetId() == first })
	p.end(0)
	p.end(1)
	p.startBoth()
	x := p.status(0).LastScrub
	if x.GetId() != first || x.MismatchedRanges != 1 || x.RepairedRanges != 1 || len(x.Findings) != 2 || x.Findings[0].Uuid != id || x.Findings[0].Offset != mib ||
		x.Findings[0].Repaired || !x.Findings[1].Repaired || p.status(0).Scrub.GetId() != first {
		t.Fatalf("%v", x)
	}
	// The next one does not hide it. It is node b's: node a has handed its LUNs over.
	second := p.scrub(0, &targetv1.ScrubRequest{BytesPerSecond: 1 * mib}).Shares[0].Id
	if s := p.status(1); s.Scrub.Id != second || !s.Scrub.Active || s.LastScrub.Id != first {
		t.Fatalf("%v", s)
	}
	p.nodes[1].saveScrubs()
	killed := &Node{store: p.nodes[1].store, log: p.nodes[1].log}
	if killed.loadScrubs(time.Now()); killed.seen.scrubs.now != nil || killed.seen.scrubs.last.ID != second || !strings.Contains(killed.seen.scrubs.last.Reason, "process of node b has ended") {
		t.Fatalf("%+v", killed.seen.scrubs.last)
	}
	p.end(0)
	if x := p.status(1).LastScrub; x.GetId() != second || x.Reason == "" || x.DoneBytes+x.SkippedBytes != x.TotalBytes || x.SkippedBytes == 0 {
		t.Fatalf("%v", x)
	}
	for _, s := range x.Skipped {
		if s.Reason != "not in sync" && s.Reason != "refused" { // a node that leaves refuses what is on its way to it
			t.Errorf("%v", s)
		}
	}
}

// A process that ended in the midst of a share has left what it knew a minute ago at most.
func TestShareThatWasCut(t *testing.T) {
	now := time.Now()
	x := (&scrubShare{Node: "a", Active: true, Total: 10*mib + 5, Done: 2 * mib, Skipped: map[string]pair.SkipCount{"moved": {Ranges: 1, Bytes: mib}}, ExpectedEnd: now}).cut(now)
	if x.Active || x.Finished != now || !x.ExpectedEnd.IsZero() || x.Reason == "" || x.Done+x.skippedBytes() != x.Total || x.Skipped["not in sync"] != (pair.SkipCount{Ranges: 8, Bytes: 7*mib + 5}) {
		t.Fatalf("%+v", x)
	}
	if x = (&scrubShare{Total: 5, Done: 5}).cut(now); len(x.Skipped) != 0 {
		t.Fatalf("%+v", x)
	}
}

// The other node is of a release that knows no shares: each compares what it owns, as before.
func TestScrubWithAnEarlierRelease(t *testing.T) {
	for i := range 2 {
		p := newTestPair(t)
		p.cfg[1-i].earlier = true
		p.startBoth()
		p.lun(4*mib, "a")
		p.lun(8*mib, "b")
		r := p.scrub(i, &targetv1.ScrubRequest{BytesPerSecond: 2 * mib})
		if r.UnderWay || r.TotalBytes != 12*mib {
			t.Fatalf("%v", r)
		}
		if r = p.scrub(i, &targetv1.ScrubRequest{}); !r.UnderWay {
			t.Fatalf("%v", r)
		}
		// What such a release asks for itself.
		ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
		err := p.nodes[i].call(ctx, "scrub", map[string]any{"repair": false, "rate": 1}, nil)
		cancel()
		if err == nil || !strings.Contains(err.Error(), errScrubActive.Error()) {
			t.Fatal(err)
		}
	}
}

// A LUN that is deleted while a scrub is at it is skipped: it is no finding that the partner, which
// may delete it first, cannot read it any more.
func TestLUNIsDeletedDuringScrub(t *testing.T) {
	p := newTestPair(t).startBoth()
	for round := range 12 {
		id, _ := p.lun(64*mib, []string{"a", "b"}[round%2])
		p.scrub(0, &targetv1.ScrubRequest{BytesPerSecond: 1 << 40})
		p.deleteLUN(id)
		p.until("the scrub ends", func() bool { return !p.status(0).Scrub.Active && !p.status(1).Scrub.Active })
		for i := range p.nodes {
			x := p.status(i).Scrub
			other := slices.ContainsFunc(x.Skipped, func(s *targetv1.ScrubSkip) bool { return s.Reason != "deleted" })
			if x.MismatchedRanges != 0 || len(x.Findings) != 0 || other {
				t.Fatalf("round %d, node %d: %v", round, i, x)
			}
		}
	}
}
