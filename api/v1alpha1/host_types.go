package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// Conditions: Ready (the node plugin runs and can attach).
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
}

// Host is a worker that uses LUNs; its name is that of the Kubernetes node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ghost,categories=gemel
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.attachMode`
// +kubebuilder:printcolumn:name="Attached",type=integer,JSONPath=`.status.attached`
// +kubebuilder:printcolumn:name="IQN",type=string,JSONPath=`.spec.iqn`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
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
