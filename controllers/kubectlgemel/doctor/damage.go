package doctor

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

const (
	// lostFor: a lost block that is still lost is counted again when it is read, at the latest by
	// the weekly scrub. Two of them have passed then.
	lostFor = 14 * 24 * time.Hour
	// healedFor: a healed block is good; only its repetition says something about the disk.
	healedFor = 7 * 24 * time.Hour
)

// blocksLost: no node has a good copy of a block.
func blocksLost(x *exam) {
	damage(x, func(p *v1alpha1.TargetPair, d *v1alpha1.NodeDamage) {
		l := d.LastLost
		if d.LostBlocks == 0 || l != nil && x.age(l.Time) >= lostFor {
			return
		}
		x.add(kindPair, p.Name, Finding{Severity: Critical, Problem: "data is lost: node " + d.Node + " has blocks of which no node has a good copy", Cause: "a disk, its controller, its memory or a person has changed the blocks at both nodes, or at the only node that had the data",
			Evidence: []string{fmt.Sprintf("node %s: %d blocks lost since the TargetPair was made%s", d.Node, d.LostBlocks, x.last(l))},
			Procedure: []string{"hosts get MEDIUM ERROR for these blocks only; the events BlocksLost name each place: kubectl get events -A --field-selector reason=" + v1alpha1.ReasonBlocksLost,
				"if a node of the pair is missing, start it first: it may have the data",
				"otherwise restore the file or the volume from a backup; a block is good again once all of it is written",
				fmt.Sprintf("this finding ends %d days after a lost block was read last; see docs/operations.md#damaged-blocks and docs/kubernetes.md#damaged-blocks", int(lostFor.Hours()/24))}})
	})
}

// blocksHealed: a disk damages data.
func blocksHealed(x *exam) {
	damage(x, func(p *v1alpha1.TargetPair, d *v1alpha1.NodeDamage) {
		l := d.LastHealed
		if d.HealedBlocks == 0 || l == nil || x.age(l.Time) >= healedFor {
			return
		}
		x.add(kindPair, p.Name, Finding{Severity: Note, Problem: "node " + d.Node + " had damaged blocks, which were healed from the other node", Cause: "the disk of node " + d.Node + ", its controller or its memory changes data",
			Evidence: []string{fmt.Sprintf("node %s: %d blocks healed since the TargetPair was made%s", d.Node, d.HealedBlocks, x.last(l))},
			Procedure: []string{"nothing, if it happens once; check the disk if it happens again, and replace it with spec.replace: docs/kubernetes.md#a-node-or-its-disk-is-lost-for-good",
				fmt.Sprintf("this finding ends %d days after the last healed block; see docs/operations.md#damaged-blocks", int(healedFor.Hours()/24))}})
	})
}

func damage(x *exam, look func(*v1alpha1.TargetPair, *v1alpha1.NodeDamage)) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		for j := range p.Status.Damage {
			look(p, &p.Status.Damage[j])
		}
	}
}

// last is the place of a block.
func (x *exam) last(b *v1alpha1.DamagedBlock) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf(", the last one at byte %d of %s, %s", b.Offset, cmp.Or(b.LogicalUnit, b.UUID), x.since(b.Time))
}
