package v1alpha1

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LogicalUnitSpec is written by the CSI driver, but for placement, which the operator writes once. preferredNode and writeCache come
// from a StorageClass or VolumeAttributesClass; an administrator may change them as well.
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster",message="cluster: a LUN stays in its cluster"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="source: what a LUN was made from does not change"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.placement) || (has(self.placement) && self.placement == oldSelf.placement)",message="placement: it is written once, before the LUN is made"
// +kubebuilder:validation:XValidation:rule="has(self.pool) == has(oldSelf.pool) && (!has(self.pool) || self.pool == oldSelf.pool)",message="pool: a LUN stays in its pool; make another one and copy the data"
// +kubebuilder:validation:XValidation:rule="!quantity(string(self.size)).isLessThan(quantity(string(oldSelf.size)))",message="size: a LUN is never made smaller"
// +kubebuilder:validation:XValidation:rule="!oldSelf.destroy || self.destroy",message="destroy: it cannot be taken back"
// +kubebuilder:validation:XValidation:rule="self.shared || !has(self.hosts) || size(self.hosts) <= 1",message="hosts: a LUN that is not shared has one host at most"
// +kubebuilder:validation:XValidation:rule="!self.destroy || !has(self.hosts) || size(self.hosts) == 0",message="destroy: hosts still reach the LUN; unpublish it first"
// +kubebuilder:validation:XValidation:rule="!has(self.hosts) || !self.hosts.exists(h, has(h.replay) && h.replay) || (size(self.hosts) == 1 && self.hosts[0].readOnly)",message="hosts: one with replay is alone, and readOnly"
type LogicalUnitSpec struct {
	// Cluster is the StorageCluster that holds it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cluster string `json:"cluster"`

	// Pool of the cluster that it is to lie in. Empty: the first one, or for a copy that of its source, the only one possible.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Pool string `json:"pool,omitempty"`

	// Size, a multiple of 1Mi. It may grow.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) >= 0",message="size: 1Mi at least"
	Size resource.Quantity `json:"size"`

	// Source that its content is a copy of.
	// +optional
	Source *Source `json:"source,omitempty"`

	// Shared lets several hosts have it at once.
	// +kubebuilder:default=false
	// +optional
	Shared bool `json:"shared"`

	// Hosts that reach it. Taking one out fences it: when it has left status.hosts no command of it is running or will run.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=iqn
	// +optional
	Hosts []HostAccess `json:"hosts,omitempty"`

	// PreferredNode of the pair, a or b, that is to own it. It may change. Empty: the pair chooses when the LUN is made, and
	// nothing changes later.
	// +kubebuilder:validation:Enum="";a;b
	// +optional
	PreferredNode string `json:"preferredNode,omitempty"`

	// WriteCache is what an acknowledged write means. write-back: both nodes have it in memory, and it is durable once the host has
	// flushed it. write-through: it is on the disks of both. It may change. Empty: write-back when the LUN is made, and nothing
	// changes later.
	// +kubebuilder:validation:Enum="";write-back;write-through
	// +optional
	WriteCache string `json:"writeCache,omitempty"`

	// Volume says what it is used as; the disks keep it too.
	// +optional
	Volume *VolumeInfo `json:"volume,omitempty"`

	// Destroy has the data destroyed. Only with it does deleting the object delete the LUN.
	// +kubebuilder:default=false
	// +optional
	Destroy bool `json:"destroy"`

	// Placement is where it lies.
	// +optional
	Placement *Placement `json:"placement,omitempty"`
}

// Source of a LUN. One of the two.
//
// +kubebuilder:validation:XValidation:rule="has(self.logicalUnit) != has(self.snapshot)",message="source: either logicalUnit or snapshot"
type Source struct {
	// LogicalUnit that it is a clone of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	LogicalUnit string `json:"logicalUnit,omitempty"`
	// Snapshot is the LogicalUnitSnapshot that it is restored from.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
}

// HostAccess is a host that reaches a LUN.
type HostAccess struct {
	// IQN is the iSCSI name of the host.
	// +kubebuilder:validation:Pattern=`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+(:[^\s/]+)?|eui\.[0-9a-f]{16}|naa\.[0-9a-f]{16,32})$`
	// +kubebuilder:validation:MaxLength=223
	IQN string `json:"iqn"`
	// ReadOnly has the target refuse its writes.
	// +kubebuilder:default=false
	// +optional
	ReadOnly bool `json:"readOnly"`
	// Replay puts readOnly off: the host may write, alone, until it has replayed the log of the filesystem. The operator takes it out when
	// the host has said so, marks the LUN with the annotation gemel.storage/log-replayed, and lets the host in again.
	// +optional
	Replay bool `json:"replay,omitempty"`
}

