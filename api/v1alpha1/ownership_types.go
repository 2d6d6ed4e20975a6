package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OwnershipStatus says which LUNs of a pair are not at home, why, and what has moved. The pair
// decides by itself which node owns a LUN.
type OwnershipStatus struct {
	// Away is the number of LUNs that another node owns than the one that they are pinned to, or
	// else their preferred node.
	// +optional
	Away int32 `json:"away"`
	// WaitsFor is what the first of these LUNs waits for.
	// +optional
	WaitsFor string `json:"waitsFor,omitempty"`
	// DrainedNode is the node that LUNs do not move to at present. Empty: no node is drained.
	// +optional
	DrainedNode string `json:"drainedNode,omitempty"`
	// DrainReason is why the node is drained.
	// +optional
	DrainReason string `json:"drainReason,omitempty"`
	// Mode of balancing that is in force: Auto, Observe or Off. Empty: the nodes do not say.
	// +optional
	Mode string `json:"mode,omitempty"`
	// FailBackDelay that is in force.
	// +optional
	FailBackDelay *metav1.Duration `json:"failBackDelay,omitempty"`
	// PolicyVersion is the generation of the StorageCluster that mode and failBackDelay are of. 0:
	// none has set them, and they are those of the targets' flags.
	// +optional
	PolicyVersion int64 `json:"policyVersion,omitempty"`
	// Held is the number of LUNs that a transfer by a person keeps at their owner.
	// +optional
	Held int32 `json:"held,omitempty"`
	// HeldUntil is when the last of these transfers ends.
	// +optional
	HeldUntil *metav1.Time `json:"heldUntil,omitempty"`
	// Moves are the last moves that the pair has decided, the newest last.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Moves []OwnershipMove `json:"moves,omitempty"`
}

// MovesShown is how many moves the status of a LogicalUnit and of a Host has, and the most that
// their CRDs allow.
const MovesShown = 4

// LogicalUnitMove is a change of the owner of a LUN.
type LogicalUnitMove struct {
	// From is the former owner.
	From string `json:"from"`
	// To is the new owner.
	To string `json:"to"`
	// Reason as the pair reports it: Drain, Pin, Connectivity, UnusedPath, Nearness, FailBack,
	// FailBackProbe or Balance. Derived by the operator: OwnerGone (the former owner had left the
	// pair), Drain, Pin, Transfer (by a person) or Unknown.
	Reason string `json:"reason"`
	// Message is what decided.
	// +optional
	Message string `json:"message,omitempty"`
	// Derived reports that the pair no longer names this move, or does not name moves of its kind:
	// the operator saw the new owner at this time, and derived the reason from the state of the
	// pair.
	// +optional
	Derived bool `json:"derived,omitempty"`
	// Time by the node's clock; if derived, by the operator's clock, and the move was up to about a
	// minute earlier.
	Time metav1.Time `json:"time"`
}

// OwnershipMove is the move of a LUN to the other node.
type OwnershipMove struct {
	// UUID of the LUN.
	UUID string `json:"uuid"`
	// LogicalUnit of the LUN, if it exists.
	// +optional
	LogicalUnit string `json:"logicalUnit,omitempty"`
	// From is the former owner.
	From string `json:"from"`
	// To is the new owner.
	To string `json:"to"`
	// Reason: Drain, Pin, Connectivity, UnusedPath, Nearness, FailBack, FailBackProbe or Balance.
	Reason string `json:"reason"`
	// Message is what decided.
	// +optional
	Message string `json:"message,omitempty"`
	// Observed reports that the policy of the nodes forbids the move: it was not made.
	// +optional
	Observed bool `json:"observed,omitempty"`
	// Time by the node's clock.
	Time metav1.Time `json:"time"`
}
