package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageClusterSpec is what an administrator wants.
//
// +kubebuilder:validation:XValidation:rule="self.pairs >= oldSelf.pairs || self.allowScaleDown",message="pairs: fewer pairs means that LUNs lose their home; set allowScaleDown as well, and the operator removes pairs that are empty"
type StorageClusterSpec struct {
	// Pairs is how many pairs of target nodes serve. Each needs two workers in different failure domains.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	Pairs int32 `json:"pairs"`

	// AllowScaleDown lets pairs be made fewer. A pair that holds LUNs stays and says so.
	// +kubebuilder:default=false
	// +optional
	AllowScaleDown bool `json:"allowScaleDown"`

	// Image of the target nodes. Empty: the operator's own. A change is rolled out one node of a pair at a time.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`

	// Pools of backing volumes. Each target node has one backing volume of each; a LUN lies in one pool. The first one holds each
	// node's own metadata as well and is what volumes lie in that name no pool. Pools may be added, and nodes get them one of a
	// pair at a time; none is ever taken away, since LUNs lie in it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="oldSelf.all(o, self.exists(p, p.name == o.name))",message="pools: a pool cannot be taken away or renamed, its backing volumes hold LUNs; put it back under its name"
	// +kubebuilder:validation:XValidation:rule="self[0].name == oldSelf[0].name",message="pools: the first one holds the metadata of the nodes and stays the first; put new ones after it"
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.name != 'default' || p.name == self[0].name)",message="pools: only the first one may be called default, which is its name on the disks; take another name"
	Pools []Pool `json:"pools"`

	// NodeSelector names the workers that target nodes may run on. Empty: all that take pods.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of target pods, beside those for workers that are not ready or not reachable, which they always have.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// FailureDomainKey is the label of workers whose values two nodes of a pair must not share.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:default="kubernetes.io/hostname"
	// +optional
	FailureDomainKey string `json:"failureDomainKey,omitempty"`

	// Lease is how long a target node may serve without hearing from its peer; a fail-over takes little longer than this.
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('200ms') && duration(self) <= duration('30s')",message="lease: from 200ms to 30s"
	// +optional
	Lease *metav1.Duration `json:"lease,omitempty"`

	// Resources of each target pod. What is left out has defaults: requests of 250m and 512Mi, and a limit of 4Gi on memory, or of the
	// request where that is more. A target needs about 36Mi for each session whose writes arrive slowly, and keeps what hosts
	// read and write in the page cache, which counts. Its garbage collector respects the limit. A limit on CPU is refused: a
	// target that is throttled misses its lease.
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('cpu' in self.limits)",message="resources.limits.cpu: a target node that is throttled misses its lease; leave it out"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || quantity(string(self.limits['memory'])).compareTo(quantity('512Mi')) >= 0",message="resources.limits.memory: a target node needs 512Mi at least; raise it, or leave it out for the default"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || !has(self.requests) || !('memory' in self.requests) || quantity(string(self.requests['memory'])).compareTo(quantity(string(self.limits['memory']))) <= 0",message="resources.requests.memory: it is more than limits.memory; lower it, or raise the limit"
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// Security of the way from workers to targets.
	// +kubebuilder:default={chap: "Mutual"}
	// +optional
	Security Security `json:"security,omitempty"`

	// Scrub is when the two copies of every pair are compared, while they are in use.
	// +kubebuilder:default={schedule: "0 2 * * 6"}
	// +optional
	Scrub Scrub `json:"scrub,omitempty"`
}

