package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageClusterSpec is written by an administrator.
//
// +kubebuilder:validation:XValidation:rule="!has(self.domains) || self.domains.map(d, d.pairs).sum() <= self.pairs",message="domains: the couples have more pairs in sum than spec.pairs; increase spec.pairs, or lower domains[].pairs"
// +kubebuilder:validation:XValidation:rule="!has(self.domains) || !has(oldSelf.domains) || self.failureDomainKey == oldSelf.failureDomainKey",message="failureDomainKey: spec.domains has values of this label, and pairs were laid over them; leave it, or remove spec.domains first"
// +kubebuilder:validation:XValidation:rule="self.pairs >= oldSelf.pairs || self.allowScaleDown",message="pairs: fewer pairs means that LUNs lose their home; set allowScaleDown as well, and the operator removes pairs that are empty"
type StorageClusterSpec struct {
	// Pairs is the number of pairs of target nodes. Each needs two workers in different failure
	// domains.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	Pairs int32 `json:"pairs"`

	// AllowScaleDown allows a lower number of pairs. A pair with LUNs is not removed, and an event
	// names it.
	// +kubebuilder:default=false
	// +optional
	AllowScaleDown bool `json:"allowScaleDown"`

	// Image of the target nodes. Empty: the operator's own. A change is rolled out one node of a
	// pair at a time.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`

	// Pools of backing volumes. Each target node has one backing volume of each pool; a LUN is in
	// one pool. The first pool also has each node's metadata, and is the default for volumes. Pools
	// can be added, and are rolled out one node of a pair at a time; they cannot be removed,
	// because they contain LUNs.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="oldSelf.all(o, self.exists(p, p.name == o.name))",message="pools: a pool cannot be taken away or renamed, its backing volumes hold LUNs; put it back under its name"
	// +kubebuilder:validation:XValidation:rule="self[0].name == oldSelf[0].name",message="pools: the first one holds the metadata of the nodes and stays the first; put new ones after it"
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.name != 'default' || p.name == self[0].name)",message="pools: only the first one may be called default, which is its name on the disks; take another name"
	Pools []Pool `json:"pools"`

	// FullCopies accepts snapshots and clones in backing volumes whose filesystem cannot share
	// extents, ext4 for example. Each is a full copy there, which takes its time, and as much space
	// as its source has data. false: such snapshots and clones are refused. A change is rolled out
	// one node of a pair at a time, and needs target nodes of release 0.2.0 or later.
	// +kubebuilder:default=false
	// +optional
	FullCopies bool `json:"fullCopies,omitempty"`

	// Tiering of pools that have volumes of tiers Fast and Capacity. Default: Auto.
	// +optional
	Tiering *Tiering `json:"tiering,omitempty"`

	// NodeSelector selects the workers that target nodes may run on. Empty: all schedulable
	// workers.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of target pods, in addition to those for workers that are not ready or
	// unreachable, which they always have.
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

	// Domains says how many pairs have their nodes in which two failure domains. A new pair gets
	// the first couple that lacks pairs, for good; pairs beyond the sum are scheduled anywhere.
	// Existing pairs never move: condition DomainsMatch says which do not fit a changed list.
	// Unset: every pair is scheduled anywhere.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(x, self.exists_one(y, x.between[0] == y.between[0] && x.between[1] == y.between[1] || x.between[0] == y.between[1] && x.between[1] == y.between[0]))",message="domains: two failure domains are one couple, in either order; name each couple once, with all its pairs"
	// +optional
	Domains []Domains `json:"domains,omitempty"`

	// Lease is how long a target node may serve without contact to its peer; a failover takes
	// little longer.
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('200ms') && duration(self) <= duration('30s')",message="lease: from 200ms to 30s"
	// +optional
	Lease *metav1.Duration `json:"lease,omitempty"`

	// Resources of each target pod. Defaults: requests of 250m and 512Mi, and a memory limit of
	// 4Gi, or of the request if that is more. A target needs about 36Mi for each session whose
	// writes arrive slowly, and has data of hosts in the page cache, which counts. Its garbage
	// collector respects the limit. A CPU limit is rejected: a throttled target loses its lease.
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('cpu' in self.limits)",message="resources.limits.cpu: a target node that is throttled misses its lease; leave it out"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || quantity(string(self.limits['memory'])).compareTo(quantity('512Mi')) >= 0",message="resources.limits.memory: a target node needs 512Mi at least; raise it, or leave it out for the default"
	// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !('memory' in self.limits) || !has(self.requests) || !('memory' in self.requests) || quantity(string(self.requests['memory'])).compareTo(quantity(string(self.limits['memory']))) <= 0",message="resources.requests.memory: it is more than limits.memory; lower it, or raise the limit"
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// Security of the connections from workers to targets.
	// +kubebuilder:default={chap: "Mutual"}
	// +optional
	Security Security `json:"security,omitempty"`

	// Scrub is the schedule of comparisons of the two copies of every pair, which continues to
	// serve.
	// +kubebuilder:default={schedule: "0 2 * * 6"}
	// +optional
	Scrub Scrub `json:"scrub,omitempty"`

	// Balancing is how pairs decide which node owns a LUN. A change takes effect within a minute,
	// without a restart of targets, except cpus. Unset: mode Auto, failBackDelay 30s.
	// +optional
	Balancing *Balancing `json:"balancing,omitempty"`
}

