package initiator

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/single"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/alua"
)

const (
	twoIQN  = "iqn.2026-01.test.gemel:two"
	twoUUID = "11111111-2222-4333-8444-555555555555"
	twoSize = 64 << 20
)

// twoNodes is our real target twice over one medium: what the initiator sees of a pair, with access
// states that a test sets by hand.
type twoNodes struct {
	t      testing.TB
	file   *store.File
	medium *single.Medium
	mu     sync.Mutex
	groups [2]alua.State
	creds  iscsi.Credentials // what every host must prove
	nodes  [2]*oneNode
}

// oneNode is one of its portals. It is the node's scsi.Cluster and, as a gate in front of the
// shared medium, its scsi.Medium.
type oneNode struct {
	scsi.Medium
	two    *twoNodes
	tag    uint16
	addr   string
	access atomic.Uint32 // scsi.Access
	writes atomic.Int64
	// stranger: no host may log in, as at a node that is new.
	stranger atomic.Bool
	unit     atomic.Pointer[scsi.Unit]
	device   *scsi.Server
	server   *iscsi.Server
	done     chan error
}

func startTwoNodes(t testing.TB) *twoNodes {
	t.Helper()
	st, err := store.Open(t.TempDir(), store.Identity{Cluster: "test", Pair: "test", Node: "a"},
		store.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Default().CreateLUN(twoUUID, twoSize, store.NoBirth); err != nil {
		t.Fatal(err)
	}
	file, err := st.Default().OpenLUN(twoUUID)
	if err != nil {
		t.Fatal(err)
	}
	medium, err := single.NewMedium(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	x := &twoNodes{t: t, file: file, medium: medium, groups: [2]alua.State{alua.Optimized, alua.NonOptimized}}
	for i := range x.nodes {
		n := &oneNode{two: x, tag: uint16(i + 1), Medium: medium}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n.addr = l.Addr().String()
		x.nodes[i] = n
		n.serve(l)
	}
	t.Cleanup(func() {
		for _, n := range x.nodes {
			n.shutdown()
		}
		medium.Close()
		file.Close()
		st.Close()
	})
	return x
}

func (n *oneNode) serve(l net.Listener) {
	t := n.two.t
	u, err := scsi.NewUnit(scsi.UnitConfig{UUID: twoUUID, SizeBytes: twoSize, Thin: true}, n)
	if err != nil {
		t.Fatal(err)
	}
	n.unit.Store(u)
	n.two.medium.Bind(u)
	log := slog.New(slog.DiscardHandler)
	n.device = scsi.NewServer(n, scsi.Config{TargetName: twoIQN, Port: n.tag, Log: log})
	n.server, err = iscsi.New(iscsi.Config{TargetName: twoIQN, Tag: n.tag, Logger: log,
		Portals: []iscsi.Portal{{Address: l.Addr().String(), Tag: n.tag}}}, n.device, n)
	if err != nil {
		t.Fatal(err)
	}
	n.done = make(chan error, 1)
	go func() { n.done <- n.server.Serve(context.Background(), l) }()
}

// shutdown logs initiators out, waits a moment for them, and stops listening.
func (n *oneNode) shutdown() {
	if n.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = n.server.Shutdown(ctx)
	<-n.done
	n.server = nil
}

// restart listens at the same address again.
func (n *oneNode) restart() {
	eventually(n.two.t, "address free", func() bool {
		l, err := net.Listen("tcp", n.addr)
		if err == nil {
			n.serve(l)
		}
		return err == nil
	})
}

func (n *oneNode) Admit(string) iscsi.Host {
	n.two.mu.Lock()
	defer n.two.mu.Unlock()
	known := !n.stranger.Load()
	return iscsi.Host{Credentials: n.two.creds, Known: known, LUNs: known, Sure: scsi.Access(n.access.Load()) == scsi.AccessReady}
}

func (n *oneNode) Lookup(_ string, number uint16) *scsi.Unit {
	if number == 3 {
		return n.unit.Load()
	}
	return nil
}

func (n *oneNode) LUNs(_ string, to []uint16) []uint16 { return append(to, 3) }

func (n *oneNode) Groups(*scsi.Unit) alua.Report {
	n.two.mu.Lock()
	defer n.two.mu.Unlock()
	r := alua.Report{TransitionTime: 5}
	for i, s := range n.two.groups {
		r.Groups = append(r.Groups, alua.Group{Tag: uint16(i + 1), State: s, Ports: []uint16{uint16(i + 1)}})
	}
	return r
}

func (n *oneNode) Propose(_ *scsi.Unit, _ scsi.NexusID, _ scsi.Change, done func(scsi.Outcome)) {
	done(scsi.Outcome{Status: scsi.StatusReservationConflict})
}

func (n *oneNode) Reset(_ *scsi.Unit, _ scsi.ResetScope, _ scsi.NexusID, done func(bool)) { done(true) }

func (n *oneNode) SinglePath(string) bool { return false }

func (n *oneNode) Access() scsi.Access { return scsi.Access(n.access.Load()) }

func (n *oneNode) Submit(op *scsi.Op) bool {
	switch n.Access() {
	case scsi.AccessUnavailable:
		op.Result = scsi.Unavailable
		return true
	case scsi.AccessTransitioning:
		op.Result = scsi.Transitioning
		return true
	}
	if op.Kind.Writes() {
		n.writes.Add(1)
	}
	return n.Medium.Submit(op)
}

// set changes the access states and tells every nexus (2A/06).
func (x *twoNodes) set(a, b alua.State) {
	x.mu.Lock()
	x.groups = [2]alua.State{a, b}
	x.mu.Unlock()
	for i, s := range []alua.State{a, b} {
		access := scsi.AccessReady
		switch s {
		case alua.Unavailable:
			access = scsi.AccessUnavailable
		case alua.Transitioning:
			access = scsi.AccessTransitioning
		}
		x.nodes[i].access.Store(uint32(access))
	}
	for _, n := range x.nodes {
		n.device.RaiseUA(n.unit.Load(), nil, nil, 0x2a, 0x06)
	}
}

func (x *twoNodes) config() Config {
	return Config{InitiatorName: "iqn.2026-01.test.gemel:host", Target: twoIQN, LUN: 3, WWID: scsi.WWIDString(twoUUID),
		Portals: []string{x.nodes[0].addr, x.nodes[1].addr}, Log: slog.New(slog.DiscardHandler)}
}
