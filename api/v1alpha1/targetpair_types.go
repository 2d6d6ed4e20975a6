package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TargetPairSpec is written by the operator, but for replace and coldStart.
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster",message="cluster: a pair belongs to one cluster for good"
type TargetPairSpec struct {
	// Cluster is the StorageCluster that it belongs to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cluster string `json:"cluster"`

	// Nodes of the pair: a and b.
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=name
	Nodes []PairNode `json:"nodes"`

	// Replace has a node made again with an empty disk, which is then copied to: its worker or its disk is lost for good. Take the
	// field out again when the pair is in sync. Refused while the other node does not serve.
	// +optional
	Replace *Replace `json:"replace,omitempty"`

	// ColdStart is what happens when both nodes have rebooted and only one comes back: Wait for the other one. The other
	// answer, to go on without it, is an administrator's command, because writes may be lost by it.
	// +kubebuilder:validation:Enum=Wait
	// +kubebuilder:default=Wait
	// +optional
	ColdStart string `json:"coldStart,omitempty"`
}

// PairNode is one node of a pair.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.address) || (has(self.address) && self.address == oldSelf.address)",message="address: sessions know it; it is never changed"
type PairNode struct {
	// Name is a or b.
	// +kubebuilder:validation:Enum=a;b
	Name string `json:"name"`
	// Worker is the Kubernetes node that it runs on, chosen once; its disk is there.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Worker string `json:"worker,omitempty"`
	// Address is the stable IP address of its portal, a Service's.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Address string `json:"address,omitempty"`
	// Disk counts the sets of backing volumes that this node has had; replace makes the next one.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Disk int32 `json:"disk"`
}

// Replace names the node that is made again.
type Replace struct {
	// Node is a or b.
	// +kubebuilder:validation:Enum=a;b
	Node string `json:"node"`
	// Worker that is to be its home. Empty: one is chosen as for a new pair.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Worker string `json:"worker,omitempty"`
}

// TargetPairStatus is a copy for people; nothing decides by it. The record itself is the pair's Lease.
type TargetPairStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready (hosts are served), InSync, Reachable, UpToDate.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// TargetIQN is the iSCSI name of the pair.
	// +optional
	TargetIQN string `json:"targetIQN,omitempty"`
	// Epoch of the record: it counts changes of the membership.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Members that hold every acknowledged write.
	// +listType=atomic
	// +optional
	Members []string `json:"members,omitempty"`
	// Nodes as each says of itself.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []NodeStatus `json:"nodes,omitempty"`
	// Capacity of all pools that every member has, each as the smaller member has it.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is what LUNs can still take, in all these pools together.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Pools that every member has a backing volume of: those that LUNs can be made in.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// LogicalUnits that it holds, with those that no object stands for.
	// +optional
	LogicalUnits int32 `json:"logicalUnits"`
	// Orphans are uuids of LUNs on the disks that no LogicalUnit stands for. `kubectl gemel import` makes the objects; nothing
	// removes them by itself.
	// +listType=atomic
	// +optional
	Orphans []string `json:"orphans,omitempty"`
	// Replaced is the last spec.replace that was carried out.
	// +optional
	Replaced *Replace `json:"replaced,omitempty"`
	// Scrub is the comparison of the copies that is under way, or the last one, and when the next one is due.
	// +optional
	Scrub *ScrubStatus `json:"scrub,omitempty"`
	// Damage that the checksums of a node's blocks have shown. A node that is not in it has shown none.
	// +listType=map
	// +listMapKey=node
	// +optional
	Damage []NodeDamage `json:"damage,omitempty"`
}

// ScrubStatus is a scrub of the pair: totalBytes is the sum of doneBytes, skippedBytes and what is still to do.
type ScrubStatus struct {
	// ID of the scrub that this speaks of. Empty: there was none, or it is one of a release that tells no ids.
	// +optional
	ID string `json:"id,omitempty"`
	// Active while it is under way.
	// +optional
	Active bool `json:"active"`
	// Origin: Schedule or Person.
	// +optional
	Origin string `json:"origin,omitempty"`
	// Repair: what differs is written again.
	// +optional
	Repair bool `json:"repair,omitempty"`
	// StartedAt is when the first node began.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when the last node had ended.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// ObservedAt is when the numbers below were told.
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
	// EstimatedCompletion at the rate of the last minute.
	// +optional
	EstimatedCompletion *metav1.Time `json:"estimatedCompletion,omitempty"`
	// TotalBytes of both nodes' shares.
	// +optional
	TotalBytes int64 `json:"totalBytes"`
	// DoneBytes have been compared.
	// +optional
	DoneBytes int64 `json:"doneBytes"`
	// SkippedBytes have not been compared, and will not be.
	// +optional
	SkippedBytes int64 `json:"skippedBytes"`
	// Skipped is the same by reason.
	// +listType=map
	// +listMapKey=reason
	// +optional
	Skipped []ScrubSkip `json:"skipped,omitempty"`
	// MismatchedRanges of 1 MiB differed. Each is an event with its place.
	// +optional
	MismatchedRanges int64 `json:"mismatchedRanges"`
	// RepairedRanges of them were written again. Each is an event with its place.
	// +optional
	RepairedRanges int64 `json:"repairedRanges"`
	// Reason why it ended early.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Shares of the nodes: each LUN is in the share of the node that owned it at the start.
	// +listType=map
	// +listMapKey=node
	// +optional
	Shares []ScrubShare `json:"shares,omitempty"`
	// LastResult is how the last scrub ended, also while the next one is under way.
	// +optional
	LastResult *ScrubResult `json:"lastResult,omitempty"`
	// NextAt is when the schedule has the next one begin; one that is due waits until the pair is in sync and it is its turn.
	// +optional
	NextAt *metav1.Time `json:"nextAt,omitempty"`
	// Schedule that nextAt is of.
	// +optional
	Schedule string `json:"schedule,omitempty"`
}

