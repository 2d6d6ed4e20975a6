package groups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/cut"
	"github.com/gemel-storage/gemel/internal/pairclient"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

const (
	mib   = 1 << 20
	block = 4096
	host  = "iqn.2026-11.storage.gemel.test:groups"
)

// member is a LUN of a rig.
type member struct {
	pair int
	lun  string
	dev  *initiator.Device
}

// rig is pairs on a filesystem that shares extents, with LUNs whose owners alternate.
type rig struct {
	t       *testing.T
	ctx     context.Context
	pairs   []*harness.Pair
	clients []*pairclient.Client
	members []member
}

func newRig(t *testing.T, limit time.Duration, pairs, luns int, size uint64) *rig {
	t.Helper()
	// The test's own context ends before its cleanups, and hosts write until one of those.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx}
	dir := reflinked.Dir(t, 16<<30)
	for i := range pairs {
		p, err := harness.New(harness.Options{Dir: filepath.Join(dir, fmt.Sprintf("p%d", i)), Binary: target, Name: fmt.Sprintf("p%d", i), Supervised: true})
		r.must(err)
		r.pairs = append(r.pairs, p)
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Errorf("stop: %v", err)
			}
			if t.Failed() {
				for n, name := range harness.Names {
					b, _ := os.ReadFile(p.LogFile(n))
					t.Logf("node %s of pair %s:\n%s", name, p.Name, b[max(0, len(b)-8<<10):])
				}
			}
		})
		r.must(p.Start(ctx))
		c, err := pairclient.New(pairclient.Config{Endpoints: p.Control[:], Patience: 3 * time.Second})
		r.must(err)
		t.Cleanup(func() { _ = c.Close() })
		r.clients = append(r.clients, c)
	}
	for i := range luns {
		r.addLUN(i%pairs, harness.Names[i/pairs%2], size)
	}
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) addLUN(pair int, owner string, size uint64) {
	r.t.Helper()
	id := uuid.NewString()
	_, err := r.clients[pair].CreateLUN(r.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: size, PreferredNode: owner})
	r.must(err)
	m, err := r.clients[pair].MapHost(r.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	r.must(err)
	cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, p := range m.Portals {
		cfg.Portals = append(cfg.Portals, p.Address)
	}
	d, err := initiator.Open(r.ctx, cfg)
	r.must(err)
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = d.Close(ctx)
	})
	r.members = append(r.members, member{pair, id, d})
}

// group is a new group of the first n members; snaps are their snapshots.
func (r *rig) group(n int) (g *cut.Group, snaps []string) {
	g = &cut.Group{UUID: uuid.NewString()}
	for i, p := range r.pairs {
		g.Pairs = append(g.Pairs, cut.Pair{Name: p.Name, Client: r.clients[i]})
	}
	for _, m := range r.members[:n] {
		id := uuid.NewString()
		snaps = append(snaps, id)
		g.Pairs[m.pair].Members = append(g.Pairs[m.pair].Members, &targetv1.CreateSnapshotRequest{Uuid: id, Name: "s-" + id, SourceLunUuid: m.lun})
	}
	for i := 0; i < len(g.Pairs); {
		if len(g.Pairs[i].Members) == 0 {
			g.Pairs = append(g.Pairs[:i], g.Pairs[i+1:]...)
			continue
		}
		i++
	}
	return g, snaps
}

// file opens a snapshot as a node has it.
func (r *rig) file(m member, node int, snap string) *os.File {
	r.t.Helper()
	f, err := os.Open(filepath.Join(r.pairs[m.pair].State[node], "volumes", "default", "snapshots", snap+".img"))
	r.must(err)
	r.t.Cleanup(func() { _ = f.Close() })
	return f
}

// inSync waits until every node serves.
func (r *rig) inSync() {
	r.t.Helper()
	for _, p := range r.pairs {
		r.must(p.WaitInSync(r.ctx))
	}
}

// left counts the snapshots of a group that a pair still has.
func (r *rig) left(g *cut.Group) (n int, err error) {
	for _, p := range g.Pairs {
		a, err := p.Client.GetGroupSnapshot(r.ctx, &targetv1.GetGroupSnapshotRequest{GroupUuid: g.UUID})
		if err != nil {
			return n, err
		}
		n += len(a.Members)
	}
	return n, nil
}

// errNotTaken: a coordinator has stopped before its group was complete.
var errNotTaken = errors.New("not taken")
