package v1alpha1

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LogicalUnitSpec is written by the CSI driver, except placement, which the operator writes once.
// preferredNode, pinnedNode and writeCache come from a StorageClass or VolumeAttributesClass; an
// administrator may change them as well.
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster",message="cluster: a LUN stays in its cluster"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="source: what a LUN was made from does not change"
// +kubebuilder:validation:XValidation:rule="has(self.consumer) == has(oldSelf.consumer) && (!has(self.consumer) || self.consumer == oldSelf.consumer)",message="consumer: it is what was known when the LUN was requested, and does not change"
// +kubebuilder:validation:XValidation:rule="has(self.accessibleFrom) == has(oldSelf.accessibleFrom) && (!has(self.accessibleFrom) || self.accessibleFrom == oldSelf.accessibleFrom)",message="accessibleFrom: it is the node affinity of the PersistentVolume, and does not change"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.placement) || (has(self.placement) && self.placement == oldSelf.placement)",message="placement: it is written once, before the LUN is made"
// +kubebuilder:validation:XValidation:rule="has(self.pool) == has(oldSelf.pool) && (!has(self.pool) || self.pool == oldSelf.pool)",message="pool: a LUN stays in its pool; make another one and copy the data"
// +kubebuilder:validation:XValidation:rule="has(self.striped) == has(oldSelf.striped) && (!has(self.striped) || self.striped == oldSelf.striped)",message="striped: the layout of a volume does not change; make another one and copy the data"
// +kubebuilder:validation:XValidation:rule="has(self.leg) == has(oldSelf.leg) && (!has(self.leg) || self.leg == oldSelf.leg)",message="leg: which part of a striped volume a LUN is does not change"
// +kubebuilder:validation:XValidation:rule="!has(self.striped) || !has(self.leg)",message="leg: a leg of a striped volume is one LUN, and has no striped"
// +kubebuilder:validation:XValidation:rule="has(self.spread) == has(oldSelf.spread) && (!has(self.spread) || self.spread == oldSelf.spread)",message="spread: the LUNs of a striped volume stay where they are; make another volume and copy the data"
// +kubebuilder:validation:XValidation:rule="!has(self.spread) || size(self.spread) == 0 || has(self.striped)",message="spread: it is of a striped volume: set striped as well"
// +kubebuilder:validation:XValidation:rule="!has(self.striped) || ((!has(self.preferredNode) || size(self.preferredNode) == 0) && (!has(self.pinnedNode) || size(self.pinnedNode) == 0))",message="striped: preferredNode and pinnedNode are of one LUN; the legs of a striped volume are spread over both nodes"
// +kubebuilder:validation:XValidation:rule="!quantity(string(self.size)).isLessThan(quantity(string(oldSelf.size)))",message="size: a LUN is never made smaller"
// +kubebuilder:validation:XValidation:rule="!oldSelf.destroy || self.destroy",message="destroy: it cannot be taken back"
// +kubebuilder:validation:XValidation:rule="self.shared || !has(self.hosts) || size(self.hosts) <= 1",message="hosts: a LUN that is not shared has one host at most"
// +kubebuilder:validation:XValidation:rule="!self.destroy || !has(self.hosts) || size(self.hosts) == 0",message="destroy: hosts still reach the LUN; unpublish it first"
// +kubebuilder:validation:XValidation:rule="!has(self.hosts) || !self.hosts.exists(h, has(h.replay) && h.replay) || (size(self.hosts) == 1 && self.hosts[0].readOnly)",message="hosts: one with replay is alone, and readOnly"
type LogicalUnitSpec struct {
	// Cluster is the StorageCluster of the LUN.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Cluster string `json:"cluster"`

	// Pool of the cluster for the LUN. Empty: the first one, or for a copy the pool of its source,
	// which is the only possible one.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Pool string `json:"pool,omitempty"`

	// Size of the LUN, a multiple of 1Mi. It can only be increased.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) >= 0",message="size: 1Mi at least"
	Size resource.Quantity `json:"size"`

	// Source of a copy: a clone or a restored snapshot.
	// +optional
	Source *Source `json:"source,omitempty"`

	// Shared allows several hosts at once.
	// +kubebuilder:default=false
	// +optional
	Shared bool `json:"shared"`

	// Hosts that may access the LUN. Removing a host fences it: once it is not in status.hosts, no
	// command of the host is running or will be accepted.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=iqn
	// +optional
	Hosts []HostAccess `json:"hosts,omitempty"`

	// PreferredNode of the pair, a or b, that should own the LUN. It can be changed: the pair moves
	// the LUN there when the hosts can use that node, usually within a minute. Empty: when the LUN
	// is created, it is the node that keeps a ConsistencyGroup spread, or the node nearer to the
	// consumer, or else the pair chooses; later nothing changes.
	// +kubebuilder:validation:Enum="";a;b
	// +optional
	PreferredNode string `json:"preferredNode,omitempty"`

	// PinnedNode of the pair, a or b, owns the LUN whenever it can: as long as the node is in sync
	// and not drained, whether or not hosts can use it. The pin is carried out in every mode of
	// balancing, and while it is set, preferredNode counts for nothing. Empty: the LUN is not
	// pinned.
	// +kubebuilder:validation:Enum="";a;b
	// +optional
	PinnedNode string `json:"pinnedNode,omitempty"`

	// WriteCache is what an acknowledged write means. write-back: both nodes have it in memory, and
	// it is durable after a flush of the host. write-through: it is on the disks of both nodes. It
	// can be changed. Empty: write-back when the LUN is created, and later nothing changes.
	// +kubebuilder:validation:Enum="";write-back;write-through
	// +optional
	WriteCache string `json:"writeCache,omitempty"`

	// Tier of its pool that the LUN is pinned to, Fast or Capacity: all its data moves there while
	// hosts use it, and stays; what finds no room on Fast stays on Capacity. The pool needs volumes
	// of both tiers. It can be changed. Empty: each part of the LUN is where its use puts it.
	// +kubebuilder:validation:Enum="";Fast;Capacity
	// +optional
	Tier string `json:"tier,omitempty"`

	// Striped is set for a volume that is striped over several LUNs, its legs. Such an object has
	// no LUN of its own: each leg has a LogicalUnit, named after this one with its number, and with
	// the label gemel.storage/striped. Everything that is asked of this object is passed on to all
	// legs, and it is Ready and Published when all legs are.
	// +optional
	Striped *Striping `json:"striped,omitempty"`

	// Spread says what the legs of a striped volume are spread over. Pairs: over as many pairs of
	// the cluster as can take them, two at least, and over both nodes of each; the volume is lost
	// if one of the pairs is. Empty: over both nodes of one pair. A copy is always where its source
	// is, and with Pairs its source has to be on several pairs.
	// +kubebuilder:validation:Enum="";Pairs
	// +optional
	Spread string `json:"spread,omitempty"`

	// Sessions is how many iSCSI sessions a worker makes to each portal for the LUN, and for each
	// LUN of a striped volume. It can be changed, which counts from the next publish on. Empty: as
	// the Host of the worker says, else 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8
	// +optional
	Sessions int32 `json:"sessions,omitempty"`

	// Leg says which part of a striped volume the LUN is. The operator writes it, and the rest of
	// the spec of a leg, from the LogicalUnit of the volume.
	// +optional
	Leg *Leg `json:"leg,omitempty"`

	// Volume describes the use of the LUN; it is also stored on the disks.
	// +optional
	Volume *VolumeInfo `json:"volume,omitempty"`

	// Destroy allows the destruction of the data. Only if it is set does deleting the object delete
	// the LUN.
	// +kubebuilder:default=false
	// +optional
	Destroy bool `json:"destroy"`

	// Consumer is the worker that the first pod with the volume was scheduled to when the volume
	// was requested. The operator prefers a pair and a node near that worker; the LUN can be used
	// on other workers all the same. The field does not follow the pod later. Empty: no worker was
	// known (immediate binding), and nothing is preferred, or what all workers of accessibleFrom
	// have in common.
	// +optional
	Consumer *Consumer `json:"consumer,omitempty"`

	// AccessibleFrom are the workers that may use the LUN, as the pool and the StorageClass said
	// when the LUN was requested: those that have all labels of one term. The node affinity of the
	// PersistentVolume is the same; targets do not check it. Empty: all workers.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	AccessibleFrom []TopologyTerm `json:"accessibleFrom,omitempty"`

	// Placement is the location of the LUN.
	// +optional
	Placement *Placement `json:"placement,omitempty"`
}

