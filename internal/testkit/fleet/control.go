// Package fleet is a cluster with many pairs, LUNs and workers for the real operator and the real
// CSI controller: a real API server and etcd, and stand-ins for what two cores cannot run a hundred
// of, the target nodes' control API and the kubelets.
package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// changeTime is how long a change takes, at a pair one after the other: an entry of the log at both
// nodes.
const changeTime = 2 * time.Millisecond

// Pairs are the control APIs of pairs, in this process. A node is known by the address that is
// called.
type Pairs struct {
	targetv1.UnimplementedTargetServiceServer

	mu    sync.Mutex
	nodes map[netip.Addr]*node
	pairs map[string]*fakePair
}

type node struct {
	pair        *fakePair
	name        string
	certificate tls.Certificate
}

// fakePair is a pair whose nodes are in sync.
type fakePair struct {
	cluster, name string
	capacity      uint64

	mu      sync.Mutex
	luns    map[string]*targetv1.LUN
	order   []string // uuids, sorted
	hosts   map[string]int
	owned   map[string]int
	changes uint64
	policy  *targetv1.SetOwnershipPolicyRequest
	silent  chan struct{} // closed when it answers again; nil: it answers
}

// Add makes a node known; capacity is that of the pair, in bytes.
func (p *Pairs) Add(address netip.Addr, cluster, pair, name string, c tls.Certificate, capacity uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes == nil {
		p.nodes, p.pairs = map[netip.Addr]*node{}, map[string]*fakePair{}
	}
	x := p.pairs[pair]
	if x == nil {
		x = &fakePair{cluster: cluster, name: pair, capacity: capacity, luns: map[string]*targetv1.LUN{}, hosts: map[string]int{}, owned: map[string]int{}}
		p.pairs[pair] = x
	}
	p.nodes[address] = &node{x, name, c}
}

// Knows reports whether a node was added.
func (p *Pairs) Knows(address netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[address] != nil
}

// LUNs is how many LUNs each pair has.
func (p *Pairs) LUNs() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for name, x := range p.pairs {
		x.mu.Lock()
		out[name] = len(x.luns)
		x.mu.Unlock()
	}
	return out
}

// Silence has both nodes of a pair answer nothing, as machines that are cut off; the function that
// it returns ends that.
func (p *Pairs) Silence(pair string) (end func()) {
	p.mu.Lock()
	x := p.pairs[pair]
	p.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	c := make(chan struct{})
	x.silent = c
	return func() {
		x.mu.Lock()
		x.silent = nil
		x.mu.Unlock()
		close(c)
	}
}

// Grow has a pair report that hosts have written so many bytes more to each of its LUNs.
func (p *Pairs) Grow(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.pairs {
		x.mu.Lock()
		for _, l := range x.luns {
			l.AllocatedBytes += bytes
		}
		x.mu.Unlock()
	}
}

func (p *Pairs) node(a net.Addr) *node {
	at, ok := a.(*net.TCPAddr)
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes[at.AddrPort().Addr().Unmap()]
}

