package logicalunit

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

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
