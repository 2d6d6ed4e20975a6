package kubectlgemel

import (
	"bytes"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Damage is printed with its last location, and only for nodes with damage.
func TestDamageIsPrintedWithItsLastLocation(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC))
	var out bytes.Buffer
	printDamage(&out, "  ", []v1alpha1.NodeDamage{{Node: "a", HealedBlocks: 3, LastHealed: &v1alpha1.DamagedBlock{UUID: "u", LogicalUnit: "pvc-1", Offset: 4096, Time: at}},
		{Node: "b", HealedBlocks: 1, LostBlocks: 2, LastLost: &v1alpha1.DamagedBlock{UUID: "u", Offset: 8192, Time: at}}, {Node: "c"}})
	want := `  node a: 3 damaged blocks healed from the other node, last 2026-11-24T09:00:00Z at byte 4096 of pvc-1
  node b: 1 damaged blocks healed from the other node
  node b: 2 blocks lost (no node has a good copy: restore from a backup), last 2026-11-24T09:00:00Z at byte 8192 of u
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}
