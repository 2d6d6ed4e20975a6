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

	// Replace has a node made anew, with an empty disk that is then copied to: its worker or its disk is lost for good. Take the
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

// Replace names the node that is made anew.
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
