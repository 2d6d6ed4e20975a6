package app

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// The commands of an administrator, against a pair of real processes.
func TestAdminCommands(t *testing.T) {
	bin, err := harness.Build(t.Context(), t.TempDir(), "./cmd/gemel-target")
	if err != nil {
		t.Fatal(err)
	}
	p, err := harness.New(harness.Options{Dir: t.TempDir(), Binary: bin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	p.PerNode[0] = []string{"--shared-filesystem", "--backing-volume", "pool/x=" + t.TempDir(), "--backing-volume", "pool/y=" + t.TempDir(), "--tier", "pool/y=fast"}
	p.PerNode[1] = []string{"--shared-filesystem", "--backing-volume", "pool=" + t.TempDir()}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	id, pooled := uuid.NewString(), uuid.NewString()
	for uuid, volume := range map[string]string{id: "", pooled: "pool"} {
		if _, err := p.Client(0).CreateLUN(t.Context(), &targetv1.CreateLUNRequest{Uuid: uuid, Name: "lun-" + volume, SizeBytes: 8 << 20, PreferredNode: "a", Volume: volume}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Client(1).SetOwnershipPolicy(t.Context(), &targetv1.SetOwnershipPolicyRequest{Mode: "observe", FailBackDelaySeconds: 60, Version: 3}); err != nil {
		t.Fatal(err)
	}
	admin := func(args ...string) (string, error) {
		cmd := Command()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append(args, "--control", p.Control[0]))
		cmd.SetContext(t.Context())
		err := cmd.Execute()
		return out.String(), err
	}
	for _, c := range []struct{ args, want string }{
		{"status", "in sync"},
		{"status -o json", `"PHASE_IN_SYNC"`},
		{"scrub --repair --rate 1000000", "comparing 16.0 MiB"},
		{"scrub", "started by a person"},
		{"status", "balancing    observe, LUNs return after 1m0s, version 3"},
		{"transfer --to b " + id, "moved 1 LUNs"},
		{"end-quarantine " + id, "hosts can use it again"},
		{"status", "held         1 LUNs by a person's transfer, the last until "},
		{"transfer --to a --all --hold 1h", "the transfer holds until "},
		{"tiering", "TIER "},
		{"tiering", "tiering auto"},
		{"tiering -o json", `"mode"`},
		{"tiering --lun " + pooled, "LUN " + pooled + ", 8.0 MiB, pinned to none"},
		{"pin-tier none " + id, "pinned to tier none"},
		{"status", "; fast; a read takes "},
		{"drain-member pool y", "member y of backing volume pool is drained"},
		{"status", "; drained: it can be taken away"},
		{"drain-member pool y --end", "is not drained any more"},
		{"status", "members      pool/x: "},
		{"profile heap --out " + filepath.Join(t.TempDir(), "heap.pprof"), "go tool pprof -top "},
		{"profile cpu --seconds 1 --out " + filepath.Join(t.TempDir(), "cpu.pprof"), "wrote "},
		{"transfer --to a --all --hold 0s", "moved 0 LUNs; commands waited for 0s; the transfer does not hold"},
	} {
		if out, err := admin(strings.Fields(c.args)...); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v: %s", c.args, err, out)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"status -o xml", "--output"},
		{"transfer --to b", "--all"},
		{"transfer --to b --all --hold 25h", "--hold"},
		{"force --epoch 1", "accept_data_loss"},
		{"force --epoch 1 --accept-data-loss", "force is possible only on a node"},
		{"scrub nonsense", "uuids"},
		{"tiering -o xml", "--output"},
		{"tiering --lun x", "lun_uuid"},
		{"tiering --lun " + id, "has no fast tier"},
		{"pin-tier fast " + id, "has no fast tier"},
		{"pin-tier hot " + id, "pinned_tier"},
		{"drain-member pool z", `has no member "z"`},
		{"drain-member pool", "accepts 2 arg(s)"},
		{"profile everything", "use one of cpu"},
		{"profile heap --out /nowhere/heap.pprof", "--out"},
		{"status --tls-cert nowhere", "--tls-cert"},
	} {
		if out, err := admin(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v: %s", c.args, err, out)
		}
	}
	if err := run(t, "status"); err == nil || !strings.Contains(err.Error(), "--control") {
		t.Error(err)
	}
}

func TestStatusForPeople(t *testing.T) {
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	s := &targetv1.Status{Node: "a", Phase: targetv1.Phase_PHASE_RESYNCING, Reason: "say what to do", Exposed: true, ForceEpoch: 7,
		AloneSince: timestamppb.New(now), LostLuns: []string{"x"}, Checksums: &targetv1.Checksums{HealedBlocks: 3, LostBlocks: 2,
			Findings: []*targetv1.DamageFinding{{Uuid: "u", Lost: true, LastOffset: 8192}, {Uuid: "v"}}}, Resync: &targetv1.Resync{DoneBytes: 1 << 20, TotalBytes: 3 << 30, Full: true,
			FullReason: "it is new", BytesPerSecond: 1 << 20, ExpectedEnd: timestamppb.New(now)},
		Scrub: &targetv1.Scrub{Active: true, MismatchedRanges: 2}, LastScrub: &targetv1.Scrub{Finished: timestamppb.New(now), Reason: "the peer is not a member any more"}, Places: []*targetv1.Place{{Volume: "pool", Member: "x", CapacityBytes: 10 << 30, FreeBytes: 3 << 30, Draining: true, ExtentsLeft: 412, Reason: "no room"}}, Arbiter: &targetv1.Arbiter{UnreachableSince: timestamppb.New(now), Error: "refused"}}
	var b bytes.Buffer
	if err := printStatus(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"resyncing", "say what to do", "2026-11-20T09:00:00Z", "1.0 MiB of 3.0 GiB, 1.0 MiB/s, ends about", "because it is new",
		"2 ranges differed", "2026-11-20T09:00:00Z: 0 B of 0 B compared, 0 ranges differed, 0 repaired; it ended early: the peer is not a member any more", "has not answered since", "MEDIUM ERROR until published again", "--epoch 7", "not all data",
		"3 blocks did not match", "members      pool/x: 3.0 GiB free of 10.0 GiB; draining: 412 extents left, at most 1.6 GiB: no room",
		"2 since the process started, of which no node has a good copy, the last one at byte 8192 of u: restore"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}
