package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HostSpec is written by the node plugin of that worker, which writes no other one.
type HostSpec struct {
	// IQN is the worker's iSCSI name.
	// +kubebuilder:validation:Pattern=`^iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+(:[^\s/]+)?$`
	// +kubebuilder:validation:MaxLength=223
	IQN string `json:"iqn"`
	// MachineID of the worker's operating system: another one under the same name is another machine.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// AttachMode is how it reaches LUNs: Kernel (open-iscsi and dm-multipath) or Userspace (for kind, CI and kernels without).
	// +kubebuilder:validation:Enum=Kernel;Userspace
	AttachMode string `json:"attachMode"`
	// Topology labels of the worker.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Topology map[string]string `json:"topology,omitempty"`
}

// HostStatus has the worker's part, by the node plugin, and the targets' part, by the operator.
type HostStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready (the node plugin runs and can attach), PathsComplete (worker and targets see every path,
	// and the worker asks who owns the LUNs).
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Attached is how many LUNs the worker holds.
	// +optional
	Attached int32 `json:"attached"`
	// Version of the node plugin.
	// +optional
	Version string `json:"version,omitempty"`
	// Worker is what the worker sees of the pairs whose LUNs it holds, as its node plugin says.
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Worker []HostPaths `json:"worker,omitempty"`
	// Targets is what the nodes of these pairs see of the worker, as they tell the operator.
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Targets []HostSessions `json:"targets,omitempty"`
}

// HostPaths are a worker's paths to the LUNs of one pair.
type HostPaths struct {
	// Target is the pair's iSCSI name.
	// +kubebuilder:validation:MaxLength=223
	Target string `json:"target"`
	// LUNs of this pair that the worker holds.
	LUNs int32 `json:"luns"`
	// Portals of the pair that the worker knows.
	// +listType=map
	// +listMapKey=portal
	// +kubebuilder:validation:MaxItems=16
	Portals []HostPortal `json:"portals"`
}

// HostPortal is what a worker sees behind one portal.
type HostPortal struct {
	// Portal is its address and port.
	// +kubebuilder:validation:MaxLength=256
	Portal string `json:"portal"`
	// Connected LUNs have a path here that can be used.
	Connected int32 `json:"connected"`
	// Optimized LUNs are owned by this node, as the worker has learned.
	// +optional
	Optimized int32 `json:"optimized"`
	// NonOptimized LUNs are owned by the other one.
	// +optional
	NonOptimized int32 `json:"nonOptimized"`
	// LastError of a path that cannot be used, or not as it should be.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// HostSessions are the sessions that the nodes of a pair have with a worker.
type HostSessions struct {
	// Target is the pair's iSCSI name.
	// +kubebuilder:validation:MaxLength=223
	Target string `json:"target"`
	// Pair is the TargetPair of that name, if there is one.
	// +optional
	Pair string `json:"pair,omitempty"`
	// Nodes of the pair.
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=2
	// +optional
	Nodes []HostSession `json:"nodes,omitempty"`
}

// HostSession is what one node sees of a worker.
type HostSession struct {
	// Node of the pair: a or b.
	Node string `json:"node"`
	// Portal is the node's address and port.
	// +optional
	Portal string `json:"portal,omitempty"`
	// Sessions that it has with the worker.
	Sessions int32 `json:"sessions"`
	// LastRTPG is when the worker last asked this node for the target port groups, exact to ten minutes so that the object is not written
	// all the time.
	// +optional
	LastRTPG *metav1.Time `json:"lastRTPG,omitempty"`
	// Error: why the node could not be asked.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Error string `json:"error,omitempty"`
}

// Host is a worker that uses LUNs; its name is that of the Kubernetes node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=gemel
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.attachMode`
// +kubebuilder:printcolumn:name="Paths",type=string,JSONPath=`.status.conditions[?(@.type=="PathsComplete")].status`
// +kubebuilder:printcolumn:name="Attached",type=integer,JSONPath=`.status.attached`
// +kubebuilder:printcolumn:name="IQN",type=string,JSONPath=`.spec.iqn`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Path message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="PathsComplete")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Host struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   HostSpec   `json:"spec"`
	Status HostStatus `json:"status,omitempty"`
}

// HostList is a list of them.
//
// +kubebuilder:object:root=true
type HostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Host `json:"items"`
}

// maxErrorText is how long the status lets the text of an error be.
const maxErrorText = 512

// ErrorText is the text of an error as the status takes it: cut where it is too long, and valid UTF-8 all the same.
func ErrorText(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxErrorText)], "")
}