// Domains are two failure domains, and how many pairs have a node in each.
type Domains struct {
	// Between are the values of the label failureDomainKey of the workers of node a and of node b.
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self[0] != self[1]",message="between: the nodes of a pair are in different failure domains; name two different values of the label"
	Between []string `json:"between"`

	// Pairs is how many pairs the two have at least.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Pairs int32 `json:"pairs"`
}

// DomainsStatus counts the pairs of two failure domains.
type DomainsStatus struct {
	// Between are the values of the label failureDomainKey.
	// +listType=atomic
	Between []string `json:"between"`
	// Pairs that exist.
	// +optional
	Pairs int32 `json:"pairs"`
	// ReadyPairs are those that are InSync.
	// +optional
	ReadyPairs int32 `json:"readyPairs"`
}

// Modes of Balancing.
const (
	BalancingAuto    = "Auto"
	BalancingObserve = "Observe"
	BalancingOff     = "Off"
)

// Balancing is how pairs decide which node owns a LUN. status.ownership of each TargetPair has what
// is in force.
type Balancing struct {
	// Mode. Auto: LUNs return home, and go to the node that their hosts can use. Observe: pairs
	// only report what they would do. Off: LUNs stay where they are. In every mode pinned LUNs
	// move, and LUNs of a node that is drained or fails.
	// +kubebuilder:validation:Enum=Auto;Observe;Off
	// +kubebuilder:default=Auto
	// +optional
	Mode string `json:"mode,omitempty"`

	// FailBackDelay is how long a node has to be in sync before LUNs return to it, in whole
	// seconds.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('24h') && duration(self).getMilliseconds() % 1000 == 0",message="failBackDelay: from 5s to 24h, in whole seconds"
	// +optional
	FailBackDelay *metav1.Duration `json:"failBackDelay,omitempty"`

	// CPUs of each target node, to judge by how much it is used: work is evened between nodes of
	// which one uses more than 40 % of that. Set it where target pods share their workers with
	// other pods. It limits nothing. A change restarts one node of a pair at a time. Targets of
	// release 0.1.0 do not start with it. Unset: all CPUs of the worker.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('10m')) >= 0 && quantity(string(self)).compareTo(quantity('4096')) <= 0",message="cpus: from 10m to 4096, or leave it out for all CPUs of the worker"
	// +optional
	CPUs *resource.Quantity `json:"cpus,omitempty"`
}