// Striping is the layout of a striped volume: stripe k of the volume is stripe k/n of leg k mod n.
type Striping struct {
	// LUNs is the number of legs. The size of the volume is a multiple of so many MiB.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=16
	LUNs int32 `json:"luns"`
	// StripeBytes is the size of a stripe, a power of two.
	// +kubebuilder:validation:Enum=65536;131072;262144;524288;1048576
	StripeBytes int32 `json:"stripeBytes"`
}

// Leg is one LUN of a striped volume, or its part of a snapshot of that volume.
type Leg struct {
	// Of is the object of the whole: a LogicalUnit or a LogicalUnitSnapshot, as that of the leg.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=250
	Of string `json:"of"`
	// UUID is spec.placement.uuid of that object: a later one of the same name has another.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`
	UUID string `json:"uuid"`
	// Number of the leg, from 0.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	Number int32 `json:"number"`
	// Striping of the volume.
	Striping `json:",inline"`
}

// Source of a LUN. Exactly one field is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.logicalUnit) != has(self.snapshot)",message="source: either logicalUnit or snapshot"
type Source struct {
	// LogicalUnit that is cloned.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	LogicalUnit string `json:"logicalUnit,omitempty"`
	// Snapshot is the LogicalUnitSnapshot that is restored.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
}

