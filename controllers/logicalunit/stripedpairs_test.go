package logicalunit

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A volume over two pairs has legs where its placement says, and tells hosts the target of each.
func TestStripedVolumeOverPairs(t *testing.T) {
	f := striped(t)
	lu, _, _ := f.look()
	lu.Spec.Spread = v1alpha1.LegsOverPairs
	lu.Spec.Placement.LegPairs = v1alpha1.LegPairsOf([]string{"p", "q", "p"})
	if err := f.c.Update(f.Context(), lu); err != nil {
		t.Fatal(err)
	}
	f.look()
	f.spec(hosts("iqn.h"))
	f.look()
	for i, pair := range []string{"p", "q", "p"} {
		leg := f.leg(i)
		leg.Spec.Placement = &v1alpha1.Placement{Pair: pair, UUID: uuidOfSource}
		if err := f.c.Update(f.Context(), leg); err != nil {
			t.Fatal(err)
		}
		f.says(i, func(s *v1alpha1.LogicalUnitStatus) {
			if i == 1 {
				s.Hosts[0].TargetIQN, s.Hosts[0].Portals, s.Hosts[0].Generation, s.Hosts[0].CHAPUser = "u", []string{"q:1", "q:2"}, 7, "host"
			}
		})
	}
	lu, _, _ = f.look()
	want := []v1alpha1.LegMapping{{LUN: 0, WWID: "60"}, {LUN: 1, WWID: "61", Pair: "q", TargetIQN: "u", Portals: []string{"q:1", "q:2"}}, {LUN: 2, WWID: "62"}}
	h := lu.Status.Host("iqn.h")
	if h == nil || !equality.Semantic.DeepEqual(h.Legs, want) || h.TargetIQN != "t" || h.Generation != 102+7 || h.CHAPUser != "host" {
		t.Fatalf("%+v", lu.Status.Hosts)
	}
	// Whichever leg is published again, the generation is higher, also where its pair counts less.
	f.says(1, func(s *v1alpha1.LogicalUnitStatus) { s.Hosts[0].TargetIQN, s.Hosts[0].Generation = "u", 8 })
	if lu, _, _ = f.look(); lu.Status.Host("iqn.h").Generation != 102+8 {
		t.Errorf("%+v", lu.Status.Hosts)
	}
}

// What is imported is on the pairs that its legs are on; the one of a lost leg is not known.
func TestImportOfAVolumeOverPairs(t *testing.T) {
	var legs []*v1alpha1.LogicalUnit
	for i, pair := range []string{"p", "q", "", "q"} {
		if pair == "" {
			continue
		}
		legs = append(legs, &v1alpha1.LogicalUnit{Spec: v1alpha1.LogicalUnitSpec{Placement: &v1alpha1.Placement{Pair: pair},
			Leg: &v1alpha1.Leg{Of: "v", Number: int32(i), Striping: v1alpha1.Striping{LUNs: 4, StripeBytes: 64 << 10}}}})
	}
	got := VolumeOf(legs).Spec
	if got.Spread != v1alpha1.LegsOverPairs || got.Placement.Pair != "p" || !equality.Semantic.DeepEqual(got.Placement.LegPairs, v1alpha1.LegPairsOf([]string{"p", "q", "p", "q"})) {
		t.Errorf("%+v, %+v", got, got.Placement)
	}
	legs[1].Spec.Placement.Pair, legs[2].Spec.Placement.Pair = "p", "p"
	if got := VolumeOf(legs).Spec; got.Spread != "" || got.Placement.LegPairs != nil {
		t.Errorf("%+v, %+v", got, got.Placement)
	}
}

// With one pair there is nothing to spread over: the volume is not made, and its condition says so.
func TestTooFewPairsForAStripedVolume(t *testing.T) {
	f := striped(t)
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Spread = v1alpha1.LegsOverPairs })
	lu, _, _ := f.look()
	c := meta.FindStatusCondition(lu.Status.Conditions, "Ready")
	if lu.Spec.Placement != nil || c == nil || c.Reason != v1alpha1.ReasonInvalid || !strings.Contains(c.Message, "spec.spread") || !strings.Contains(c.Message, "two are needed") {
		t.Errorf("%+v, %+v", lu.Spec, c)
	}
}

// Each leg is placed on the pair that the placement of its volume says for it.
func TestLegsGoToTheirPairs(t *testing.T) {
	f := striped(t)
	lu, _, _ := f.look()
	lu.Spec.Spread, lu.Spec.Placement.Home = v1alpha1.LegsOverPairs, "b"
	lu.Spec.Placement.LegPairs = v1alpha1.LegPairsOf([]string{"p", "q", "p"})
	if err := f.c.Update(f.Context(), lu); err != nil {
		t.Fatal(err)
	}
	for i, want := range []v1alpha1.Placement{{Pair: "p", Home: "b"}, {Pair: "q", Home: "a"}, {Pair: "p", Home: "a"}} {
		leg := f.leg(i)
		leg.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", i))
		if err := f.c.Update(f.Context(), leg); err != nil {
			t.Fatal(err)
		}
		// The pair is asked only when the placement is written, and may not exist here.
		_, _ = f.r.Reconcile(f.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(leg)})
		leg = f.leg(i)
		if at := leg.Spec.Placement; at == nil || at.Pair != want.Pair || at.Home != want.Home || at.LegPairs != nil {
			t.Errorf("leg %d: %+v", i, at)
			continue
		}
		if why := leg.Annotations[v1alpha1.AnnotationPlaced]; !strings.Contains(why, "pairs p, q") || !strings.Contains(why, "of pair "+want.Pair) {
			t.Errorf("leg %d: %s", i, why)
		}
	}
}