// Scrub is when and how the copies of pairs are compared. status.scrub of each TargetPair has
// progress and results.
type Scrub struct {
	// Schedule in cron syntax, in UTC: minute, hour, day of the month, month, day of the week.
	// Missed times, while a pair was not in sync or the operator did not run, are made up for once.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ =@]+( [^ =@]+){4}$')",message="schedule: five fields with a space between them, minute, hour, day of the month, month, day of the week, in UTC, as in '0 2 * * 6' for Saturdays at two; no @ names, no time zone"
	// +kubebuilder:default="0 2 * * 6"
	// +optional
	Schedule string `json:"schedule,omitempty"`

	// Suspend stops the schedule; a running scrub continues, and `kubectl gemel scrub` starts one.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Repair makes a scheduled scrub repair ranges that differ. Blocks that do not match their
	// checksums are always repaired from the other copy; this field is for other differences, which
	// are repaired from the copy that hosts read. Unset: repair if all blocks of both nodes have
	// checksums. false: report only. true: repair even if it is unknown which copy is right.
	// +optional
	Repair *bool `json:"repair,omitempty"`

	// BytesPerSecond limits the bytes per second that each node of a pair compares; it compares
	// less while hosts are active. Empty: 64Mi.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="bytesPerSecond: from 1Mi to 1Ti, or leave it out for 64Mi"
	// +optional
	BytesPerSecond *resource.Quantity `json:"bytesPerSecond,omitempty"`

	// Parallel is the maximum number of pairs of the cluster in a scheduled scrub at a time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	// +optional
	Parallel int32 `json:"parallel,omitempty"`
}

// Security of the connections from workers to targets. Connections between targets and operator
// always use mutual TLS.
type Security struct {
	// CHAP is the authentication of workers and targets at login. Mutual: in both directions, with
	// credentials that the operator creates for every worker and pair. None: a worker logs in by
	// its iSCSI name only. A change takes effect for a worker on a pair when it has no LUN of that
	// pair: attached LUNs continue as before.
	// +kubebuilder:validation:Enum=Mutual;None
	// +kubebuilder:default=Mutual
	// +optional
	CHAP string `json:"chap,omitempty"`
}

// Tiering says how the nodes arrange the tiers of pools.
type Tiering struct {
	// Mode: Auto moves what hosts use most to volumes of tier Fast, and back; Observe only says
	// what Auto would do (kubectl gemel tiering); Off counts and moves nothing. Pins of LUNs are
	// followed with Auto. A change is rolled out one node of a pair at a time.
	// +kubebuilder:validation:Enum=Auto;Observe;Off
	// +kubebuilder:default=Auto
	// +optional
	Mode string `json:"mode,omitempty"`
}

// PoolVolumes are more volumes of each target node for a pool, over which the LUNs of the pool are
// spread.
type PoolVolumes struct {
	// Name of these volumes: the members of the pool are called name-0, name-1 and so on.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$`
	Name string `json:"name"`

	// StorageClassName of their claims; what holds for that of the pool holds for it, too.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storageClassName: the class of volumes cannot be changed; add volumes of another name, and take these away"
	StorageClassName string `json:"storageClassName"`

	// Size of each new one, 1Gi at least.
	Size resource.Quantity `json:"size"`

	// Count of them on each node. With a smaller one, or without the entry, data moves away from
	// the last ones while hosts use it, and then they are taken away; their claims are kept.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +kubebuilder:default=1
	// +optional
	Count int32 `json:"count,omitempty"`

	// Tier of the volumes: Fast has what hosts use most; Capacity, the default, has the rest, and
	// what is new.
	// +kubebuilder:validation:Enum=Fast;Capacity
	// +optional
	Tier string `json:"tier,omitempty"`
}

