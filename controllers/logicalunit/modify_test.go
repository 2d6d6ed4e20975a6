package logicalunit

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// What differs from the spec is sent to the pair until it matches; fields that the spec does not
// set stay. The operator moves no LUN: the pair moves it to its preferred node.
func TestModifyRepeatsUntilThePairMatches(t *testing.T) {
	f := setup(t, nil)
	lu, _, _ := f.look()
	if lu.Status.PreferredNode != "a" || lu.Status.WriteCache != v1alpha1.WriteBack || slices.ContainsFunc(f.calls, func(c string) bool { return c[:3] == "mod" }) {
		t.Fatalf("%+v, %v", lu.Status, f.calls)
	}
	f.fail["modify b write-through"] = codes.Unavailable
	f.spec(func(lu *v1alpha1.LogicalUnit) {
		lu.Spec.PreferredNode, lu.Spec.WriteCache = "b", v1alpha1.WriteThrough
		hosts("iqn.2026-11.x:a")(lu)
	})
	lu, _, err := f.look()
	if err == nil || condition(lu, "Ready") != "False PairDown" || condition(lu, "Published") != "True Ready" || lu.Status.WriteCache != v1alpha1.WriteBack || lu.Status.PreferredNode != "a" {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	delete(f.fail, "modify b write-through")
	lu, _, err = f.look()
	if !slices.Contains(f.calls, "modify b write-through") || slices.Contains(f.calls, "move b") {
		t.Error(f.calls)
	}
	if err != nil || condition(lu, "Ready") != "True Ready" || lu.Status.WriteCache != v1alpha1.WriteThrough || lu.Status.PreferredNode != "b" || lu.Status.Owner != "a" {
		t.Fatalf("%+v, %v", lu.Status, err)
	}
	f.look()
	if slices.Contains(f.calls, "modify b write-through") {
		t.Error("modified again")
	}
	// A change on the pair is reverted to the spec; fields that the spec does not set stay.
	f.lun.WriteCache = targetv1.WriteCache_WRITE_CACHE_WRITE_BACK
	if f.look(); !slices.Contains(f.calls, "modify  write-through") {
		t.Error(f.calls)
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode, lu.Spec.WriteCache = "", "" })
	if lu, _, _ := f.look(); lu.Status.WriteCache != v1alpha1.WriteThrough || lu.Status.PreferredNode != "b" {
		t.Errorf("%+v, %v", lu.Status, f.calls)
	}
}

// The pin of the spec is set, and ended; while it is set, the preferred node of the spec is not
// sent, and afterwards it is. The condition says what a LUN waits for that is not where it is
// pinned.
func TestPin(t *testing.T) {
	f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.PreferredNode = "a" })
	f.look()
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "b" })
	says := func(text string) {
		t.Helper()
		lu, _, err := f.look()
		if c := meta.FindStatusCondition(lu.Status.Conditions, "Ready"); err != nil || c.Status != "True" || !strings.Contains(c.Message, text) || lu.Status.PinnedNode != "b" {
			t.Errorf("%+v %v", lu.Status, err)
		}
	}
	says("it is pinned to node b, and node a owns it: node b is no member of the pair at present")
	pair := &v1alpha1.TargetPair{}
	pair.Name = "p"
	if err := f.c.Get(t.Context(), client.ObjectKeyFromObject(pair), pair); err != nil {
		t.Fatal(err)
	}
	update := func(o *v1alpha1.OwnershipStatus) {
		t.Helper()
		pair.Status.Members, pair.Status.Ownership = []string{"a", "b"}, o
		if err := f.c.Update(t.Context(), pair); err != nil {
			t.Fatal(err)
		}
	}
	update(&v1alpha1.OwnershipStatus{DrainedNode: "b", DrainReason: "new disk"})
	says("node b is drained: new disk")
	update(nil)
	says("the pair moves it there")
	f.lun.Owner, f.lun.PreferredNode = "b", "b" // it has
	if lu, _, err := f.look(); err != nil || slices.ContainsFunc(f.calls, func(c string) bool { return c[:3] == "mod" }) || lu.Status.PreferredNode != "b" {
		t.Errorf("%v %v", f.calls, err)
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "" })
	lu, _, err := f.look()
	if err != nil || !slices.Contains(f.calls, "modifypin none") || !slices.Contains(f.calls, "modify a") || lu.Status.PinnedNode != "" || lu.Status.PreferredNode != "a" {
		t.Errorf("%v %v %+v", f.calls, err, lu.Status)
	}
}