// Host is the entry of a host, by its name in lower case; nil if the host is not to reach the LUN. What it points to is the spec's.
func (s *LogicalUnitSpec) Host(iqn string) *HostAccess {
	for i := range s.Hosts {
		if strings.ToLower(s.Hosts[i].IQN) == iqn {
			return &s.Hosts[i]
		}
	}
	return nil
}

// Host is how a host reaches the LUN, by its name in lower case; nil if it does not. What it points to is the status's.
func (s *LogicalUnitStatus) Host(iqn string) *HostMapping {
	for i := range s.Hosts {
		if s.Hosts[i].IQN == iqn {
			return &s.Hosts[i]
		}
	}
	return nil
}

// Writes tells whether the target takes its writes.
func (h HostAccess) Writes() bool { return !h.ReadOnly || h.Replay }

// VolumeInfo is what Kubernetes calls it.
type VolumeInfo struct {
	// Name that the CSI driver was asked for; of the PersistentVolume as a rule.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// PVC is the claim's name.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PVC string `json:"pvc,omitempty"`
	// Namespace of the claim.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// FSType that it was made with; empty for a raw block volume.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	FSType string `json:"fsType,omitempty"`
}

// Placement is where a LUN lies.
type Placement struct {
	// Pair is the TargetPair.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pair string `json:"pair"`
	// Pool that its backing volumes, one on each node, are of. Empty: the first one.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Pool string `json:"pool,omitempty"`
	// UUID of the LUN on the disks; its WWID comes from it.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	UUID string `json:"uuid"`
}

// LogicalUnitStatus is what the operator has found.
type LogicalUnitStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, Published.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Size that it has.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// WWID is the NAA designator, as dm-multipath has it after the leading 3.
	// +optional
	WWID string `json:"wwid,omitempty"`
	// Owner is the node, a or b, through which the optimized path goes; told lazily.
	// +optional
	Owner string `json:"owner,omitempty"`
	// PreferredNode that it has.
	// +optional
	PreferredNode string `json:"preferredNode,omitempty"`
	// WriteCache mode that it has.
	// +optional
	WriteCache string `json:"writeCache,omitempty"`
	// InSync: both nodes of its pair hold it; told lazily.
	// +optional
	InSync bool `json:"inSync"`
	// Allocated on the disk; told lazily.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Hosts that reach it now.
	// +listType=map
	// +listMapKey=iqn
	// +optional
	Hosts []HostMapping `json:"hosts,omitempty"`
}

// HostMapping is how a host reaches a LUN.
type HostMapping struct {
	// IQN of the host.
	IQN string `json:"iqn"`
	// LUN is the number, flat addressing, that this host has it under; fresh for each publish.
	LUN int32 `json:"lun"`
	// TargetIQN of the pair.
	TargetIQN string `json:"targetIQN"`
	// Portals of both nodes, host:port.
	// +listType=atomic
	Portals []string `json:"portals"`
	// Generation differs for each publish.
	Generation int64 `json:"generation"`
	// ReadOnly: its writes are refused.
	// +optional
	ReadOnly bool `json:"readOnly"`
	// CHAPUser is the name under which the targets ask the host for its CHAP secret; each set of credentials has another one. Empty: it is
	// let in by its iSCSI name.
	// +optional
	CHAPUser string `json:"chapUser,omitempty"`
	// AttachMode is how the host reaches LUNs, Kernel or Userspace, as its Host object says. Empty: no Host has the iSCSI name.
	// +optional
	AttachMode string `json:"attachMode,omitempty"`
}

// LogicalUnit is one LUN.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=lun,categories=gemel
// +kubebuilder:selectablefield:JSONPath=`.spec.placement.pair`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pair",type=string,JSONPath=`.spec.placement.pair`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.status.owner`
// +kubebuilder:printcolumn:name="In sync",type=boolean,JSONPath=`.status.inSync`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.volume.namespace`
// +kubebuilder:printcolumn:name="PVC",type=string,JSONPath=`.spec.volume.pvc`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Pool",type=string,priority=1,JSONPath=`.spec.placement.pool`
// +kubebuilder:printcolumn:name="Write cache",type=string,priority=1,JSONPath=`.status.writeCache`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LogicalUnit struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LogicalUnitSpec   `json:"spec"`
	Status LogicalUnitStatus `json:"status,omitempty"`
}

// LogicalUnitList is a list of them.
//
// +kubebuilder:object:root=true
type LogicalUnitList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LogicalUnit `json:"items"`
}
