package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeDamage is the damage that checksums have found on a node since the creation of the
// TargetPair. Damage on the node that does not own the LUN is found by a scrub, and counts there.
type NodeDamage struct {
	// Node whose disk has the damage: a or b.
	Node string `json:"node"`
	// HealedBlocks is the number of blocks of 4 KiB that did not match their checksums and were
	// healed from the other node. The events BlocksHealed name their locations.
	// +optional
	HealedBlocks int64 `json:"healedBlocks"`
	// LostBlocks is the number of blocks of 4 KiB that did not match their checksums when they were
	// read, with no good copy on any node: restore the file or the volume from a backup. A block
	// that is read again counts again after an hour. The events BlocksLost name their locations.
	// +optional
	LostBlocks int64 `json:"lostBlocks"`
	// LastHealed is the last healed block.
	// +optional
	LastHealed *DamagedBlock `json:"lastHealed,omitempty"`
	// LastLost is the last lost block. A block is good again once it is written as a whole.
	// +optional
	LastLost *DamagedBlock `json:"lastLost,omitempty"`
	// Counted is the part of the node's counters that these numbers and the events include.
	// +optional
	Counted DamageCounted `json:"counted,omitempty"`
}

// DamagedBlock is the location and time of damage.
type DamagedBlock struct {
	// UUID of the LUN or snapshot.
	UUID string `json:"uuid"`
	// LogicalUnit of the LUN, if it exists.
	// +optional
	LogicalUnit string `json:"logicalUnit,omitempty"`
	// Offset in bytes.
	Offset int64 `json:"offset"`
	// Time by the node's clock.
	Time metav1.Time `json:"time"`
}

// DamageCounted are counters of one process of a node. The next process counts from 0.
type DamageCounted struct {
	// Process of the counters.
	// +optional
	Process string `json:"process,omitempty"`
	// Findings of the process.
	// +optional
	Findings int64 `json:"findings,omitempty"`
	// HealedBlocks of the process.
	// +optional
	HealedBlocks int64 `json:"healedBlocks,omitempty"`
	// LostBlocks of the process.
	// +optional
	LostBlocks int64 `json:"lostBlocks,omitempty"`
}
