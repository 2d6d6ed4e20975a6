// Package upgrade runs this tree together with the release before it (internal/testkit/release): a
// pair with one node of each, a pair whose nodes are brought from one to the other and back,
// drivers and targets of different releases. Compatible versions work together; others are refused
// by an error that names the versions. A change of a format that makes a test here fail must either
// work or be refused in that way, with a test here that checks the refusal; docs/upgrades.md says
// how.
package upgrade

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/compare"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/ledger"
	"github.com/gemel-storage/gemel/internal/testkit/load"
	"github.com/gemel-storage/gemel/internal/testkit/release"
)

// build is the programs of one release.
type build struct {
	version     string // what its targets say
	target, csi string
}

// before is the release that came before this tree, now is this tree.
var before, now build

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gemel-upgrade-")
	if err != nil {
		panic(err)
	}
	code := 1
	if err = makeBuilds(context.Background(), dir); err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func makeBuilds(ctx context.Context, dir string) error {
	r, err := release.Latest()
	if err != nil {
		return err
	}
	s, err := release.Default(harness.Root(), os.Stderr)
	if err != nil {
		return err
	}
	tree, err := s.Make(ctx, r)
	if err != nil {
		return err
	}
	before = build{r.Name, filepath.Join(tree.Bin, "gemel-target"), filepath.Join(tree.Bin, "gemel-csi")}
	now.version = "dev"
	if now.target, err = harness.Build(ctx, dir, "./cmd/gemel-target"); err != nil {
		return err
	}
	now.csi, err = harness.Build(ctx, dir, "./cmd/gemel-csi")
	return err
}

// roles are which build each node runs.
type roles struct {
	name  string
	nodes [2]build
}

// mixed are the two ways in which a pair has one node of each release.
func mixed() []roles {
	return []roles{
		{fmt.Sprintf("a %s, b this tree", before.version), [2]build{before, now}},
		{fmt.Sprintf("a this tree, b %s", before.version), [2]build{now, before}},
	}
}

// lunSize of the LUNs that are written to, in bytes.
const lunSize = 16 << 20

const host = "iqn.2026-11.storage.gemel.test:host1"

// rig is a pair under load.
type rig struct {
	*harness.Pair
	ctx   context.Context
	meter *load.Meter
	luns  []string
	loads []*load.Stream
}

// start brings a pair up. Its logs are printed if the test fails.
func start(t *testing.T, nodes [2]build) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	p := lay(t, nodes)
	r := &rig{Pair: p, ctx: ctx, meter: load.NewMeter("")}
	for i := range nodes {
		if err := p.StartNode(i); err != nil {
			t.Fatal(err)
		}
	}
	r.inSync(t)
	for i := range nodes {
		r.runs(t, i, nodes[i])
	}
	return r
}

// use has a node start with a build from now on, and take snapshots on any filesystem, which 0.1.0
// does unasked.
func use(p *harness.Pair, i int, b build) {
	p.Programs[i], p.PerNode[i] = b.target, nil
	if b == now {
		p.PerNode[i] = []string{"--full-copies"}
	}
}

// lay makes a pair of which nothing runs yet.
func lay(t *testing.T, nodes [2]build) *harness.Pair {
	t.Helper()
	p, err := harness.New(harness.Options{Dir: t.TempDir(), Binary: now.target})
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range nodes {
		use(p, i, b)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			for i, n := range harness.Names {
				b, _ := os.ReadFile(p.LogFile(i))
				t.Logf("log of node %s:\n%s", n, b)
			}
		}
	})
	return p
}

// runs checks the build of a node by the version that it reports.
func (r *rig) runs(t *testing.T, i int, b build) {
	t.Helper()
	s, err := r.Status(r.ctx, i)
	if err != nil || s.Version != b.version {
		t.Fatalf("node %s is version %q, not %q: %v", harness.Names[i], s.GetVersion(), b.version, err)
	}
}

// volume makes a LUN by one node's control API and maps it by the other's, and writes to it from
// then on: blocks at random, each remembered.
func (r *rig) volume(t *testing.T, via int, owner string) {
	t.Helper()
	id := uuid.NewString()
	l, err := r.Client(via).CreateLUN(r.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: lunSize, PreferredNode: owner})
	if err != nil || l.Owner != owner {
		t.Fatalf("LUN %v, %v", l, err)
	}
	m, err := r.Client(1-via).MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	if err != nil {
		t.Fatal(err)
	}
	cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, p := range m.Portals {
		cfg.Portals = append(cfg.Portals, p.Address)
	}
	d, err := initiator.Open(r.ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	dev := load.Device{D: d}
	t.Cleanup(func() { _ = dev.Close() })
	const depth, blocks = 2, 1024
	seed := uint64(len(r.luns) + 1)
	s := load.NewStream("LUN of "+owner, dev, r.meter, seed, depth, seed, load.Region{Blocks: blocks})
	s.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = s.Stop(ctx) // done already, unless the test has failed
	})
	r.luns, r.loads = append(r.luns, id), append(r.loads, s)
}

