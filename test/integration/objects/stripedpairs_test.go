package objects

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/internal/stripe"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// overPairs is a cluster of two pairs, with an operator.
type overPairs struct {
	*rig
	pairs []*harness.Pair
}

func startOverPairs(t *testing.T) *overPairs {
	t.Helper()
	r := startReflinked(t, 4*time.Minute)
	return &overPairs{r, []*harness.Pair{r.pair, r.beside(harness.Options{Dir: filepath.Join(r.pair.Dir, "second"), Name: "p1", Args: r.pair.Args})}}
}

// spread is a volume over four LUNs on both pairs.
func (r *overPairs) spread(name string) backend.CreateVolume {
	q := r.wish(name)
	q.Size, q.Layout, q.OverPairs = 4*16*mib, stripe.Default(4), true
	return q
}

// disks are the LUNs of each pair by their names, and how many snapshots it has.
func (r *overPairs) disks() (luns []map[string]*targetv1.LUN, snapshots []int) {
	r.Helper()
	for _, p := range r.pairs {
		all := map[string]*targetv1.LUN{}
		l, err := p.Client(0).ListLUNs(r.ctx, &targetv1.ListLUNsRequest{})
		r.ok(err)
		for _, x := range l.Luns {
			all[x.Name] = x
		}
		s, err := p.Client(0).ListSnapshots(r.ctx, &targetv1.ListSnapshotsRequest{})
		r.ok(err)
		luns, snapshots = append(luns, all), append(snapshots, len(s.Snapshots))
	}
	return luns, snapshots
}

// where says on which pair each LUN of a volume is, and its home: "0a 1b 0b 1a".
func (r *overPairs) where(id string) string {
	r.Helper()
	luns, _ := r.disks()
	var out []string
	for i := range 4 {
		for p := range luns {
			if l := luns[p][v1alpha1.LegName(id, i)]; l != nil {
				out = append(out, fmt.Sprint(p, l.PreferredNode))
			}
		}
	}
	return strings.Join(out, " ")
}

// A volume over two pairs has two LUNs on each pair, and each of the four nodes is the home of
// one. A publish names the target of each LUN, and an unpublish fences the host at both pairs.
// Copies are on the same pairs, and of one instant. Nothing is left of any of them.
func TestStripedVolumeOverPairs(t *testing.T) {
	r := startOverPairs(t)
	v, err := r.b.CreateVolume(r.ctx, r.spread("one"))
	r.ok(err)
	at := r.unit(v.ID).Spec.Placement
	first := slices.IndexFunc(r.pairs, func(p *harness.Pair) bool { return p.Name == at.Pair })
	if len(at.LegPairs) != 4 || first < 0 || len(v.Pairs) != 2 || v.Pairs[0] != at.Pair {
		t.Fatalf("%+v, %v", at, v.Pairs)
	}
	homes := []string{fmt.Sprintf("%[1]da %[2]db %[1]db %[2]da", first, 1-first), fmt.Sprintf("%[1]db %[2]da %[1]da %[2]db", first, 1-first)}
	if got := r.where(v.ID); !slices.Contains(homes, got) {
		t.Errorf("the LUNs are at %s", got)
	}

	var last uint64
	for range 2 {
		a, err := r.b.Publish(r.ctx, backend.Publish{VolumeID: v.ID, HostIQN: hostA, Exclusive: true})
		r.ok(err)
		r.ok(r.tells(v.ID, a))
		if a.Generation <= last {
			t.Errorf("generation %d after %d", a.Generation, last)
		}
		last = a.Generation
		r.ok(r.b.Unpublish(r.ctx, v.ID, hostA))
		luns, _ := r.disks()
		for p := range luns {
			for name, l := range luns[p] {
				if len(l.Mappings) > 0 {
					t.Errorf("%s is mapped after its volume was unpublished: %v", name, l.Mappings)
				}
			}
		}
	}

	snap := r.b.SnapshotID("one")
	_, err = r.b.CreateSnapshot(r.ctx, snap, "one", v.ID)
	r.ok(err)
	if _, n := r.disks(); !slices.Equal(n, []int{2, 2}) {
		t.Errorf("snapshots %v", n)
	}
	restored, clone, moved := r.spread("restored"), r.spread("clone"), r.spread("moved")
	restored.SourceSnapshot, restored.OverPairs, clone.SourceVolume = snap, false, v.ID
	for _, q := range []backend.CreateVolume{restored, clone} {
		c, err := r.b.CreateVolume(r.ctx, q)
		r.ok(err)
		if now := r.unit(c.ID).Spec.Placement; !slices.Equal(now.LegPairs, at.LegPairs) || now.Pair != at.Pair || !slices.Contains(homes, r.where(c.ID)) {
			t.Errorf("%s: %+v, at %s", q.Name, now, r.where(c.ID))
		}
	}
	// A copy cannot be spread further than its source.
	near := r.stripedWish("near")
	_, err = r.b.CreateVolume(r.ctx, near)
	r.ok(err)
	moved.Size, moved.Layout, moved.SourceVolume = near.Size, near.Layout, near.ID
	if _, err := r.b.CreateVolume(r.ctx, moved); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "parameters: spread") {
		t.Errorf("a copy over pairs of a volume on one: %v", err)
	}
	other := r.spread("one")
	other.OverPairs = false
	if _, err := r.b.CreateVolume(r.ctx, other); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "spread") {
		t.Errorf("the same volume with another spread: %v", err)
	}
	for _, id := range []string{clone.ID, v.ID, near.ID} {
		r.ok(r.b.DeleteVolume(r.ctx, id))
	}
	r.ok(r.b.DeleteSnapshot(r.ctx, snap))
	r.ok(r.b.DeleteVolume(r.ctx, restored.ID))
	if luns, n := r.disks(); len(luns[0])+len(luns[1])+n[0]+n[1] != 0 {
		t.Errorf("left: %v, %v", luns, n)
	}
}

