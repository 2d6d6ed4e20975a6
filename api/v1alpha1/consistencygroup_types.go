package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConsistencyGroupSpec is written by the app team.
type ConsistencyGroupSpec struct {
	// Selector of the claims of this namespace that are spread, snapshotted and moved together.
	Selector metav1.LabelSelector `json:"selector"`
	// Spread is how the LUNs of its claims are placed: Nodes gives each of a pair's nodes its share, None leaves them.
	// +kubebuilder:validation:Enum=Nodes;None
	// +kubebuilder:default=Nodes
	// +optional
	Spread string `json:"spread,omitempty"`
}

// ConsistencyGroupStatus is what the operator has found.
type ConsistencyGroupStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Claims that belong to it.
	// +optional
	Claims int32 `json:"claims"`
}

// ConsistencyGroup is a set of claims whose volumes belong together. This release does not support it: it is kept as it was written, nothing is
// done with its claims, and the condition Ready says so.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=gcg,categories=gemel
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Claims",type=integer,JSONPath=`.status.claims`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ConsistencyGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ConsistencyGroupSpec   `json:"spec"`
	Status ConsistencyGroupStatus `json:"status,omitempty"`
}

// ConsistencyGroupList is a list of them.
//
// +kubebuilder:object:root=true
type ConsistencyGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConsistencyGroup `json:"items"`
}
