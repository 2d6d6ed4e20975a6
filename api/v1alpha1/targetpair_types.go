package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TargetPairSpec is written by the operator, except replace and coldStart.
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster",message="cluster: a pair belongs to one cluster for good"
type TargetPairSpec struct {
	// Cluster is the StorageCluster of the pair.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cluster string `json:"cluster"`

	// Nodes of the pair: a and b.
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=name
	Nodes []PairNode `json:"nodes"`

	// Replace gives a node an empty disk, to which all data is copied, because its worker or its
	// disk is permanently lost. Remove the field when the pair is InSync. It is not done while the
	// other node does not serve.
	// +optional
	Replace *Replace `json:"replace,omitempty"`

	// ColdStart is what a node does if both nodes have rebooted and only one is back: Wait for the
	// other one. To continue without it, an administrator runs kubectl gemel pair promote, because
	// writes may be lost.
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
	// Worker is the Kubernetes node with the disk of this node, chosen once.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Worker string `json:"worker,omitempty"`
	// Domain is the failure domain that the node was laid in when the pair was created: the value
	// of the label failureDomainKey of its worker. It changes only if replace names a worker in
	// another one. Empty: any.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Domain string `json:"domain,omitempty"`
	// Address is the stable IP address of the portal: that of a Service.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Address string `json:"address,omitempty"`
	// Disk counts the sets of backing volumes of this node; replace creates the next one.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Disk int32 `json:"disk"`
}

// Replace names the node to replace, or one of its volumes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.member) || size(self.member) == 0 || !has(self.worker) || size(self.worker) == 0",message="worker: a volume is replaced on the worker of its node; leave worker out, or leave member out to replace the node"
type Replace struct {
	// Node is a or b.
	// +kubebuilder:validation:Enum=a;b
	Node string `json:"node"`
	// Worker to run on. Empty: one is chosen as for a new pair.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Worker string `json:"worker,omitempty"`
	// Member of a pool, as POOL/NAME of status.nodes[].members, whose volume is permanently lost:
	// only this volume is replaced by an empty one, and only what was on it is copied from the
	// other node. Empty: the node is replaced, with all its volumes.
	// +kubebuilder:validation:MaxLength=65
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	// +optional
	Member string `json:"member,omitempty"`
}

// TargetPairStatus is the observed state, for information only. The record of the pair is its
// Lease.
type TargetPairStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready (hosts are served), InSync, Reachable, UpToDate, SpaceAvailable.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// TargetIQN is the iSCSI name of the pair.
	// +optional
	TargetIQN string `json:"targetIQN,omitempty"`
	// Epoch of the record: the number of changes of the membership.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Members are the nodes with every acknowledged write.
	// +listType=atomic
	// +optional
	Members []string `json:"members,omitempty"`
	// Nodes with their status.
	// +listType=map
	// +listMapKey=name
	// +optional
	Nodes []NodeStatus `json:"nodes,omitempty"`
	// Capacity of all pools that every member has, each of the smaller member.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is the free space for LUNs in all these pools.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Pools that every member has a backing volume of, and that LUNs can be created in.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// LogicalUnits is the number of LUNs of the pair, including orphans.
	// +optional
	LogicalUnits int32 `json:"logicalUnits"`
	// Orphans are UUIDs of LUNs on the disks without a LogicalUnit. `kubectl gemel import` creates
	// the objects; orphans are never removed automatically.
	// +listType=atomic
	// +optional
	Orphans []string `json:"orphans,omitempty"`
	// Replaced is the last completed spec.replace.
	// +optional
	Replaced *Replace `json:"replaced,omitempty"`
	// Scrub is the running or last comparison of the copies, and when the next one is due.
	// +optional
	Scrub *ScrubStatus `json:"scrub,omitempty"`
	// Ownership says which LUNs are not at home, why, and what has moved.
	// +optional
	Ownership *OwnershipStatus `json:"ownership,omitempty"`
	// RedundancyLost reports that one node has served without the other one for a minute or longer:
	// claims in use have an event of it, and get another one when both nodes have the data again.
	// +optional
	RedundancyLost bool `json:"redundancyLost,omitempty"`
	// Damage that checksums have found, by node. Nodes without damage are not listed.
	// +listType=map
	// +listMapKey=node
	// +optional
	Damage []NodeDamage `json:"damage,omitempty"`
}

// ScrubStatus is a scrub of the pair: totalBytes is the sum of doneBytes, skippedBytes and the
// remaining bytes.
type ScrubStatus struct {
	// ID of the scrub. Empty: there was none, or it is of a release without IDs.
	// +optional
	ID string `json:"id,omitempty"`
	// Active reports whether the scrub is running.
	// +optional
	Active bool `json:"active"`
	// Origin: Schedule or Person.
	// +optional
	Origin string `json:"origin,omitempty"`
	// Repair reports whether differences are repaired.
	// +optional
	Repair bool `json:"repair,omitempty"`
	// StartedAt is when the first node started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when the last node finished.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// ObservedAt is when the numbers below were read.
	// +optional
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
	// EstimatedCompletion at the rate of the last minute.
	// +optional
	EstimatedCompletion *metav1.Time `json:"estimatedCompletion,omitempty"`
	// TotalBytes of both nodes' shares.
	// +optional
	TotalBytes int64 `json:"totalBytes"`
	// DoneBytes is the number of compared bytes.
	// +optional
	DoneBytes int64 `json:"doneBytes"`
	// SkippedBytes is the number of bytes that are not compared.
	// +optional
	SkippedBytes int64 `json:"skippedBytes"`
	// Skipped has the skipped bytes by reason.
	// +listType=map
	// +listMapKey=reason
	// +optional
	Skipped []ScrubSkip `json:"skipped,omitempty"`
	// MismatchedRanges is the number of ranges of 1 MiB that differed. An event names each
	// location.
	// +optional
	MismatchedRanges int64 `json:"mismatchedRanges"`
	// RepairedRanges is the number of repaired ranges. An event names each location.
	// +optional
	RepairedRanges int64 `json:"repairedRanges"`
	// Reason why the scrub ended early.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Shares of the nodes: each LUN is in the share of the node that owned it at the start.
	// +listType=map
	// +listMapKey=node
	// +optional
	Shares []ScrubShare `json:"shares,omitempty"`
	// LastResult is the result of the last completed scrub, also while the next one is running.
	// +optional
	LastResult *ScrubResult `json:"lastResult,omitempty"`
	// NextAt is when the next scheduled scrub is due; it then waits until the pair is InSync and
	// has its turn (spec.scrub.parallel).
	// +optional
	NextAt *metav1.Time `json:"nextAt,omitempty"`
	// Schedule of nextAt.
	// +optional
	Schedule string `json:"schedule,omitempty"`
}

