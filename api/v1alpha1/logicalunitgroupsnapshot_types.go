package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxGroupMembers is the number of LUNs that one group snapshot has at most.
const MaxGroupMembers = 64

// LogicalUnitGroupSnapshotSpec is written by the CSI driver. Members do not change.
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster",message="cluster: a group snapshot stays in its cluster"
// +kubebuilder:validation:XValidation:rule="self.members == oldSelf.members",message="members: what a group snapshot is taken of does not change"
// +kubebuilder:validation:XValidation:rule="!oldSelf.destroy || self.destroy",message="destroy: it cannot be taken back"
type LogicalUnitGroupSnapshotSpec struct {
	// Cluster is the StorageCluster of all members.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cluster string `json:"cluster"`
	// Name in the CSI request.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// Members are the LUNs whose snapshots are taken at one instant, and the names of these
	// snapshots. Each LUN is named once.
	// +listType=map
	// +listMapKey=source
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Members []GroupSnapshotMember `json:"members"`
	// Destroy allows the destruction of the snapshots. Only if it is set does deleting the object
	// delete the data.
	// +kubebuilder:default=false
	// +optional
	Destroy bool `json:"destroy"`
}

// GroupSnapshotMember is one LUN of a group snapshot.
type GroupSnapshotMember struct {
	// Source is the LogicalUnit that the snapshot is of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Source string `json:"source"`
	// Snapshot is the name of the LogicalUnitSnapshot, which the operator creates.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Snapshot string `json:"snapshot"`
}

// LogicalUnitGroupSnapshotStatus is the observed state.
type LogicalUnitGroupSnapshotStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready. It is True when every member is complete on both nodes of its pair, at one
	// instant of all members.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Attempt is the number of the last attempt to cut, from 1. Snapshots of different attempts are
	// never in one group snapshot.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// TakenAt is when the members' commands were held.
	// +optional
	TakenAt *metav1.Time `json:"takenAt,omitempty"`
	// Held is how long the commands of a member were held at most.
	// +optional
	Held *metav1.Duration `json:"held,omitempty"`
}

// LogicalUnitGroupSnapshot is a set of snapshots of several LUNs, taken at one instant: if a write
// is in one of them, so is every write to any member that was acknowledged before that write began.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=lungroupsnap,categories=gemel
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.status.attempt`
// +kubebuilder:printcolumn:name="Held",type=string,JSONPath=`.status.held`
// +kubebuilder:printcolumn:name="Taken",type=date,JSONPath=`.status.takenAt`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LogicalUnitGroupSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LogicalUnitGroupSnapshotSpec   `json:"spec"`
	Status LogicalUnitGroupSnapshotStatus `json:"status,omitempty"`
}

// LogicalUnitGroupSnapshotList is a list of LogicalUnitGroupSnapshots.
//
// +kubebuilder:object:root=true
type LogicalUnitGroupSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LogicalUnitGroupSnapshot `json:"items"`
}

// OfVolume reports whether the object is the snapshot of one striped volume, which somebody asked
// for, and no snapshot of a group.
func (s *LogicalUnitGroupSnapshot) OfVolume() bool {
	return len(s.Spec.Members) == 1 && s.Spec.Members[0].Snapshot == s.Name
}
