package chaos

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/netns"
)

// Guests are what the judgement of crowds relies on: those that press have their commands done,
// those that send half keep memory, have nothing done, and leave nothing behind.
func TestGuestsBehaveAsCrowdsExpect(t *testing.T) {
	if unsupported != nil {
		t.Skip("skipped: ", unsupported)
	}
	var own *netns.Namespace
	if err := own.Command("ip", "link", "set", "lo", "up"); err != nil {
		t.Fatal(err)
	}
	p, err := harness.New(harness.Options{Dir: t.TempDir(), Binary: target, Log: io.Discard, Args: []string{"--shared-filesystem"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	r := &rig{w: io.Discard, pair: p, rec: newRecorder()}
	if r.bulk, err = r.extra(ctx, uuid.NewString(), "bulk", floodLUN, "flooder", 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.bulk.close() })
	luns, err := p.Client(0).ListLUNs(ctx, &targetv1.ListLUNsRequest{})
	if err != nil || len(luns.Luns) != 1 {
		t.Fatal(luns, err)
	}
	if r.crowded, err = r.mapHost(ctx, luns.Luns[0].Uuid, "crowd"); err != nil {
		t.Fatal(err)
	}
	used := func() (sum float64) {
		for i := range harness.Names {
			u, err := r.usage(ctx, i)
			if err != nil {
				t.Fatal(err)
			}
			sum += u.used
		}
		return sum
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		if err := harness.Wait(ctx, what, func() (bool, string) { return ok(), "" }); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []Kind{HalfWrites, MemoryPressure} {
		c := r.invite(ctx, Fault{Kind: k, N: 1})
		until("they hold memory", func() bool { return used() > 32<<20 })
		if k == MemoryPressure {
			until("commands are done", func() bool { return c.through.Load() > 20 })
		}
		c.disperse()
		if through := c.through.Load(); (through > 0) != (k == MemoryPressure) {
			t.Errorf("%s: %d commands were done", k, through)
		}
		until("all is given back", func() bool { return used() < 1<<20 })
	}
}
