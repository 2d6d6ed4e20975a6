package groups

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/cut"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// coordinate takes a group, attempt by attempt, as the operator does, until it is complete, another
// coordinator has taken over, or ctx ends. acked notes what was acknowledged before the attempt
// that succeeded held anything.
func (c *chains) coordinate(ctx context.Context, g *cut.Group, rnd *rand.Rand, acked *acknowledged) error {
	s, err := g.Look(ctx)
	for attempt := s.Attempt; ; attempt = max(attempt, s.Attempt) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || !s.Whole {
			attempt++
			before := c.acked()
			if s, err = g.Begin(ctx, attempt); err == nil && !s.Whole {
				acked.note(attempt, before)
				_, err = g.Cut(ctx, attempt)
			}
			if cut.Code(err) == codes.FailedPrecondition {
				if now, lerr := g.Look(ctx); lerr == nil && (now.Attempt > attempt || now.Final) {
					return errNotTaken
				}
			}
		}
		if err == nil {
			if s, err = g.Look(ctx); s.Ready {
				return nil
			}
		}
		pause(ctx, time.Duration(rnd.Int64N(int64(50*time.Millisecond))))
		if err != nil {
			s, _ = g.Look(ctx)
		}
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// acknowledged is what was acknowledged before each attempt.
type acknowledged struct {
	mu sync.Mutex
	by map[uint64][]uint64
}

func (a *acknowledged) note(attempt uint64, before []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by == nil {
		a.by = map[uint64][]uint64{}
	}
	if a.by[attempt] == nil {
		a.by[attempt] = before
	}
}

// trouble is what befalls a round.
type trouble struct {
	name string
	do   func(r *rig, rnd *rand.Rand)
}

var troubles = []trouble{
	{"nothing", func(*rig, *rand.Rand) {}},
	{"a node is killed", func(r *rig, rnd *rand.Rand) { r.kill(rnd.IntN(len(r.pairs)), rnd.IntN(2), rnd) }},
	{"a LUN moves", (*rig).moves},
	{"a node of each pair is killed", func(r *rig, rnd *rand.Rand) {
		var wg sync.WaitGroup
		for i := range r.pairs {
			own := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			wg.Go(func() { r.kill(i, own.IntN(2), own) })
		}
		wg.Wait()
	}},
	{"LUNs move to and fro", func(r *rig, rnd *rand.Rand) {
		for range 6 {
			r.moves(rnd)
		}
	}},
}

// kill ends a node and starts it again.
func (r *rig) kill(pair, node int, rnd *rand.Rand) {
	if err := r.pairs[pair].Kill(node); err != nil {
		r.t.Error(err)
	}
	pause(r.ctx, time.Duration(rnd.Int64N(int64(400*time.Millisecond))))
	if err := r.pairs[pair].StartNode(node); err != nil {
		r.t.Error(err)
	}
}

// moves moves a LUN. A pair that is not in sync refuses.
func (r *rig) moves(rnd *rand.Rand) {
	m := r.members[rnd.IntN(len(r.members))]
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	_, _ = r.clients[m.pair].TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{m.lun}, ToNode: harness.Names[rnd.IntN(2)]})
}

// Group snapshots through two pairs and both owners, while hosts write: every one that is complete
// shows a prefix, at all four nodes, whatever dies meanwhile. When the group is deleted, nothing of
// it is left or comes later, and nothing is held.
func TestCutsShowPrefixesWhateverFails(t *testing.T) {
	r := newRig(t, time.Duration(*rounds)*time.Minute+2*time.Minute, 2, 6, 64*mib)
	w := r.write(3)
	rnd := rand.New(rand.NewPCG(*seed, 0x67726f757073))
	var taken, attempts, violations, halves, deposed int
	for round := range *rounds {
		g, snaps := r.group(len(r.members))
		what := troubles[round%len(troubles)]
		var acked acknowledged
		var old sync.WaitGroup
		var late atomic.Int32
		if rnd.IntN(2) == 0 { // one that dies, or is slow and continues
			ctx, cancel := context.WithCancel(r.ctx)
			own := rand.New(rand.NewPCG(rnd.Uint64(), 2))
			old.Go(func() {
				if w.coordinate(ctx, g, own, &acked) != nil {
					late.Add(1)
				}
			})
			pause(r.ctx, time.Duration(rnd.Int64N(int64(300*time.Millisecond))))
			if rnd.IntN(2) == 0 {
				cancel()
			}
			defer cancel()
		}
		own := rand.New(rand.NewPCG(rnd.Uint64(), 3))
		old.Go(func() {
			pause(r.ctx, time.Duration(own.Int64N(int64(300*time.Millisecond))))
			what.do(r, own)
		})
		// One coordinator is the last one: it goes on until the group is complete.
		for {
			if err := w.coordinate(r.ctx, g, rnd, &acked); err == nil {
				break
			} else if r.ctx.Err() != nil {
				t.Fatalf("round %d, %s: %v", round, what.name, err)
			}
		}
		old.Wait()
		r.inSync()
		s, err := g.Look(r.ctx)
		r.must(err)
		if !s.Ready { // an older coordinator has begun another attempt since, or a copy was lost with its node
			t.Logf("round %d, %s: %+v", round, what.name, s)
			for w.coordinate(r.ctx, g, rnd, &acked) != nil && r.ctx.Err() == nil {
			}
			if s, err = g.Look(r.ctx); err != nil || !s.Ready {
				t.Fatalf("round %d, %s: %+v, %v", round, what.name, s, err)
			}
		}
		taken, attempts, deposed = taken+1, attempts+int(s.Attempt), deposed+int(late.Load())
		violations += r.judge(w, g, snaps, &acked, fmt.Sprintf("round %d, %s", round, what.name))
		r.must(g.End(r.ctx, s.Attempt))
		n, err := r.left(g)
		r.must(err)
		if n > 0 {
			halves++
			t.Errorf("round %d, %s: %d snapshots are left", round, what.name, n)
		}
	}
	if slices.Min(w.acked()) < 50 {
		t.Errorf("only %v records were written", w.acked())
	}
	figures.set("cuts", taken)
	figures.set("attempts", attempts)
	figures.set("coordinators_that_ended_early", deposed)
	figures.set("prefix_violations", violations)
	figures.set("half_groups", halves)
	figures.set("holds_left", r.holds())
	t.Logf("%d groups in %d attempts, records %v", taken, attempts, w.acked())
}

// judge reads the snapshots at both nodes of each pair.
func (r *rig) judge(w *chains, g *cut.Group, snaps []string, acked *acknowledged, where string) (violations int) {
	r.t.Helper()
	a, err := g.Pairs[0].Client.GetGroupSnapshot(r.ctx, &targetv1.GetGroupSnapshotRequest{GroupUuid: g.UUID})
	r.must(err)
	before := acked.by[a.Members[0].Snapshot.Attempt]
	if before == nil {
		r.t.Fatalf("%s: attempt %d was made by no coordinator", where, a.Members[0].Snapshot.Attempt)
	}
	for node := range 2 {
		var files []*os.File
		for i, m := range r.members {
			files = append(files, r.file(m, node, snaps[i]))
		}
		if err := w.violation(files, before); err != nil {
			r.t.Errorf("%s, node %s: %v", where, harness.Names[node], err)
			violations++
		}
		for _, f := range files {
			_ = f.Close()
		}
	}
	return violations
}