// tells compares a publish with the mappings of both pairs.
func (r *overPairs) tells(id string, a attach.Attachment) error {
	r.Helper()
	targets := a.Targets()
	if len(a.Legs) != 4 || len(targets) != 2 {
		return fmt.Errorf("published as %+v", a)
	}
	luns, _ := r.disks()
	for i, l := range a.Legs {
		to := targets[l.Target]
		p := slices.IndexFunc(r.pairs, func(p *harness.Pair) bool { return p.Name == to.Pair })
		if p < 0 || to.IQN != r.pairs[p].IQN() {
			return fmt.Errorf("leg %d is at %+v", i, to)
		}
		lun := luns[p][v1alpha1.LegName(id, i)]
		if lun == nil || lun.Wwid != l.WWID || len(lun.Mappings) != 1 || lun.Mappings[0].Lun != uint32(l.LUN) || len(to.Portals) != 2 {
			return fmt.Errorf("leg %d is published as %+v at %+v, and mapped as %+v", i, l, to, lun)
		}
	}
	again, err := attach.FromPublishContext(id, a.PublishContext())
	if err != nil || !again.Same(a) {
		return fmt.Errorf("%+v comes over as %+v: %w", a, again, err)
	}
	return nil
}

// While one of two pairs does not serve, a volume over pairs is not made, and says what it waits
// for; then it is made.
func TestStripedVolumeWaitsForItsPairs(t *testing.T) {
	r := startOverPairs(t)
	for i := range harness.Names {
		r.ok(r.pairs[1].Kill(i))
	}
	q := r.spread("one")
	made := make(chan error, 1)
	go func() {
		_, err := r.b.CreateVolume(r.ctx, q)
		made <- err
	}()
	r.ok(harness.Wait(r.ctx, "the volume waits", func() (bool, string) {
		var all v1alpha1.LogicalUnitList
		if err := r.c.List(r.ctx, &all); err != nil {
			return false, err.Error()
		}
		for _, lu := range all.Items {
			for _, c := range lu.Status.Conditions {
				if c.Type == v1alpha1.ConditionReady && c.Reason == v1alpha1.ReasonPairDown && strings.Contains(c.Message, "p1") {
					return true, ""
				}
			}
		}
		return false, fmt.Sprintf("%+v", all.Items)
	}))
	for i := range harness.Names {
		r.ok(r.pairs[1].StartNode(i))
	}
	select {
	case err := <-made:
		if err != nil { // it was refused for the moment: the caller tries again
			_, err = r.b.CreateVolume(r.ctx, q)
			r.ok(err)
		}
	case <-r.ctx.Done():
		t.Fatal("the volume is not made")
	}
	if got := r.unit(q.ID).Spec.Placement.Pairs(); len(got) != 2 {
		t.Errorf("on %v", got)
	}
}