// A LUN that the pair has quarantined is not Ready, with what to do, and its hosts stay mapped.
func TestQuarantinedLUN(t *testing.T) {
	f := setup(t, hosts("iqn.2026-11.x:a"))
	f.look()
	f.lun.Quarantine = "a command of this LUN ended the process of node a, and within 2s that of node b"
	lu, _, err := f.look()
	c := meta.FindStatusCondition(lu.Status.Conditions, "Ready")
	if err != nil || condition(lu, "Ready") != "False Quarantined" || !strings.Contains(c.Message, f.lun.Quarantine) || !strings.Contains(c.Message, "kubectl gemel end-quarantine "+lu.Name) ||
		condition(lu, "Published") != "True Ready" || len(lu.Status.Hosts) != 1 {
		t.Errorf("%+v, %v", lu.Status, err)
	}
	f.lun.Quarantine = ""
	if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "True Ready" {
		t.Errorf("%+v, %v", lu.Status, err)
	}
}

// A LUN with a pin is created at that node by a pair that knows no pins, everything else of the
// spec is carried out, and the condition says what is missing. It is pinned when the pair can do
// so.
func TestPinThatThePairDoesNotKnow(t *testing.T) {
	for name, spoil := range map[string]func(*fixture, bool){
		"a mixed pair": func(f *fixture, on bool) {
			if delete(f.fail, "modifypin b"); on {
				f.fail["modifypin b"] = codes.Unimplemented
			}
		},
		"a pair of a release before": func(f *fixture, on bool) { f.unpinnable = on },
	} {
		f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.PinnedNode = "b" })
		spoil(f, true)
		f.look()
		if f.asked.PreferredNode != "b" || f.asked.PinnedNode != "" {
			t.Errorf("%s: created as %v", name, f.asked)
		}
		f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.WriteCache = v1alpha1.WriteThrough })
		lu, res, err := f.look()
		c := meta.FindStatusCondition(lu.Status.Conditions, "Ready")
		if err != nil || res.RequeueAfter == 0 || c.Reason != v1alpha1.ReasonNotSupported || !strings.Contains(c.Message, "spec.pinnedNode") ||
			lu.Status.WriteCache != v1alpha1.WriteThrough || lu.Status.PinnedNode != "" || condition(lu, "Published") != "True Ready" {
			t.Errorf("%s: %+v %v", name, lu.Status, err)
		}
		spoil(f, false)
		if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "True Ready" || lu.Status.PinnedNode != "b" {
			t.Errorf("%s: %+v %v", name, lu.Status, err)
		}
	}
}

// The tier of the spec is set when the LUN exists, and ended; the condition says what is missing.
func TestTierOfALUN(t *testing.T) {
	f := setup(t, func(lu *v1alpha1.LogicalUnit) { lu.Spec.Tier = v1alpha1.TierFast })
	lu, _, err := f.look()
	if err != nil || f.asked.PinnedTier != "" || !slices.Contains(f.calls, "modifytier fast") || lu.Status.Tier != v1alpha1.TierFast || condition(lu, "Ready") != "True Ready" {
		t.Fatalf("%+v, %v, %v", lu.Status, f.calls, err)
	}
	if f.look(); slices.Contains(f.calls, "modifytier fast") {
		t.Error("pinned again")
	}
	f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Tier = "" })
	if lu, _, err = f.look(); err != nil || !slices.Contains(f.calls, "modifytier none") || lu.Status.Tier != "" {
		t.Errorf("%+v, %v, %v", lu.Status, f.calls, err)
	}
	for code, want := range map[codes.Code]string{codes.InvalidArgument: v1alpha1.ReasonInvalid, codes.Unimplemented: v1alpha1.ReasonNotSupported} {
		f.fail["modifytier capacity"] = code
		f.spec(func(lu *v1alpha1.LogicalUnit) { lu.Spec.Tier = v1alpha1.TierCapacity })
		lu, res, err := f.look()
		c := meta.FindStatusCondition(lu.Status.Conditions, "Ready")
		if err != nil || res.RequeueAfter == 0 || c.Reason != want || !strings.Contains(c.Message, "spec.tier") || lu.Status.Tier != "" || condition(lu, "Published") != "True Ready" {
			t.Errorf("%v: %+v %v", code, lu.Status, err)
		}
	}
	delete(f.fail, "modifytier capacity")
	if lu, _, err := f.look(); err != nil || condition(lu, "Ready") != "True Ready" || lu.Status.Tier != v1alpha1.TierCapacity {
		t.Errorf("%+v %v", lu.Status, err)
	}
	disk, err := FromDisk("p0", &targetv1.LUN{Uuid: "u", PinnedTier: "fast", Labels: map[string]string{LabelObject: "o", LabelCluster: "c"}})
	if err != nil || disk.Spec.Tier != v1alpha1.TierFast {
		t.Errorf("%+v %v", disk, err)
	}
}
