package pair

import (
	"strings"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// loadedSupervised is loaded, of nodes that have supervisors. The lease is so long
// that a pause which includes it is longer than any pause of a slow test machine.
func loadedSupervised(t *testing.T) (*harness.Pair, *load, func(name string)) {
	t.Helper()
	p, ctx := startWith(t, func(o *harness.Options) { o.Supervisors, o.Args = true, []string{"--lease", "5s"} })
	if err := p.WaitSupervisors(ctx); err != nil {
		t.Fatal(err)
	}
	lun, m := createLUN(t, ctx, p, 32<<20, "a")
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)
	l.pauseSince()
	return p, l, func(name string) {
		t.Helper()
		l.more(t, ctx, 500)
		if pause := l.pauseSince(); pause > 4*time.Second {
			t.Errorf("%s: the longest write took %v, as if the lease had been waited for", name, pause)
		} else {
			t.Logf("%s: longest write %v", name, pause)
		}
		if err := p.WaitInSync(ctx); err != nil {
			t.Fatal(err)
		}
		if name == "" {
			finish(t, ctx, p, l, lun, m)
		}
	}
}

// The owner's process crashes, and again; the partner's does; and both at once. Each is started
// again by its supervisor, no lease is waited for, no write is lost and no host sees an error.
func TestCrashesUnderSupervisors(t *testing.T) {
	p, _, well := loadedSupervised(t)
	crash := func(nodes ...int) {
		t.Helper()
		for _, i := range nodes {
			if err := p.Crash(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	crash(0)
	well("the owner crashed")
	crash(1)
	well("the other node crashed")
	crash(0)
	well("the first one crashed again")
	crash(0, 1)
	well("both crashed")
	s, err := p.Status(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if x := s.Supervisor; x.GetCrashes() != 3 || !strings.Contains(x.LastCrash, "SIGKILL") || !x.PeerConfigured || time.Since(x.LastCrashTime.AsTime()) > time.Minute {
		t.Errorf("node a says %v of its supervisor", s.Supervisor)
	}
	well("")
}

// The supervisor is killed, and its process with it: that is the lease.
func TestKilledSupervisor(t *testing.T) {
	p, ctx := startWith(t, func(o *harness.Options) { o.Supervisors = true })
	if err := p.WaitSupervisors(ctx); err != nil {
		t.Fatal(err)
	}
	lun, m := createLUN(t, ctx, p, 32<<20, "a")
	l := startLoad(ctx, open(t, ctx, m), 8, 2048)
	l.more(t, ctx, 500)
	if err := p.Kill(0); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	if err := p.WaitPhase(ctx, 1, targetv1.Phase_PHASE_ALONE); err != nil {
		t.Fatal(err)
	}
	if err := p.StartNode(0); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	finish(t, ctx, p, l, lun, m)
}
