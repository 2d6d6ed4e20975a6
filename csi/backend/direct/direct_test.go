package direct

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

const mib = 1 << 20

// start runs a real pair and a backend of both its nodes.
func start(t *testing.T) (*harness.Pair, *Backend, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	dir := t.TempDir()
	bin, err := harness.Build(ctx, dir, "./cmd/gemel-target")
	if err != nil {
		t.Fatal(err)
	}
	p, err := harness.New(harness.Options{Dir: dir, Binary: bin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("stop of the pair: %v", err)
		}
		if t.Failed() {
			for i, n := range harness.Names {
				b, _ := os.ReadFile(p.LogFile(i))
				t.Logf("log of node %s:\n%s", n, b)
			}
		}
	})
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := New(Config{Endpoints: p.Control[:], Patience: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return p, b, ctx
}

func TestVolumesAndSnapshotsOfAPair(t *testing.T) {
	p, b, ctx := start(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	q := backend.CreateVolume{ID: b.VolumeID("v"), Name: "v", Size: 64 * mib, Labels: map[string]string{"k": "w"}}
	v, err := b.CreateVolume(ctx, q)
	ok(err)
	if again, err := b.CreateVolume(ctx, q); err != nil || again.ID != v.ID {
		t.Fatal(again, err)
	}
	q.Size *= 2
	_, err = b.CreateVolume(ctx, q)
	is(err, backend.ErrExists)
	got, err := b.GetVolume(ctx, v.ID)
	ok(err)
	if got.Labels["k"] != "w" || got.Size != 64*mib || len(got.Hosts) != 0 {
		t.Fatalf("%+v", got)
	}
	for _, id := range []string{"nonsense", b.VolumeID("another")} {
		_, err = b.GetVolume(ctx, id)
		is(err, backend.ErrNotFound)
		_, err = b.ExpandVolume(ctx, id, mib)
		is(err, backend.ErrNotFound)
		_, err = b.ModifyVolume(ctx, id, backend.Mutable{})
		is(err, backend.ErrNotFound)
		_, err = b.Publish(ctx, backend.Publish{VolumeID: id, HostIQN: "iqn.2026-11.x:h"})
		is(err, backend.ErrNotFound)
		_, err = b.CreateSnapshot(ctx, b.SnapshotID("s"), "s", id)
		is(err, backend.ErrNotFound)
		_, err = b.GetSnapshot(ctx, id)
		is(err, backend.ErrNotFound)
		ok(b.DeleteVolume(ctx, id))
		ok(b.DeleteSnapshot(ctx, id))
		ok(b.Unpublish(ctx, id, ""))
	}

	a, err := b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: "iqn.2026-11.x:h"})
	ok(err)
	if len(a.Portals) != 2 || a.TargetIQN != p.IQN() || a.WWID == "" || a.Generation == 0 {
		t.Fatalf("%+v", a)
	}
	if again, err := b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: "iqn.2026-11.x:h"}); err != nil || !again.Same(a) {
		t.Fatal(again, err)
	}
	_, err = b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: "iqn.2026-11.x:h", ReadOnly: true})
	is(err, backend.ErrExists)
	_, err = b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: "not a name"})
	is(err, backend.ErrInvalid)
	is(b.DeleteVolume(ctx, v.ID), backend.ErrInUse)
	ok(b.Unpublish(ctx, v.ID, "iqn.2026-11.x:h"))
	ok(b.Unpublish(ctx, v.ID, "iqn.2026-11.x:h"))
	if next, err := b.Publish(ctx, backend.Publish{VolumeID: v.ID, HostIQN: "iqn.2026-11.x:h"}); err != nil || next.Generation == a.Generation {
		t.Fatal(next, err)
	}
	ok(b.Unpublish(ctx, v.ID, ""))

	s, err := b.CreateSnapshot(ctx, b.SnapshotID("s"), "s", v.ID)
	ok(err)
	if again, err := b.CreateSnapshot(ctx, b.SnapshotID("s"), "s", v.ID); err != nil || again.Created != s.Created {
		t.Fatal(again, err)
	}
	clone, err := b.CreateVolume(ctx, backend.CreateVolume{ID: b.VolumeID("c"), Name: "c", Size: 64 * mib, SourceSnapshot: s.ID})
	ok(err)
	if clone.SourceSnapshot != s.ID {
		t.Fatalf("%+v", clone)
	}
	_, err = b.CreateVolume(ctx, backend.CreateVolume{ID: b.VolumeID("d"), Name: "d", Size: 32 * mib, SourceSnapshot: s.ID})
	is(err, backend.ErrInvalid)

	var seen []string
	for page := (backend.Page{Limit: 1}); ; {
		list, next, err := b.ListVolumes(ctx, page)
		ok(err)
		for _, v := range list {
			seen = append(seen, v.ID)
		}
		if page.After = next; next == "" {
			break
		}
	}
	if len(seen) != 2 || seen[0] == seen[1] {
		t.Fatalf("pages: %v", seen)
	}
	_, _, err = b.ListVolumes(ctx, backend.Page{After: "x"})
	is(err, backend.ErrBadToken)
	_, _, err = b.ListSnapshots(ctx, "", backend.Page{After: "x"})
	is(err, backend.ErrBadToken)
	if list, _, err := b.ListSnapshots(ctx, v.ID, backend.Page{}); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if list, _, err := b.ListSnapshots(ctx, clone.ID, backend.Page{}); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}

	// Mutable fields change, and empty fields stay.
	for _, m := range []struct{ ask, want backend.Mutable }{
		{backend.Mutable{WriteCache: "write-through"}, backend.Mutable{PreferredNode: clone.PreferredNode, PinnedNode: "none", WriteCache: "write-through", Tier: "none"}},
		{backend.Mutable{PreferredNode: "b"}, backend.Mutable{PreferredNode: "b", PinnedNode: "none", WriteCache: "write-through", Tier: "none"}},
		{backend.Mutable{PreferredNode: "a", WriteCache: "write-back"}, backend.Mutable{PreferredNode: "a", PinnedNode: "none", WriteCache: "write-back", Tier: "none"}},
		{backend.Mutable{PinnedNode: "a"}, backend.Mutable{PreferredNode: "a", PinnedNode: "a", WriteCache: "write-back", Tier: "none"}},
		{backend.Mutable{PinnedNode: "none"}, backend.Mutable{PreferredNode: "a", PinnedNode: "none", WriteCache: "write-back", Tier: "none"}},
	} {
		got, err := b.ModifyVolume(ctx, clone.ID, m.ask)
		ok(err)
		if got.Mutable != m.want {
			t.Fatalf("%+v became %+v", m.ask, got.Mutable)
		}
	}

	if _, err := b.ModifyVolume(ctx, clone.ID, backend.Mutable{Tier: "Fast"}); err == nil || !strings.Contains(err.Error(), "has no fast tier") {
		t.Errorf("a tier that the targets do not have: %v", err)
	}

	// One node suffices, whichever was used last; without any node, the call fails in time.
	if h := b.health(ctx); h.Reason != "" || !h.Serving {
		t.Fatalf("%+v", h)
	}
	ok(p.Kill(0))
	v, err = b.ExpandVolume(ctx, v.ID, 96*mib)
	ok(err)
	if v.Size != 96*mib {
		t.Fatalf("%+v", v)
	}
	if h := b.health(ctx); h.Reason != "RedundancyLost" || !h.Serving {
		t.Fatalf("%+v", h)
	}
	ok(p.Kill(1))
	if h := b.health(ctx); h.Serving {
		t.Fatalf("%+v", h)
	}
	hurry, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = b.GetVolume(hurry, v.ID)
	is(err, backend.ErrTimeout)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	short, err := New(Config{Endpoints: p.Control[:], Patience: 300 * time.Millisecond})
	ok(err)
	defer func() { _ = short.Close() }()
	_, err = short.GetVolume(ctx, v.ID)
	is(err, backend.ErrUnavailable)
}

func TestConfigIsCheckedAndIDsAreStable(t *testing.T) {
	for _, c := range []Config{{}, {Endpoints: []string{"nowhere"}}, {Endpoints: []string{"192.0.2.1:1"}}, {Endpoints: []string{"127.0.0.1:1"}, Patience: -1}} {
		if b, err := New(c); err == nil {
			_ = b.Close()
			t.Errorf("%+v was accepted", c)
		}
	}
	b, err := New(Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	// IDs must never change: a repeated create would not find its volume.
	if got := b.VolumeID("pvc-1"); got != "9c009a2c-7fc0-5d23-8c5e-1e5bcd9880a2" || got == b.VolumeID("pvc-2") || got == b.SnapshotID("pvc-1") || !ours(got) {
		t.Error(got)
	}
}
