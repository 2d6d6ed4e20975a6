package pair

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// eventsOf returns the events of damage.
func eventsOf(all []string) []string {
	return slices.DeleteFunc(all, func(e string) bool { return !strings.Contains(e, "Blocks") })
}

// device attaches a LUN as a host does.
func (w *world) device(host string, m *targetv1.Mapping) *initiator.Device {
	w.t.Helper()
	cfg := initiator.Config{InitiatorName: host, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, x := range m.Portals {
		cfg.Portals = append(cfg.Portals, x.Address)
	}
	d, err := initiator.Open(w.ctx, cfg)
	w.ok(err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = d.Close(ctx)
	})
	return d
}

// A block that a read heals, and one that both nodes have lost, are events of the pair and of the
// LogicalUnit, once, whichever operator reconciles.
func TestDamagedBlocksAreRecordedOnce(t *testing.T) {
	w := newWorld(t, "damage")
	w.run()
	id := uuid.NewString()
	_, err := w.pair.Client(0).CreateLUN(w.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 4 << 20, PreferredNode: "a"})
	w.ok(err)
	w.ok(w.c.Create(w.ctx, &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "damage-lun"}, Spec: v1alpha1.LogicalUnitSpec{Cluster: w.name,
		Size: resource.MustParse("4Mi"), Placement: &v1alpha1.Placement{Pair: w.name, UUID: id}}}))
	w.step()
	w.pod("a", "worker-1")
	w.pod("b", "worker-2")
	w.step()
	const host = "iqn.2026-11.test:damage"
	m, err := w.pair.Client(0).MapHost(w.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	w.ok(err)
	d := w.device(host, m)
	_, err = d.WriteAt(w.ctx, slices.Repeat([]byte("gemel..."), 512<<10), 0)
	w.ok(err)
	w.ok(d.Flush(w.ctx))
	rot := func(node int, off int64) {
		f, err := os.OpenFile(filepath.Join(w.pair.State[node], "volumes", "default", "luns", id+".img"), os.O_RDWR, 0)
		w.ok(err)
		_, werr := f.WriteAt([]byte("rot"), off)
		w.ok(errors.Join(werr, f.Close()))
	}
	counted := func(node string) (n v1alpha1.NodeDamage) {
		for _, x := range w.get().Status.Damage {
			if x.Node == node {
				n = x
			}
		}
		return n
	}
	w.step()
	if got := w.get().Status.Damage; got != nil {
		t.Fatalf("%+v", got)
	}
	w.events()

	rot(0, 1<<20+5)
	rot(0, 2<<20+5)
	for _, off := range []int64{1 << 20, 2 << 20} {
		_, err = d.ReadAt(w.ctx, make([]byte, 4096), off)
		w.ok(err)
	}
	w.ok(harness.Wait(w.ctx, "the healed blocks are counted", func() (bool, string) { w.step(); return counted("a").HealedBlocks > 0, "" }))
	if x := counted("a"); x.HealedBlocks != 2 || x.LostBlocks != 0 || x.LastLost != nil || x.LastHealed == nil || x.LastHealed.UUID != id || x.LastHealed.LogicalUnit != "damage-lun" ||
		x.LastHealed.Offset != 2<<20 || time.Since(x.LastHealed.Time.Time) > time.Minute || x.Counted.Findings != 1 {
		t.Fatalf("%+v %+v", x, x.LastHealed)
	}
	want := "Normal BlocksHealed node a: 2 blocks of 4 KiB of LUN or snapshot " + id + " (damage-lun), the first at byte 1048576, did not match the checksums and were healed from the other node"
	if got := eventsOf(w.events()); len(got) != 2 || !strings.HasPrefix(got[0], want) || got[1] != got[0] { // of the pair, and of the LUN
		t.Fatalf("%q", got)
	}
	if n := testutil.ToFloat64(damagedBlocks.WithLabelValues(w.name, "a", "healed")); n != 2 {
		t.Errorf("the metric says %v", n)
	}

	// The next operator has only the status.
	w.r = &Reconciler{Client: w.r.Client, Live: w.r.Live, Namespace: w.r.Namespace, Image: w.r.Image, Targets: w, Events: w.rec}
	w.step()
	rot(0, 3<<20+5)
	rot(1, 3<<20+5)
	for range 3 {
		if _, err = d.ReadAt(w.ctx, make([]byte, 4096), 3<<20); !errors.Is(err, initiator.ErrMedium) {
			t.Fatal(err)
		}
	}
	w.ok(harness.Wait(w.ctx, "the lost block is counted", func() (bool, string) { w.step(); return counted("a").LostBlocks > 0, "" }))
	if x := counted("a"); x.LostBlocks != 1 || x.HealedBlocks != 2 || x.LastLost == nil || x.LastLost.Offset != 3<<20 || x.LastHealed.Offset != 2<<20 {
		t.Fatalf("%+v", x)
	}
	got := eventsOf(w.events())
	if len(got) != 2 || !strings.HasPrefix(got[0], "Warning BlocksLost node a: 1 block of 4 KiB of LUN or snapshot "+id+" (damage-lun), the first at byte 3145728,") ||
		!strings.HasSuffix(got[0], "no node has a good copy: restore the file or the volume from a backup") {
		t.Fatalf("%q", got)
	}

	// The node restarts and counts from zero: nothing is recorded twice, the counts stay, and new
	// damage is recorded.
	w.ok(w.pair.Term(0))
	w.ok(w.pair.StartNode(0))
	w.ok(harness.Wait(w.ctx, "the pair is in sync", func() (bool, string) { w.step(); return w.condition(v1alpha1.ConditionInSync).Status == "True", "" }))
	if x := counted("a"); x.HealedBlocks != 2 || x.LostBlocks != 1 {
		t.Fatalf("%+v", x)
	}
	for _, e := range eventsOf(w.events()) {
		if strings.Contains(e, "node a:") { // the other node may have found the lost block during the resync
			t.Errorf("%q", e)
		}
	}
}

