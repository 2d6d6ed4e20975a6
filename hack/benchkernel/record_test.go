package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/arbiter/lease"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/testkit/freeport"
)

// A target's arbiter takes the server for an API server: it founds a record, and of two writes that
// build on one state the second fails.
func TestRecordServesAnArbiter(t *testing.T) {
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRecord(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(r.kubeconfig()), 0o600); err != nil {
		t.Fatal(err)
	}
	client := func() *lease.Client {
		cfg, _, err := lease.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := lease.New(cfg, lease.Options{Namespace: "bench", Name: "p0", Cluster: "c", Pair: "p0"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := client(), client()
	if _, _, err := a.Get(t.Context()); !errors.Is(err, lease.ErrNoLease) {
		t.Fatalf("a Lease that was not made: %v", err)
	}
	r.found("bench", "p0")
	if _, _, err := a.Get(t.Context()); !errors.Is(err, arbiter.ErrNotFound) {
		t.Fatalf("an empty Lease: %v", err)
	}
	member := func(n pair.Node) pair.Member {
		return pair.Member{Node: n, Store: "store-" + n.String(), Incarnation: pair.Incarnation{Boot: "boot", Nonce: 1}}
	}
	rec := pair.Record{Cluster: "c", Pair: "p0", Epoch: 1, Generation: 1, Members: []pair.Member{member(pair.A), member(pair.B)}}
	first, err := a.CompareAndSwap(t.Context(), "", rec)
	if err != nil {
		t.Fatal(err)
	}
	got, version, err := b.Get(t.Context())
	if err != nil || version != first || got.Epoch != 1 || len(got.Members) != 2 {
		t.Fatalf("%+v %s %v", got, version, err)
	}
	next := got
	next.Generation++
	if _, err := b.CompareAndSwap(t.Context(), version, next); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CompareAndSwap(t.Context(), first, next); !errors.Is(err, arbiter.ErrConflict) {
		t.Fatalf("the second of two writes: %v", err)
	}
}