// Serve serves all nodes on a port of every address until the context ends.
func (p *Pairs) Serve(ctx context.Context, port string) error {
	l, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		return err
	}
	base := &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		n := p.node(h.Conn.LocalAddr())
		if n == nil {
			return nil, fmt.Errorf("no node has the address %s", h.Conn.LocalAddr())
		}
		if err := n.pair.answers(h.Context()); err != nil {
			return nil, err
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{n.certificate}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2"}}, nil
	}}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(base)), grpc.ConnectionTimeout(10*time.Minute))
	targetv1.RegisterTargetServiceServer(s, p)
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// answers waits while the pair is silent.
func (x *fakePair) answers(ctx context.Context) error {
	x.mu.Lock()
	silent := x.silent
	x.mu.Unlock()
	if silent == nil {
		return nil
	}
	select {
	case <-silent:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// at is the node that a call has come to, once it answers.
func (p *Pairs) at(ctx context.Context) (*node, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no peer")
	}
	n := p.node(from.LocalAddr)
	if n == nil {
		return nil, status.Errorf(codes.Unavailable, "no node has the address %s", from.LocalAddr)
	}
	return n, n.pair.answers(ctx)
}

// change does f as an entry of the log.
func change[R proto.Message](ctx context.Context, p *Pairs, f func(x *fakePair) (R, error)) (R, error) {
	var none R
	n, err := p.at(ctx)
	if err != nil {
		return none, err
	}
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	time.Sleep(changeTime)
	n.pair.changes++
	out, err := f(n.pair)
	if err != nil {
		return none, err
	}
	return proto.CloneOf(out), nil
}

func (x *fakePair) lun(uuid string) (*targetv1.LUN, error) {
	if l := x.luns[uuid]; l != nil {
		return l, nil
	}
	return nil, status.Errorf(codes.NotFound, "LUN %s does not exist", uuid)
}

func (x *fakePair) iqn() string { return "iqn.2026-11.storage.gemel:" + x.cluster + "." + x.name }

func (x *fakePair) portals() []*targetv1.Portal {
	return []*targetv1.Portal{{Node: "a", Address: "192.0.2.1:3260", GroupTag: 1}, {Node: "b", Address: "192.0.2.2:3260", GroupTag: 2}}
}

// GetStatus says that both nodes are in sync.
func (p *Pairs) GetStatus(ctx context.Context, _ *targetv1.GetStatusRequest) (*targetv1.Status, error) {
	n, err := p.at(ctx)
	if err != nil {
		return nil, err
	}
	x := n.pair
	x.mu.Lock()
	defer x.mu.Unlock()
	free := x.capacity
	out := &targetv1.Status{Cluster: x.cluster, Pair: x.name, Node: n.name, TargetIqn: x.iqn(), Portals: x.portals(), Epoch: 1, Members: []string{"a", "b"}, Phase: targetv1.Phase_PHASE_IN_SYNC, Linked: true,
		LogIndex: x.changes, Reflink: true, Version: "scale", ProtocolVersion: 1, Ownership: &targetv1.Ownership{Decides: n.name == "a"}}
	if q := x.policy; q != nil {
		out.Ownership.Mode, out.Ownership.PolicyVersion, out.Ownership.FailBackDelay = q.Mode, q.Version, durationpb.New(time.Duration(q.FailBackDelaySeconds)*time.Second)
	}
	for _, id := range x.order {
		l := x.luns[id]
		free -= min(free, l.AllocatedBytes)
		if l.Owner == n.name {
			out.OwnedLuns = append(out.OwnedLuns, id)
		}
	}
	out.CapacityBytes, out.FreeBytes = x.capacity, free
	out.Volumes = []*targetv1.BackingVolume{{Name: "default", CapacityBytes: x.capacity, FreeBytes: free, Reflink: true, Nodes: []string{"a", "b"}}}
	return out, nil
}

// CreateLUN makes a LUN, or returns the one that there is.
func (p *Pairs) CreateLUN(ctx context.Context, q *targetv1.CreateLUNRequest) (*targetv1.LUN, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.LUN, error) {
		if l := x.luns[q.Uuid]; l != nil {
			return l, nil
		}
		owner := q.PreferredNode
		if owner == "" {
			owner = "a"
			if x.owned["b"] < x.owned["a"] {
				owner = "b"
			}
		}
		x.owned[owner]++
		wwid := fmt.Sprintf("6%031x", x.changes)
		l := &targetv1.LUN{Uuid: q.Uuid, Name: q.Name, SizeBytes: q.SizeBytes, Owner: owner, PreferredNode: owner, Wwid: wwid, Serial: q.Uuid[:8], Labels: q.Labels, Volume: cmp.Or(q.Volume, "default"),
			WriteCache: cmp.Or(q.WriteCache, targetv1.WriteCache_WRITE_CACHE_WRITE_BACK), PinnedNode: "none", SpreadGroup: "none", PinnedTier: "none"}
		at, _ := slices.BinarySearch(x.order, q.Uuid)
		x.order = slices.Insert(x.order, at, q.Uuid)
		x.luns[q.Uuid] = l
		return l, nil
	})
}