// HostAccess is a host that may access a LUN.
type HostAccess struct {
	// IQN is the iSCSI name of the host.
	// +kubebuilder:validation:Pattern=`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+(:[^\s/]+)?|eui\.[0-9a-f]{16}|naa\.[0-9a-f]{16,32})$`
	// +kubebuilder:validation:MaxLength=223
	IQN string `json:"iqn"`
	// ReadOnly makes the target reject writes of the host.
	// +kubebuilder:default=false
	// +optional
	ReadOnly bool `json:"readOnly"`
	// Replay delays readOnly: the host may write, exclusively, until it has replayed the log of the
	// filesystem. When the host reports this, the operator clears the field, annotates the LUN with
	// gemel.storage/log-replayed, and maps the host again read-only.
	// +optional
	Replay bool `json:"replay,omitempty"`
}

// Host returns the entry of a host in the spec, by its name in lower case; nil if there is none.
func (s *LogicalUnitSpec) Host(iqn string) *HostAccess {
	for i := range s.Hosts {
		if strings.ToLower(s.Hosts[i].IQN) == iqn {
			return &s.Hosts[i]
		}
	}
	return nil
}

// Host returns the mapping of a host in the status, by its name in lower case; nil if there is
// none.
func (s *LogicalUnitStatus) Host(iqn string) *HostMapping {
	for i := range s.Hosts {
		if s.Hosts[i].IQN == iqn {
			return &s.Hosts[i]
		}
	}
	return nil
}

// Writes reports whether the target accepts writes of the host.
func (h HostAccess) Writes() bool { return !h.ReadOnly || h.Replay }

// VolumeInfo has the names of the volume in Kubernetes.
type VolumeInfo struct {
	// Name in the CSI request; usually that of the PersistentVolume.
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
	// FSType that the volume was created with; empty for a raw block volume.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	FSType string `json:"fsType,omitempty"`
}

// Consumer is a worker that uses a LUN.
type Consumer struct {
	// Worker is the Kubernetes node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Worker string `json:"worker"`
	// Topology is the segment that was preferred in the request. The labels of the Kubernetes node
	// come before it.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Topology map[string]TopologyValue `json:"topology,omitempty"`
}

// TopologyValue is the value of a topology label.
//
// +kubebuilder:validation:MaxLength=63
type TopologyValue string

