package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Values of ConsistencyGroup.spec.spread.
const (
	SpreadNodes = "Nodes"
	SpreadNone  = "None"
)

// GroupMembersShown is how many members the status of a ConsistencyGroup has.
const GroupMembersShown = 256

// ConsistencyGroupSpec is written by the application team.
type ConsistencyGroupSpec struct {
	// Selector of the claims of this namespace that belong together. It must not be empty, and no
	// claim may be selected by two groups.
	Selector metav1.LabelSelector `json:"selector"`
	// Spread is where the LUNs of the claims have their homes. Nodes: new LUNs are distributed over
	// the pairs, as far as room and nearness leave a choice, and over the two nodes of each pair;
	// existing LUNs are evened out over the two nodes of their pair, one at a time. Data is never
	// moved, nor a LUN that is pinned or has a preferredNode. None: the group changes nothing.
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
	// Members are the claims that have a LUN, by name; the first 256.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Members []GroupMember `json:"members,omitempty"`
	// OmittedMembers is how many members the list leaves out.
	// +optional
	OmittedMembers int32 `json:"omittedMembers,omitempty"`
	// Balance is how many members have their home on each node, "a: 2, b: 1", for each pair with
	// members. All members count, also those that the list leaves out.
	// +optional
	Balance string `json:"balance,omitempty"`
	// LastCut is the last group snapshot that exists of members of this group.
	// +optional
	LastCut *GroupCut `json:"lastCut,omitempty"`
}

// GroupCut is a group snapshot of members of a ConsistencyGroup.
type GroupCut struct {
	// LogicalUnitGroupSnapshot is the name of the object.
	LogicalUnitGroupSnapshot string `json:"logicalUnitGroupSnapshot"`
	// TakenAt is the instant.
	TakenAt metav1.Time `json:"takenAt"`
	// Held is how long the commands of a LUN were held at most.
	// +optional
	Held *metav1.Duration `json:"held,omitempty"`
	// Members is how many members of this group it has. If they are fewer than the group has, its
	// claims were not all named, or some are newer.
	Members int32 `json:"members"`
	// Ready reports whether all its snapshots are complete, and can be restored.
	// +optional
	Ready bool `json:"ready,omitempty"`
}

// GroupMember is a claim of a ConsistencyGroup with its LUN.
type GroupMember struct {
	// Claim is the name of the PersistentVolumeClaim.
	Claim string `json:"claim"`
	// LogicalUnit of the claim.
	LogicalUnit string `json:"logicalUnit"`
	// Pair that the LUN is on.
	Pair string `json:"pair"`
	// Pool of the LUN. Empty: the first one.
	// +optional
	Pool string `json:"pool,omitempty"`
	// Node that owns the LUN, a or b; updated lazily.
	// +optional
	Node string `json:"node,omitempty"`
	// Home is the node that the LUN belongs to, a or b. It is another one than node after a
	// failure, for example.
	// +optional
	Home string `json:"home,omitempty"`
	// Reason says why the home is there.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// ConsistencyGroup is a set of claims whose volumes belong together: their LUNs are spread over the
// nodes of their pairs. When the object is deleted, nothing about the LUNs changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=gcg,categories=gemel
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Claims",type=integer,JSONPath=`.status.claims`
// +kubebuilder:printcolumn:name="Balance",type=string,JSONPath=`.status.balance`
// +kubebuilder:printcolumn:name="Last cut",type=date,JSONPath=`.status.lastCut.takenAt`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
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
