package pair

import (
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// A flag that a node of an earlier release does not know is only there when it is asked for.
func TestFullCopiesReachTheNodes(t *testing.T) {
	for _, full := range []bool{false, true} {
		c := &v1alpha1.StorageCluster{Spec: v1alpha1.StorageClusterSpec{FullCopies: full}}
		args := (&Reconciler{}).args(c, &v1alpha1.TargetPair{}, "a", nil)
		if slices.Contains(args, "--full-copies") != full {
			t.Errorf("fullCopies: %v: %q", full, args)
		}
	}
}