// ScrubShare is one node's part of a scrub.
type ScrubShare struct {
	// Node is a or b.
	Node string `json:"node"`
	// TotalBytes is the sum of doneBytes, skippedBytes and the remaining bytes.
	// +optional
	TotalBytes int64 `json:"totalBytes"`
	// DoneBytes is the number of compared bytes.
	// +optional
	DoneBytes int64 `json:"doneBytes"`
	// SkippedBytes is the number of bytes that are not compared.
	// +optional
	SkippedBytes int64 `json:"skippedBytes"`
	// Findings is the number of findings with events.
	// +optional
	Findings int64 `json:"findings,omitempty"`
}

// ScrubSkip is what was not compared for one reason.
type ScrubSkip struct {
	// Reason: moved, deleted, not readable, not in sync, busy, refused or not repaired.
	Reason string `json:"reason"`
	// Ranges of 1 MiB.
	// +optional
	Ranges int64 `json:"ranges"`
	// Bytes of the ranges.
	// +optional
	Bytes int64 `json:"bytes"`
}

// ScrubResult is the result of a scrub.
type ScrubResult struct {
	// ID of the scrub.
	// +optional
	ID string `json:"id,omitempty"`
	// Result: Clean, Repaired, Mismatched (ranges still differ), Incomplete (ranges were skipped)
	// or Stopped (it ended early).
	Result string `json:"result"`
	// StartedAt is when the first node started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// FinishedAt is when the last node finished.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// TotalBytes of both nodes' shares.
	// +optional
	TotalBytes int64 `json:"totalBytes"`
	// DoneBytes is the number of compared bytes.
	// +optional
	DoneBytes int64 `json:"doneBytes"`
	// MismatchedRanges is the number of ranges of 1 MiB that differed.
	// +optional
	MismatchedRanges int64 `json:"mismatchedRanges"`
	// RepairedRanges is the number of repaired ranges.
	// +optional
	RepairedRanges int64 `json:"repairedRanges"`
	// Reason why the scrub ended early.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// NodeStatus is the status of one node.
type NodeStatus struct {
	// Name is a or b.
	Name string `json:"name"`
	// Phase: InSync, Resyncing, Alone, Joining, Fenced, Starting, or Unknown if the node does not
	// answer.
	// +optional
	Phase string `json:"phase,omitempty"`
	// Reason is what is wrong and what to do, empty if the node is healthy.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Pod of the node.
	// +optional
	Pod string `json:"pod,omitempty"`
	// Image of the pod.
	// +optional
	Image string `json:"image,omitempty"`
	// Owned is the number of LUNs that the node owns: their optimized path is through it.
	// +optional
	Owned int32 `json:"owned"`
	// ResyncPercent is the progress of a running copy to the other node.
	// +optional
	ResyncPercent *int32 `json:"resyncPercent,omitempty"`
	// Crashes of the node's process since its container started; absent if there were none.
	// +optional
	Crashes *NodeCrashes `json:"crashes,omitempty"`
	// Members of pools that have more than one volume on the node, as the node reports them.
	// +listType=atomic
	// +optional
	Members []MemberStatus `json:"members,omitempty"`
}

// MemberStatus is one volume of a pool on one node.
type MemberStatus struct {
	// Pool of the volume.
	Pool string `json:"pool"`
	// Name of the member; home is the volume of the pool itself.
	Name string `json:"name"`
	// Tier: Fast or Capacity.
	// +optional
	Tier string `json:"tier,omitempty"`
	// Capacity of the volume.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is the free space.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Draining reports whether data moves away from the volume.
	// +optional
	Draining bool `json:"draining,omitempty"`
	// ExtentsLeft is the number of extents of 4 MiB, written or not, that have not moved yet.
	// +optional
	ExtentsLeft int64 `json:"extentsLeft,omitempty"`
	// Reason why the volume does not become empty, or how it differs from other members of its
	// tier.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// NodeCrashes are those of the process of a node. Its supervisor starts it again, so the container
// is not restarted.
type NodeCrashes struct {
	// Count of them.
	Count int64 `json:"count"`
	// Last is how the last one ended.
	Last string `json:"last"`
	// Time of the last one.
	Time metav1.Time `json:"time"`
}

// Serves reports whether hosts are served through the node, by its phase.
func (n *NodeStatus) Serves() bool {
	return n.Phase == "InSync" || n.Phase == "Alone" || n.Phase == "Resyncing"
}

// TargetPair is a pair of target nodes with the same LUNs.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gtp,categories=gemel
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="InSync",type=string,JSONPath=`.status.conditions[?(@.type=="InSync")].status`
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

// TargetPairList is a list of TargetPairs.
//
// +kubebuilder:object:root=true
type TargetPairList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TargetPair `json:"items"`
}
