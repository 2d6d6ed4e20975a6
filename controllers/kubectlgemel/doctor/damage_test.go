package doctor

import (
	"testing"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func damaged(d v1alpha1.NodeDamage) func(*Objects) {
	return func(o *Objects) { d.Node = "a"; o.Pairs[0].Status.Damage = []v1alpha1.NodeDamage{d} }
}

func block(d time.Duration) *v1alpha1.DamagedBlock {
	return &v1alpha1.DamagedBlock{UUID: "u", LogicalUnit: "lun-00002", Offset: 8192, Time: ago(d)}
}

var blocksOfBoth = v1alpha1.NodeDamage{HealedBlocks: 3, LastHealed: block(time.Hour), LostBlocks: 2, LastLost: block(time.Hour)}

var damageCases = []trouble{
	{"a block", "BlocksLost", Critical, "TargetPair/main-p0", damaged(v1alpha1.NodeDamage{LostBlocks: 2, LastLost: block(time.Hour)}),
		map[string]func(*Objects){"gone": damaged(v1alpha1.NodeDamage{LostBlocks: 2, LastLost: block(15 * day)})}, []string{"2 blocks lost", "byte 8192 of lun-00002", "from a backup"}},
	{"a block", "BlocksHealed", Note, "TargetPair/main-p0", damaged(v1alpha1.NodeDamage{HealedBlocks: 3, LastHealed: block(time.Hour)}),
		map[string]func(*Objects){"gone": damaged(v1alpha1.NodeDamage{HealedBlocks: 3, LastHealed: block(8 * day)})}, []string{"3 blocks healed", "byte 8192 of lun-00002"}},
}

func TestDamage(t *testing.T) { check(t, damageCases) }