// volumes makes two LUNs, one of each node, by either node.
func (r *rig) volumes(t *testing.T) {
	t.Helper()
	r.volume(t, 0, "a")
	r.volume(t, 1, "b")
	r.more(t)
}

// more waits until 100 more writes are acknowledged on every LUN.
func (r *rig) more(t *testing.T) {
	t.Helper()
	for _, s := range r.loads {
		want := s.Ledger.Acked() + 100
		if err := load.Until(r.ctx, r.loads, func() bool { return s.Ledger.Acked() >= want }); err != nil {
			t.Fatal(err)
		}
	}
}

// pauseBound is generous: an owner that is killed costs its lease and a write of the record.
const pauseBound = 10 * time.Second

// during does something under load; writes continue afterwards, and none took long.
func (r *rig) during(t *testing.T, what string, do func()) {
	t.Helper()
	w := r.meter.Begin()
	do()
	r.more(t)
	longest, n, err := w.End(r.ctx)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: the longest of %d writes took %v", what, n, longest.Round(100*time.Microsecond))
	if longest > pauseBound {
		t.Errorf("%s: a write took %v", what, longest)
	}
}

// move gives all LUNs to a node, asked of one of the two.
func (r *rig) move(t *testing.T, via, to int) {
	t.Helper()
	if _, err := r.Client(via).TransferOwnership(r.ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: harness.Names[to]}); err != nil {
		t.Fatal(err)
	}
	for _, id := range r.luns {
		l, err := r.Client(via).GetLUN(r.ctx, &targetv1.GetLUNRequest{Uuid: id})
		if err != nil || l.Owner != harness.Names[to] {
			t.Fatalf("owner %q, not %s: %v", l.GetOwner(), harness.Names[to], err)
		}
	}
}

// waitBound is how long both nodes may take to have the same state.
const waitBound = time.Minute

// inSync waits for both nodes.
func (r *rig) inSync(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, waitBound)
	defer cancel()
	if err := r.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
}

// rest lets every block be written once at least, ends the writes and reads back what was
// acknowledged.
func (r *rig) rest(t *testing.T) {
	t.Helper()
	for _, s := range r.loads {
		if err := load.Until(r.ctx, r.loads, func() bool { return s.Ledger.Written() == s.Ledger.Len() }); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range r.loads {
		if err := s.Stop(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	if errs := r.meter.Errors(); len(errs) > 0 {
		t.Fatalf("%d writes failed: %v", len(errs), errs)
	}
	r.verify(t)
}

// verify reads every block of a load that has ended.
func (r *rig) verify(t *testing.T) {
	t.Helper()
	for _, s := range r.loads {
		read := 0
		lost, err := s.Verify(r.ctx, s.Target, func(n int) { read += n })
		if err != nil || len(lost) > 0 {
			t.Fatalf("%s: %d blocks lost, %v: %v", s.Name, len(lost), lost, err)
		}
		if read != s.Ledger.Len() || s.Ledger.Written() != read {
			t.Fatalf("%s: %d of %d blocks were written, %d read", s.Name, s.Ledger.Written(), s.Ledger.Len(), read)
		}
	}
}

// end stops both nodes, the second one alone, and compares what is on their disks.
func (r *rig) end(t *testing.T, images int) {
	t.Helper()
	for i := range harness.Names {
		if err := r.Term(i); err != nil {
			t.Fatal(err)
		}
	}
	var n int64
	list, err := compare.Stores(r.ctx, r.State[0], r.State[1], func(b int64) { n += b })
	if err != nil || !compare.Identical(list) || len(list) != images {
		t.Fatalf("%d images, want %d, all alike: %+v, %v", len(list), images, list, err)
	}
	if n < int64(len(r.luns))*1024*ledger.BlockSize {
		t.Fatalf("%d bytes compared of %d LUNs", n, len(r.luns))
	}
	t.Logf("%d images compared, %d bytes", len(list), n)
}