// Findings are grouped by LUN; findings that the node no longer lists are counted; a restarted
// process counts from zero.
func TestFreshDamageIsCountedOnceByLUN(t *testing.T) {
	now := timestamppb.Now()
	f := func(n uint64, id string, lost bool, blocks, off uint64) *targetv1.DamageFinding {
		return &targetv1.DamageFinding{Number: n, Uuid: id, Lost: lost, Blocks: blocks, Offset: off, LastOffset: off, Time: now}
	}
	c := &targetv1.Checksums{Process: "p", HealedBlocks: 10_107, LostBlocks: 3, Findings: []*targetv1.DamageFinding{
		f(7, "x", false, 10_000, 8192), f(8, "y", true, 3, 4096), f(9, "x", false, 5, 0), f(10, "y", false, 2, 12288)}}
	for name, q := range map[string]struct {
		counted v1alpha1.DamageCounted
		want    []damageNews
	}{
		"nothing counted": {v1alpha1.DamageCounted{}, []damageNews{{node: "a", uuid: "x", blocks: 10_005, first: 8192}, {node: "a", uuid: "y", lost: true, blocks: 3, first: 4096},
			{node: "a", uuid: "y", blocks: 2, first: 12288}, {node: "a", blocks: 100}}},
		"all counted":  {v1alpha1.DamageCounted{Process: "p", Findings: 10, HealedBlocks: 10_107, LostBlocks: 3}, nil},
		"some counted": {v1alpha1.DamageCounted{Process: "p", Findings: 8, HealedBlocks: 10_100, LostBlocks: 3}, []damageNews{{node: "a", uuid: "x", blocks: 5}, {node: "a", uuid: "y", blocks: 2, first: 12288}}},
		"another process": {v1alpha1.DamageCounted{Process: "o", Findings: 99, HealedBlocks: 1 << 40, LostBlocks: 1 << 40}, []damageNews{{node: "a", uuid: "x", blocks: 10_005, first: 8192},
			{node: "a", uuid: "y", lost: true, blocks: 3, first: 4096}, {node: "a", uuid: "y", blocks: 2, first: 12288}, {node: "a", blocks: 100}}},
	} {
		if got, _ := freshDamage(q.counted, "a", c); !slices.Equal(got, q.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if text := (&damageNews{node: "a", blocks: 100}).text(); !strings.Contains(text, "100 blocks of 4 KiB of LUNs that only the log of the pod names") {
		t.Error(text)
	}
	if got, _ := freshDamage(v1alpha1.DamageCounted{}, "a", &targetv1.Checksums{Process: "p"}); got != nil {
		t.Errorf("%+v", got)
	}
}
