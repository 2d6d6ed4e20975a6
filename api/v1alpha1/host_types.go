package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HostSpec is written by the node plugin of the worker, which writes no other Host; except profile
// and sessions, which an administrator may set.
type HostSpec struct {
	// IQN is the worker's iSCSI name.
	// +kubebuilder:validation:Pattern=`^iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+(:[^\s/]+)?$`
	// +kubebuilder:validation:MaxLength=223
	IQN string `json:"iqn"`
	// MachineID of the worker's operating system: with another machine ID, a worker of the same
	// name is another machine.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// AttachMode is how the worker attaches LUNs: Kernel (open-iscsi and dm-multipath) or Userspace
	// (for kind, CI, and kernels without iSCSI or dm-multipath).
	// +kubebuilder:validation:Enum=Kernel;Userspace
	AttachMode string `json:"attachMode"`
	// Profile is the kind of host: Auto (recognised by the iSCSI name), Linux, QEMU, Windows or
	// VMware. A QEMU host, which has one path and no ALUA, is answered BUSY where other hosts are
	// answered NOT READY; the others are all answered alike. A change applies within a minute,
	// unless a node of the pair is of release 0.1.0.
	// +kubebuilder:validation:Enum=Auto;Linux;QEMU;Windows;VMware
	// +kubebuilder:default=Auto
	// +optional
	Profile string `json:"profile,omitempty"`
	// MaxLUNs is how many LUNs the worker can have. A striped volume that would exceed it is not
	// published to the worker; volumes of one LUN are counted by the scheduler. 0: no limit.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16384
	// +optional
	MaxLUNs int32 `json:"maxLUNs,omitempty"`
	// Sessions is how many iSCSI sessions the worker makes to each portal for a volume whose
	// StorageClass says nothing of sessions. A change counts from the next publish of a volume to
	// the worker on. Empty: 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	// +optional
	Sessions int32 `json:"sessions,omitempty"`
	// Topology labels of the worker.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Topology map[string]string `json:"topology,omitempty"`
}

// HostStatus has a part of the worker, written by the node plugin, and a part of the targets,
// written by the operator.
type HostStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready (the node plugin runs and can attach), PathsComplete (worker and targets
	// see every path, and the worker requests the target port groups).
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Profile is the kind of host that the targets take it for.
	// +optional
	Profile string `json:"profile,omitempty"`
	// ProfileReason is how the profile was recognised.
	// +optional
	ProfileReason string `json:"profileReason,omitempty"`
	// Attached is the number of LUNs attached to the worker.
	// +optional
	Attached int32 `json:"attached"`
	// Version of the node plugin.
	// +optional
	Version string `json:"version,omitempty"`
	// Worker has the paths to the pairs of the attached LUNs, as reported by the node plugin.
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Worker []HostPaths `json:"worker,omitempty"`
	// Targets has the sessions of the worker on the nodes of these pairs, as reported by the nodes.
	// +listType=map
	// +listMapKey=target
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Targets []HostSessions `json:"targets,omitempty"`
	// Moves are the last changes of the owners of the LUNs that are mapped to the worker, the
	// newest last.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +optional
	Moves []HostMove `json:"moves,omitempty"`
}

// HostMove is a change of the owner of a LUN of a worker.
type HostMove struct {
	// LogicalUnit is the LUN.
	LogicalUnit string `json:"logicalUnit"`
	// Move of the LUN.
	LogicalUnitMove `json:",inline"`
}

// Values of HostSessions.Redundancy.
const (
	RedundancyComplete = "Complete"
	RedundancyNodeAway = "NodeAway"
	RedundancyLost     = "Lost"
)

// HostPaths are a worker's paths to the LUNs of one pair.
type HostPaths struct {
	// Target is the pair's iSCSI name.
	// +kubebuilder:validation:MaxLength=223
	Target string `json:"target"`
	// LUNs is the number of attached LUNs of this pair.
	LUNs int32 `json:"luns"`
	// Portals of the pair that the worker uses.
	// +listType=map
	// +listMapKey=portal
	// +kubebuilder:validation:MaxItems=16
	Portals []HostPortal `json:"portals"`
}

// HostPortal is the state of a worker's paths to one portal.
type HostPortal struct {
	// Portal is the address and port.
	// +kubebuilder:validation:MaxLength=256
	Portal string `json:"portal"`
	// Connected is the number of LUNs with a usable path.
	Connected int32 `json:"connected"`
	// Optimized is the number of LUNs that this node owns, according to the worker.
	// +optional
	Optimized int32 `json:"optimized"`
	// NonOptimized is the number of LUNs that the other node owns, according to the worker.
	// +optional
	NonOptimized int32 `json:"nonOptimized"`
	// LastError of a path that is unusable or restricted.
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
	// Redundancy of the worker's paths to this pair: Complete; NodeAway (the missing paths lead to
	// a node that does not serve or does not answer); Lost (a path is missing although its node
	// serves). It follows the paths once they have been incomplete for 15 s, for a minute if their
	// node was away before, and at once when they are complete. Each change is an event. What is
	// Lost stays Lost until it is Complete.
	// +optional
	Redundancy string `json:"redundancy,omitempty"`
	// PendingSince is since when the paths have been other than redundancy says.
	// +optional
	PendingSince *metav1.Time `json:"pendingSince,omitempty"`
}

// HostSession has the sessions of a worker on one node.
type HostSession struct {
	// Node of the pair: a or b.
	Node string `json:"node"`
	// Portal is the node's address and port.
	// +optional
	Portal string `json:"portal,omitempty"`
	// Sessions is the number of sessions of the worker.
	Sessions int32 `json:"sessions"`
	// Owned is the number of LUNs mapped to the worker that this node owns.
	// +optional
	Owned int32 `json:"owned"`
	// Home is the number of LUNs mapped to the worker whose home (preferred node) is this node.
	// +optional
	Home int32 `json:"home"`
	// LastRTPG is when the worker last requested the target port groups from this node, exact to
	// ten minutes, to limit the writes of the object.
	// +optional
	LastRTPG *metav1.Time `json:"lastRTPG,omitempty"`
	// Error is why the node does not answer.
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
// +kubebuilder:printcolumn:name="Max LUNs",type=integer,priority=1,JSONPath=`.spec.maxLUNs`
// +kubebuilder:selectablefield:JSONPath=`.spec.iqn`
// +kubebuilder:printcolumn:name="Profile",type=string,priority=1,JSONPath=`.status.profile`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Path message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="PathsComplete")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Host struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   HostSpec   `json:"spec"`
	Status HostStatus `json:"status,omitempty"`
}

// HostList is a list of Hosts.
//
// +kubebuilder:object:root=true
type HostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Host `json:"items"`
}

// maxErrorText limits the text of an error in a status, in bytes.
const maxErrorText = 512

// ErrorText truncates the text of an error for a status, and keeps it valid UTF-8.
func ErrorText(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxErrorText)], "")
}
