package nodesim

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// Two LUNs with the same work are both on node a, which uses nine tenths of its CPU: after the slow
// window one of them, and no other, moves to node b for good, and no host sees an error.
func TestTwoBusyLUNsPart(t *testing.T) {
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, nil)
		w.cpus = 0.1
		w.nodes[0].uses(0.09)
		w.nodes[1].uses(0.05)
		if err := w.startNodes(); err != nil {
			t.Fatal(err)
		}
		if !w.populate(setup{users: 1, workers: 2, think: 40 * time.Millisecond}) {
			t.Fatal(w.violations)
		}
		if _, err := call(w.caller, w.rand(50), "both LUNs to node a", func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.TransferOwnershipResponse, error) {
			return c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "a", HoldSeconds: new(uint32)})
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		if at, _ := w.owners(t); !slices.Equal(at, []string{"a", "a"}) {
			t.Errorf("owners %v within the slow window", at)
		}
		if !w.await(6*time.Minute, func() bool { at, _ := w.owners(t); return at[0] != at[1] }) {
			t.Fatalf("they do not part: %v", w.ownership(t))
		}
		at, homes := w.owners(t)
		if !slices.Equal(at, homes) {
			t.Errorf("owners %v, homes %v", at, homes)
		}
		w.nodes[0].uses(0.07)
		w.nodes[1].uses(0.07)
		time.Sleep(12 * time.Minute)
		o := w.ownership(t)
		balanced := 0
		for _, m := range o.Moves {
			if m.Reason == "Balance" {
				balanced++
			}
		}
		if balanced != 1 || o.Even == "" || len(o.Use) != 2 {
			t.Errorf("%v", o)
		}
		w.setQuiet()
		w.finish()
		for _, v := range w.violations {
			t.Error(v)
		}
	})
}

// Two LUNs that take little CPU are read on node a, whose slow disk is at work nearly all of the
// time: one of them moves to node b, whose disk has a copy and is idle, and stays there.
func TestTwoLUNsOfOneSlowDiskPart(t *testing.T) {
	dir := memory(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, dir, nil)
		for _, m := range w.nodes {
			m.uses(0.05)
			m.disk.set(func(d *disk) {
				d.hit, d.speed = 0, speed{read: 40 * time.Millisecond, flush: time.Millisecond, bandwidth: 400e6}
			})
		}
		if err := w.startNodes(); err != nil {
			t.Fatal(err)
		}
		if !w.populate(setup{users: 1, workers: 2, think: 40 * time.Millisecond}) {
			t.Fatal(w.violations)
		}
		if _, err := call(w.caller, w.rand(50), "both LUNs to node a", func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.TransferOwnershipResponse, error) {
			return c.TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{All: true, ToNode: "a", HoldSeconds: new(uint32)})
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		if at, _ := w.owners(t); !slices.Equal(at, []string{"a", "a"}) {
			t.Errorf("owners %v within the slow window", at)
		}
		if !w.await(8*time.Minute, func() bool { at, _ := w.owners(t); return at[0] != at[1] }) {
			t.Fatalf("they do not part: %v", w.ownership(t))
		}
		o := w.ownership(t)
		t.Log(o)
		last := o.Moves[len(o.Moves)-1]
		if last.Reason != "Balance" || !strings.Contains(last.Text, "of its disk of volume default") || o.MeasuredIn != "disk of volume default" {
			t.Errorf("%v", o)
		}
		if len(o.Use) != 2 || o.Use[0] > 0.1 || len(o.Disks) != 1 || len(o.Disks[0].Use) != 2 {
			t.Errorf("use of CPUs %v, of disks %v", o.Use, o.Disks)
		}
		time.Sleep(15 * time.Minute)
		o = w.ownership(t)
		t.Log(o)
		balanced := 0
		for _, m := range o.Moves {
			if m.Reason == "Balance" {
				balanced++
			}
		}
		if a, b := o.Disks[0].Use[0], o.Disks[0].Use[1]; balanced != 1 || a < 0.3 || b < 0.3 || math.Abs(a-b) > 0.2 {
			t.Errorf("%d moves, disks %.2f and %.2f", balanced, a, b)
		}
		w.setQuiet()
		w.finish()
		for _, v := range w.violations {
			t.Error(v)
		}
	})
}

// owners are the owners of the LUNs, and their homes.
func (w *world) owners(t *testing.T) (at, homes []string) {
	t.Helper()
	for _, l := range w.luns {
		x, err := w.caller.clients[0].GetLUN(context.Background(), &targetv1.GetLUNRequest{Uuid: l.id})
		if err != nil {
			t.Fatal(err)
		}
		at, homes = append(at, x.Owner), append(homes, x.PreferredNode)
	}
	return at, homes
}

// ownership is what the node says that decides.
func (w *world) ownership(t *testing.T) (o *targetv1.Ownership) {
	t.Helper()
	for _, c := range w.caller.clients {
		s, err := c.GetStatus(context.Background(), &targetv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if o == nil || s.Ownership.Decides {
			o = s.Ownership
		}
	}
	return o
}
