package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConsistencyGroupSpec is written by the application team.
type ConsistencyGroupSpec struct {
	// Selector of the claims of this namespace that are spread, snapshotted and moved together.
	Selector metav1.LabelSelector `json:"selector"`
	// Spread is how the LUNs of the claims are placed: Nodes distributes them to the nodes of a
	// pair, None does not move them.
	// +kubebuilder:validation:Enum=Nodes;None
	// +kubebuilder:default=Nodes
	// +optional
	Spread string `json:"spread,omitempty"`
}

// ConsistencyGroupStatus is the observed state.
type ConsistencyGroupStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Claims is the number of selected claims.
	// +optional
	Claims int32 `json:"claims"`
}

// ConsistencyGroup is a set of claims whose volumes belong together. This release does not support
// it: the object is kept, nothing is done with its claims, and the condition Ready is False with
// reason NotSupported.
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

// ConsistencyGroupList is a list of ConsistencyGroups.
//
// +kubebuilder:object:root=true
type ConsistencyGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConsistencyGroup `json:"items"`
}
