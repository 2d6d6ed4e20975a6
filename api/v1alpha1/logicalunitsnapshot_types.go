package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LogicalUnitSnapshotSpec is written by the CSI driver, except placement, which the operator writes
// once.
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster",message="cluster: a snapshot stays in its cluster"
// +kubebuilder:validation:XValidation:rule="self.source == oldSelf.source",message="source: what a snapshot was taken of does not change"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.placement) || (has(self.placement) && self.placement == oldSelf.placement)",message="placement: it is written once, before the snapshot is taken"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.striped) || (has(self.striped) && self.striped == oldSelf.striped)",message="striped: it is written once, with the placement"
// +kubebuilder:validation:XValidation:rule="has(self.leg) == has(oldSelf.leg) && (!has(self.leg) || self.leg == oldSelf.leg)",message="leg: which part of a snapshot an object is does not change"
// +kubebuilder:validation:XValidation:rule="!has(self.leg) || !has(self.striped)",message="leg: a part of a snapshot has no parts"
// +kubebuilder:validation:XValidation:rule="!oldSelf.destroy || self.destroy",message="destroy: it cannot be taken back"
type LogicalUnitSnapshotSpec struct {
	// Cluster is the StorageCluster of the snapshot.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cluster string `json:"cluster"`
	// Source is the LogicalUnit that the snapshot is of. The snapshot outlives it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Source string `json:"source"`
	// Name in the CSI request.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// Group is the LogicalUnitGroupSnapshot that the snapshot is taken with. A snapshot of a
	// striped volume always has one; if it is of that volume alone, it has the snapshot's name.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`
	// Striped is the layout of the source, if that is a striped volume. Such an object has no data
	// of its own: each leg has a LogicalUnitSnapshot, named after this one with its number, and
	// with the label gemel.storage/striped. It is Ready when all legs are. The operator writes it,
	// with the placement.
	// +optional
	Striped *Striping `json:"striped,omitempty"`
	// Leg says which part of the snapshot of a striped volume this one is. The operator writes it,
	// when it creates the object.
	// +optional
	Leg *Leg `json:"leg,omitempty"`
	// Destroy allows the destruction of the snapshot. Only if it is set does deleting the object
	// delete the data.
	// +kubebuilder:default=false
	// +optional
	Destroy bool `json:"destroy"`
	// Placement is the location of the snapshot, on the pair of its source.
	// +optional
	Placement *SnapshotPlacement `json:"placement,omitempty"`
}

// SnapshotPlacement is the location of a snapshot.
type SnapshotPlacement struct {
	// Pair is the TargetPair.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pair string `json:"pair"`
	// Pool of the source. Empty: the first one.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Pool string `json:"pool,omitempty"`
	// LegPairs are the pairs of the legs, if the source is a striped volume that is spread over
	// several; Pair is the first one. Empty: all legs are on Pair.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	LegPairs []LegPair `json:"legPairs,omitempty"`
	// UUID of the snapshot on the disks.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	UUID string `json:"uuid"`
	// SourceUUID is the UUID of the source LUN on the disks. Empty: the source is a striped volume,
	// whose legs have LUNs.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	SourceUUID string `json:"sourceUUID,omitempty"`
}

// LogicalUnitSnapshotStatus is the observed state.
type LogicalUnitSnapshotStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Size of the source when the snapshot was taken; a volume restored from it is at least as
	// large.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// TakenAt is when the snapshot was taken.
	// +optional
	TakenAt *metav1.Time `json:"takenAt,omitempty"`
}

// LogicalUnitSnapshot is a snapshot of a LUN, or of a striped volume.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=lunsnap,categories=gemel
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pair",type=string,JSONPath=`.spec.placement.pair`
// +kubebuilder:printcolumn:name="Taken",type=date,JSONPath=`.status.takenAt`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LogicalUnitSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LogicalUnitSnapshotSpec   `json:"spec"`
	Status LogicalUnitSnapshotStatus `json:"status,omitempty"`
}

// LogicalUnitSnapshotList is a list of LogicalUnitSnapshots.
//
// +kubebuilder:object:root=true
type LogicalUnitSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LogicalUnitSnapshot `json:"items"`
}
