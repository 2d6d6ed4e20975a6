package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OwnershipStatus says which LUNs of a pair are not at home, why, and what has moved. The pair
// decides by itself which node owns a LUN.
type OwnershipStatus struct {
	// Away is the number of LUNs that the other node owns than their preferred node.
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
	// Moves are the last moves that the pair has decided, the newest last.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Moves []OwnershipMove `json:"moves,omitempty"`
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
	// Reason: Drain, Pin, Connectivity, UnusedPath, FailBack, FailBackProbe or Balance.
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