// DeleteLUN removes a LUN.
func (p *Pairs) DeleteLUN(ctx context.Context, q *targetv1.DeleteLUNRequest) (*targetv1.DeleteLUNResponse, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.DeleteLUNResponse, error) {
		if l := x.luns[q.Uuid]; l != nil {
			x.owned[l.Owner]--
			delete(x.luns, q.Uuid)
			at, _ := slices.BinarySearch(x.order, q.Uuid)
			x.order = slices.Delete(x.order, at, at+1)
		}
		return &targetv1.DeleteLUNResponse{}, nil
	})
}

// ExpandLUN makes a LUN larger.
func (p *Pairs) ExpandLUN(ctx context.Context, q *targetv1.ExpandLUNRequest) (*targetv1.LUN, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.LUN, error) {
		l, err := x.lun(q.Uuid)
		if err == nil {
			l.SizeBytes = max(l.SizeBytes, q.SizeBytes)
		}
		return l, err
	})
}

// ModifyLUN changes what the pair keeps of a LUN.
func (p *Pairs) ModifyLUN(ctx context.Context, q *targetv1.ModifyLUNRequest) (*targetv1.LUN, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.LUN, error) {
		l, err := x.lun(q.Uuid)
		if err == nil {
			l.PreferredNode, l.WriteCache = cmp.Or(q.PreferredNode, l.PreferredNode), cmp.Or(q.WriteCache, l.WriteCache)
			l.PinnedNode, l.SpreadGroup, l.PinnedTier = cmp.Or(q.PinnedNode, l.PinnedNode), cmp.Or(q.SpreadGroup, l.SpreadGroup), cmp.Or(q.PinnedTier, l.PinnedTier)
		}
		return l, err
	})
}

// GetLUN returns a LUN by its UUID.
func (p *Pairs) GetLUN(ctx context.Context, q *targetv1.GetLUNRequest) (*targetv1.LUN, error) {
	n, err := p.at(ctx)
	if err != nil {
		return nil, err
	}
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	l, err := n.pair.lun(q.Uuid)
	return proto.CloneOf(l), err
}

// ListLUNs returns LUNs in pages, sorted by UUID.
func (p *Pairs) ListLUNs(ctx context.Context, q *targetv1.ListLUNsRequest) (*targetv1.ListLUNsResponse, error) {
	n, err := p.at(ctx)
	if err != nil {
		return nil, err
	}
	x := n.pair
	x.mu.Lock()
	defer x.mu.Unlock()
	from, found := slices.BinarySearch(x.order, q.AfterUuid)
	if found {
		from++
	}
	to := min(len(x.order), from+int(cmp.Or(q.Limit, 500)))
	out := &targetv1.ListLUNsResponse{}
	for _, id := range x.order[from:to] {
		out.Luns = append(out.Luns, proto.CloneOf(x.luns[id]))
	}
	if to < len(x.order) {
		out.NextAfterUuid = x.order[to-1]
	}
	return out, nil
}

// SetOwnershipPolicy keeps the policy.
func (p *Pairs) SetOwnershipPolicy(ctx context.Context, q *targetv1.SetOwnershipPolicyRequest) (*targetv1.SetOwnershipPolicyResponse, error) {
	return change(ctx, p, func(x *fakePair) (*targetv1.SetOwnershipPolicyResponse, error) {
		x.policy = proto.CloneOf(q)
		return &targetv1.SetOwnershipPolicyResponse{}, nil
	})
}