// Scrub is when and how the copies of pairs are compared. Status of each TargetPair tells how far it is and what was found.
type Scrub struct {
	// Schedule as cron has it, in UTC: minute, hour, day of the month, month, day of the week. A time that has gone by while a pair
	// was not in sync, or the operator was away, is made up for once.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ =@]+( [^ =@]+){4}$')",message="schedule: five fields with a space between them, minute, hour, day of the month, month, day of the week, in UTC, as in '0 2 * * 6' for Saturdays at two; no @ names, no time zone"
	// +kubebuilder:default="0 2 * * 6"
	// +optional
	Schedule string `json:"schedule,omitempty"`

	// Suspend has no scrub begin by schedule; one that is under way goes on, and `kubectl gemel scrub` begins one.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Repair has a scrub by schedule write a range that differs again. What does not match its checksums is always written from the copy
	// that does; this is about the rest, which is written from the copy that hosts read. Left out: where all blocks of both nodes have
	// checksums. false: it is reported, and a person decides. true: also where nothing tells which of the two copies is the right one.
	// +optional
	Repair *bool `json:"repair,omitempty"`

	// BytesPerSecond that each node of a pair compares at most; less while hosts are at work. Empty: 64Mi.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="bytesPerSecond: from 1Mi to 1Ti, or leave it out for 64Mi"
	// +optional
	BytesPerSecond *resource.Quantity `json:"bytesPerSecond,omitempty"`

	// Parallel is how many pairs of the cluster are compared at a time by schedule; the others wait for their turn.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	// +optional
	Parallel int32 `json:"parallel,omitempty"`
}

// Security of the way from workers to targets. What targets and operator say to each other always has certificates.
type Security struct {
	// CHAP is how workers and targets prove to each other who they are when a session begins. Mutual: each to the other, with
	// credentials that the operator makes for every worker and pair. None: targets let a worker in by its iSCSI name. A change holds for a
	// worker on a pair from the moment at which it has no LUN of that pair: what is attached goes on as it was attached.
	// +kubebuilder:validation:Enum=Mutual;None
	// +kubebuilder:default=Mutual
	// +optional
	CHAP string `json:"chap,omitempty"`
}

// Pool is a kind of backing volume.
type Pool struct {
	// Name of the pool. The StorageClass parameter `pool` chooses by it.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`
	Name string `json:"name"`

	// StorageClassName of the claims for backing volumes. Its volumes must belong to one worker each (local volumes), hold a
	// filesystem (XFS, for snapshots that share extents), and not be Gemel's own.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storageClassName: a pool's class cannot be changed; backing volumes hold data"
	StorageClassName string `json:"storageClassName"`

	// Size of each backing volume that is made from now on.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Gi')) >= 0",message="size: a backing volume has 1Gi at least"
	Size resource.Quantity `json:"size"`
}

// PoolStatus is how full a pool is.
type PoolStatus struct {
	// Name of the pool.
	Name string `json:"name"`
	// Capacity is what the smaller member of each pair has.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is what LUNs can still take, on the member that has less.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
}

// StorageClusterStatus is what the operator has found.
type StorageClusterStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, UpToDate.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Pairs that there are.
	// +optional
	Pairs int32 `json:"pairs"`
	// ReadyPairs serve and are in sync.
	// +optional
	ReadyPairs int32 `json:"readyPairs"`
	// Capacity is the sum over pairs, each as its smaller member has it.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is what LUNs can still take.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Pools by themselves, summed up over pairs.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// LogicalUnits that the pairs hold.
	// +optional
	LogicalUnits int32 `json:"logicalUnits"`
	// Image that every target node is to run.
	// +optional
	Image string `json:"image,omitempty"`
}

// StorageCluster is a set of pairs of target nodes with their disks.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gsc,categories=gemel
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pairs",type=string,JSONPath=`.status.pairs`
// +kubebuilder:printcolumn:name="In sync",type=string,JSONPath=`.status.readyPairs`
// +kubebuilder:printcolumn:name="LUNs",type=integer,JSONPath=`.status.logicalUnits`
// +kubebuilder:printcolumn:name="Capacity",type=string,JSONPath=`.status.capacity`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$')",message="metadata.name: a cluster's name is a part of iSCSI names: up to 32 of a-z, 0-9 and -"
type StorageCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   StorageClusterSpec   `json:"spec"`
	Status StorageClusterStatus `json:"status,omitempty"`
}

// StorageClusterList is a list of them.
//
// +kubebuilder:object:root=true
type StorageClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StorageCluster `json:"items"`
}