// LogicalUnitStatus is the observed state.
type LogicalUnitStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, Published.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Size is the current size.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// WWID is the NAA designator: the WWID of dm-multipath without the leading 3.
	// +optional
	WWID string `json:"wwid,omitempty"`
	// Owner is the node, a or b, with the optimized path; updated lazily.
	// +optional
	Owner string `json:"owner,omitempty"`
	// PreferredNode is the current preferred node.
	// +optional
	PreferredNode string `json:"preferredNode,omitempty"`
	// Tier that the LUN is pinned to at present.
	// +optional
	Tier string `json:"tier,omitempty"`
	// PinnedNode is the node that the LUN is pinned to at present; status.owner is another one
	// while that node is not in sync, or drained. Empty: it is not pinned.
	// +optional
	PinnedNode string `json:"pinnedNode,omitempty"`
	// Moves are the last changes of the owner, the newest last; updated lazily.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +optional
	Moves []LogicalUnitMove `json:"moves,omitempty"`
	// HeldUntil is until when a transfer by a person keeps the LUN at its owner.
	// +optional
	HeldUntil *metav1.Time `json:"heldUntil,omitempty"`
	// WriteCache is the current write cache mode.
	// +optional
	WriteCache string `json:"writeCache,omitempty"`
	// InSync reports whether both nodes of the pair have all data; updated lazily.
	// +optional
	InSync bool `json:"inSync"`
	// Allocated is the space allocated on the disk; updated lazily, and for a change of 1% of the
	// size or more.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Hosts that are mapped.
	// +listType=map
	// +listMapKey=iqn
	// +optional
	Hosts []HostMapping `json:"hosts,omitempty"`
}

// LegMapping is how a host reaches a leg of a striped volume.
type LegMapping struct {
	// LUN is the LUN number for this host.
	LUN int32 `json:"lun"`
	// WWID of the leg.
	WWID string `json:"wwid"`
	// Pair of the leg, TargetIQN and Portals are set if the leg is on another pair than the first
	// one; else they are those of the mapping.
	// +optional
	Pair string `json:"pair,omitempty"`
	// TargetIQN of that pair.
	// +optional
	TargetIQN string `json:"targetIQN,omitempty"`
	// Portals of both nodes of that pair, host:port.
	// +listType=atomic
	// +optional
	Portals []string `json:"portals,omitempty"`
}

// HostMapping is how a host reaches a LUN.
type HostMapping struct {
	// IQN of the host.
	IQN string `json:"iqn"`
	// LUN is the LUN number for this host, flat addressing; new for each publish. For a striped
	// volume it is that of the first leg.
	LUN int32 `json:"lun"`
	// Legs of a striped volume, in their order; empty until the host reaches all of them, and while
	// it is being fenced.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Legs []LegMapping `json:"legs,omitempty"`
	// TargetIQN of the pair.
	TargetIQN string `json:"targetIQN"`
	// Portals of both nodes, host:port.
	// +listType=atomic
	Portals []string `json:"portals"`
	// Generation is different for each publish, and higher for a later one. For a striped volume it
	// is the sum of the highest generations at each of its pairs.
	Generation int64 `json:"generation"`
	// ReadOnly reports whether writes are rejected.
	// +optional
	ReadOnly bool `json:"readOnly"`
	// CHAPUser is the user name of the host's CHAP credentials, different for each set of
	// credentials. Empty: the host logs in by its iSCSI name only.
	// +optional
	CHAPUser string `json:"chapUser,omitempty"`
	// AttachMode is spec.attachMode of the Host: Kernel or Userspace. Empty: no Host has the iSCSI
	// name.
	// +optional
	AttachMode string `json:"attachMode,omitempty"`
	// Profile is spec.profile of the Host as the pair was told of it. Empty: Auto, or no Host has
	// the iSCSI name.
	// +optional
	Profile string `json:"profile,omitempty"`
}

// LogicalUnit is one LUN, or a volume that is striped over several.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=lun,categories=gemel
// +kubebuilder:selectablefield:JSONPath=`.spec.placement.pair`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pair",type=string,JSONPath=`.spec.placement.pair`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.status.owner`
// +kubebuilder:printcolumn:name="InSync",type=boolean,JSONPath=`.status.inSync`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.volume.namespace`
// +kubebuilder:printcolumn:name="PVC",type=string,JSONPath=`.spec.volume.pvc`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Home",type=string,priority=1,JSONPath=`.status.preferredNode`
// +kubebuilder:printcolumn:name="Pinned",type=string,priority=1,JSONPath=`.status.pinnedNode`
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

// LogicalUnitList is a list of LogicalUnits.
//
// +kubebuilder:object:root=true
type LogicalUnitList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LogicalUnit `json:"items"`
}