// Pool is a kind of backing volume.
//
// +kubebuilder:validation:XValidation:rule="!has(self.tier) || self.tier != 'Fast' || has(self.volumes) && self.volumes.exists(v, !has(v.tier) || v.tier != 'Fast')",message="tier: a pool of fast volumes only has one tier; add volumes of tier Capacity, or leave tier out"
type Pool struct {
	// Name of the pool, for the StorageClass parameter `pool`.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`
	Name string `json:"name"`

	// StorageClassName of the claims for backing volumes. Its volumes must be local to one worker,
	// have a filesystem (XFS, for snapshots that share extents), and must not be of Gemel.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storageClassName: a pool's class cannot be changed; backing volumes hold data"
	StorageClassName string `json:"storageClassName"`

	// Size of each new backing volume.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Gi')) >= 0",message="size: a backing volume has 1Gi at least"
	Size resource.Quantity `json:"size"`

	// OvercommitPercent limits what is promised to LUNs, which are thin: on each pair the sizes of
	// the LUNs of the pool are together at most so many percent of the capacity of the pool there.
	// 100 promises no more than there is; snapshots take space besides. A LUN, a copy or an
	// expansion that would promise more is refused; what exists stays. Default: 2000.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=100000
	// +optional
	OvercommitPercent int32 `json:"overcommitPercent,omitempty"`

	// Volumes of each target node beside the one of the pool itself. The LUNs of the pool are
	// spread over all of them, and have their space and speed together. Volumes can be added and
	// taken away while hosts use the LUNs; each change is rolled out one node of a pair at a time,
	// and needs target nodes of release 0.2.0 or later.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []PoolVolumes `json:"volumes,omitempty"`

	// Tier of the volume of the pool itself: Fast or Capacity, the default. It matters if the pool
	// has volumes of both tiers.
	// +kubebuilder:validation:Enum=Fast;Capacity
	// +optional
	Tier string `json:"tier,omitempty"`

	// AccessibleFrom are the workers that reach the pool: those that have all labels of one term.
	// Only they get capacity for the pool, and the node affinity of its volumes names the terms.
	// Keys are labels that workers report: zone, region and the keys of --topology-keys. It can be
	// changed, for volumes that are created from then on: the node affinity of a PersistentVolume
	// stays. Empty: all workers reach the pool.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(t, t.matchLabels.all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')))",message="accessibleFrom: a key is not that of a label; use topology.kubernetes.io/zone, topology.kubernetes.io/region, or a key of --topology-keys of the node plugin"
	// +kubebuilder:validation:XValidation:rule="self.all(t, t.matchLabels.all(k, k != 'kubernetes.io/hostname' && !k.startsWith('csi.gemel.storage/')))",message="accessibleFrom: workers report neither kubernetes.io/hostname nor keys of csi.gemel.storage; give the workers a label of your own, and name it in --topology-keys of the node plugin"
	// +kubebuilder:validation:XValidation:rule="self.all(t, t.matchLabels.all(k, t.matchLabels[k].matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')))",message="accessibleFrom: a value is empty, or is not that of a label; workers do not report empty labels"
	// +optional
	AccessibleFrom []TopologyTerm `json:"accessibleFrom,omitempty"`
}

// TopologyTerm selects workers by their labels.
type TopologyTerm struct {
	// MatchLabels are labels that a worker must all have, 1 to 16.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]TopologyValue `json:"matchLabels"`
}

// PoolStatus is the capacity of a pool.
type PoolStatus struct {
	// Name of the pool.
	Name string `json:"name"`
	// Capacity of the smaller member of each pair.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is the free space for LUNs, on the member with less.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Promised is the sum of the sizes of the LUNs. A LUN is thin: it takes what is written to it.
	// +optional
	Promised *resource.Quantity `json:"promised,omitempty"`
	// Promisable is how much may be promised: the percentage of the capacity that overcommitPercent
	// of the pool says.
	// +optional
	Promisable *resource.Quantity `json:"promisable,omitempty"`
}

// StorageClusterStatus is the observed state.
type StorageClusterStatus struct {
	// ObservedGeneration is the generation of the spec that this status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready, UpToDate, SpaceAvailable, and DomainsMatch if spec.domains is set.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Pairs is the number of existing pairs.
	// +optional
	Pairs int32 `json:"pairs"`
	// ReadyPairs is the number of pairs that are InSync.
	// +optional
	ReadyPairs int32 `json:"readyPairs"`
	// Capacity is the sum over pairs, each of its smaller member.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Free is the free space for LUNs.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Pools with their sums over all pairs.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// Domains with their pairs, if spec.domains is set: those of the spec in its order, then others
	// that pairs are in.
	// +kubebuilder:validation:MaxItems=96
	// +listType=atomic
	// +optional
	Domains []DomainsStatus `json:"domains,omitempty"`
	// LogicalUnits is the number of LUNs of the pairs.
	// +optional
	LogicalUnits int32 `json:"logicalUnits"`
	// Image for every target node.
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
// +kubebuilder:printcolumn:name="InSync",type=string,JSONPath=`.status.readyPairs`
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

// StorageClusterList is a list of StorageClusters.
//
// +kubebuilder:object:root=true
type StorageClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StorageCluster `json:"items"`
}