// ScrubShare is one node's part of a scrub.
type ScrubShare struct {
	// Node is a or b.
	Node string `json:"node"`
	// TotalBytes is the sum of doneBytes, skippedBytes and what is still to do.
	// +optional
	TotalBytes int64 `json:"totalBytes"`
	// DoneBytes have been compared.
	// +optional
	DoneBytes int64 `json:"doneBytes"`
	// SkippedBytes have not been compared, and will not be.
	// +optional
	SkippedBytes int64 `json:"skippedBytes"`
	// Findings of this share that events have told.
	// +optional
	Findings int64 `json:"findings,omitempty"`
}

// ScrubSkip is what was not compared, for one reason.
type ScrubSkip struct {
	// Reason: moved, deleted, not readable, not in sync, busy, refused or not repaired.
	Reason string `json:"reason"`
	// Ranges of 1 MiB.
	// +optional
	Ranges int64 `json:"ranges"`
	// Bytes of them.
	// +optional
	Bytes int64 `json:"bytes"`
}

// ScrubResult is how a scrub has ended.
type ScrubResult struct {
	// ID of the scrub.
	// +optional
	ID string `json:"id,omitempty"`
	// Result: Clean, Repaired, Mismatched (something differs still), Incomplete (something was skipped) or Stopped (it ended early).
	Result string `json:"result"`
	// StartedAt is when the first node began.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when the last node had ended.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// TotalBytes of both nodes' shares.
	// +optional
	TotalBytes int64 `json:"totalBytes"`
	// DoneBytes were compared.
	// +optional
	DoneBytes int64 `json:"doneBytes"`
	// MismatchedRanges of 1 MiB differed.
	// +optional
	MismatchedRanges int64 `json:"mismatchedRanges"`
	// RepairedRanges of them were written again.
	// +optional
	RepairedRanges int64 `json:"repairedRanges"`
	// Reason why it ended early.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// NodeStatus is what one node says.
type NodeStatus struct {
	// Name is a or b.
	Name string `json:"name"`
	// Phase: InSync, Resyncing, Alone, Joining, Fenced, Starting, or Unknown when it does not answer.
	// +optional
	Phase string `json:"phase,omitempty"`
	// Reason is what is wrong and what to do, empty when all is well.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Pod that runs it.
	// +optional
	Pod string `json:"pod,omitempty"`
	// Image that it runs.
	// +optional
	Image string `json:"image,omitempty"`
	// Owned is how many LUNs it owns: their optimized path is through it.
	// +optional
	Owned int32 `json:"owned"`
	// ResyncPercent of a copy that is under way to the other node.
	// +optional
	ResyncPercent *int32 `json:"resyncPercent,omitempty"`
}

// TargetPair is two target nodes that hold the same LUNs.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gtp,categories=gemel
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="In sync",type=string,JSONPath=`.status.conditions[?(@.type=="InSync")].status`
// +kubebuilder:printcolumn:name="Members",type=string,JSONPath=`.status.members`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="LUNs",type=integer,JSONPath=`.status.logicalUnits`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="A",type=string,JSONPath=`.status.nodes[?(@.name=="a")].phase`
// +kubebuilder:printcolumn:name="B",type=string,JSONPath=`.status.nodes[?(@.name=="b")].phase`
// +kubebuilder:printcolumn:name="Scrub",type=string,priority=1,JSONPath=`.status.scrub.lastResult.result`
// +kubebuilder:printcolumn:name="Scrubbed",type=date,priority=1,JSONPath=`.status.scrub.lastResult.finishedAt`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TargetPair struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   TargetPairSpec   `json:"spec"`
	Status TargetPairStatus `json:"status,omitempty"`
}

// TargetPairList is a list of them.
//
// +kubebuilder:object:root=true
type TargetPairList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TargetPair `json:"items"`
}
