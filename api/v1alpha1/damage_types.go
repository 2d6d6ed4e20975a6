package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeDamage is what the checksums of a node's blocks have shown since the TargetPair was made. A damaged copy of the node that does not own the
// LUN is found by a scrub, and counts there.
type NodeDamage struct {
	// Node is a or b: the one whose disk it was read from.
	Node string `json:"node"`
	// HealedBlocks of 4 KiB did not match their checksums, and were written again from the other node. The events BlocksHealed name the places.
	// +optional
	HealedBlocks int64 `json:"healedBlocks"`
	// LostBlocks of 4 KiB did not match their checksums when somebody asked for them, and no node has a good copy: restore the file or the
	// volume from a backup. One that is asked for again counts again after an hour. The events BlocksLost name the places.
	// +optional
	LostBlocks int64 `json:"lostBlocks"`
	// LastHealed is the last one of them.
	// +optional
	LastHealed *DamagedBlock `json:"lastHealed,omitempty"`
	// LastLost is the last one of them. A block is good again once it is written as a whole.
	// +optional
	LastLost *DamagedBlock `json:"lastLost,omitempty"`
	// Counted is what of the node's own counters is in these numbers, and has been told by events.
	// +optional
	Counted DamageCounted `json:"counted,omitempty"`
}

// DamagedBlock is where and when.
type DamagedBlock struct {
	// UUID of the LUN or snapshot.
	UUID string `json:"uuid"`
	// LogicalUnit that stands for it, if there is one.
	// +optional
	LogicalUnit string `json:"logicalUnit,omitempty"`
	// Offset in bytes.
	Offset int64 `json:"offset"`
	// Time by the node's clock.
	Time metav1.Time `json:"time"`
}

// DamageCounted are counters of one process of a node. The next process begins at 0.
type DamageCounted struct {
	// Process that counts.
	// +optional
	Process string `json:"process,omitempty"`
	// Findings of it.
	// +optional
	Findings int64 `json:"findings,omitempty"`
	// HealedBlocks of it.
	// +optional
	HealedBlocks int64 `json:"healedBlocks,omitempty"`
	// LostBlocks of it.
	// +optional
	LostBlocks int64 `json:"lostBlocks,omitempty"`
}
