package kubectlgemel

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The status of a pair says in words what is not at home, and why the last LUN moved.
func TestStatusShowsOwnership(t *testing.T) {
	var b strings.Builder
	printOwnership(&b, "", nil)
	printOwnership(&b, "", &v1alpha1.OwnershipStatus{})
	printOwnership(&b, "", &v1alpha1.OwnershipStatus{Mode: "Auto"})
	if b.Len() != 0 {
		t.Errorf("%q", b.String())
	}
	printOwnership(&b, "  ", &v1alpha1.OwnershipStatus{Mode: "Observe", Away: 3, WaitsFor: "node b is drained", DrainedNode: "b", DrainReason: "restart", Held: 2, HeldUntil: &metav1.Time{Time: time.Unix(60, 0)},
		Moves: []v1alpha1.OwnershipMove{{UUID: "u"}, {UUID: "u", LogicalUnit: "lun-1", From: "a", To: "b", Reason: "FailBack", Message: "it is back", Time: metav1.Unix(0, 0)}}})
	want := "  balancing is Observe: no LUN moves by itself, except for pins and drains\n  node b is drained: restart\n  3 LUNs are not at home: node b is drained\n  2 LUNs are held by a person's transfer, the last until 1970-01-01T00:01:00Z\n  last move: lun-1 from node a to node b 1970-01-01T00:00:00Z, FailBack: it is back\n"
	if b.String() != want {
		t.Errorf("%q", b.String())
	}
}
