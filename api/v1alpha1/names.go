package v1alpha1

import (
	"strconv"
	"strings"
)

// Conditions. Each object has Ready; the others give details. Status True is always the good state.
const (
	// ConditionReady: the object works. kstatus and `kubectl wait` use it.
	ConditionReady = "Ready"
	// ConditionInSync: both nodes of the pair are members and hold every acknowledged write.
	ConditionInSync = "InSync"
	// ConditionReachable: the control API of both nodes answers the operator.
	ConditionReachable = "Reachable"
	// ConditionUpToDate: every target has the image and the settings of the spec.
	ConditionUpToDate = "UpToDate"
	// ConditionSpaceAvailable: every pool has free space, and more may be promised to new LUNs.
	ConditionSpaceAvailable = "SpaceAvailable"
	// ConditionDomainsMatch: the couples of spec.domains have their pairs.
	ConditionDomainsMatch = "DomainsMatch"
	// ConditionPublished: every host of the spec can access the LUN, and no other host can.
	ConditionPublished = "Published"
	// ConditionPathsComplete: a worker and the targets of its attached LUNs see every path, and the
	// worker requests the target port groups on each.
	ConditionPathsComplete = "PathsComplete"
)

// Reasons of conditions.
const (
	ReasonReady         = "Ready"
	ReasonProgressing   = "Progressing"
	ReasonNoRoom        = "NoRoom"             // no pair has enough free space: add a pair or larger disks
	ReasonInvalid       = "Invalid"            // the spec is invalid; the message names the field and the fix
	ReasonPairDown      = "PairDown"           // no node of the pair serves
	ReasonDegraded      = "Degraded"           // one node of the pair is missing: the data is safe on the other
	ReasonMissing       = "Missing"            // it was created once and no longer exists
	ReasonInUse         = "InUse"              // it has data in use
	ReasonQuarantined   = "Quarantined"        // its commands ended processes of the pair: an administrator must decide
	ReasonTooFewNodes   = "TooFewNodes"        // too few workers or failure domains for the pairs
	ReasonNoSource      = "NoSource"           // the source of the copy does not exist
	ReasonNotConfirmed  = "NotConfirmed"       // the storage did not confirm; the operation is retried
	ReasonNoStorage     = "NoStorage"          // no free backing volume
	ReasonRolling       = "Rolling"            // nodes are being restarted one after the other
	ReasonNotEnrolled   = "NotEnrolled"        // no Host has the iSCSI name, or several have it
	ReasonNotSupported  = "NotSupported"       // not supported by this release
	ReasonAcceptLoss    = "AcceptLoss"         // an administrator must decide
	ReasonUnschedulable = "Unschedulable"      // a pod cannot be scheduled
	ReasonPathLost      = "HostRedundancyLost" // a worker has no session on one of the nodes
	ReasonPathUnseen    = "PathsNotDiscovered" // a worker has a session, but lacks paths
	ReasonUnreachable   = "NodeUnreachable"    // the operator cannot reach a node; the other one reports that both are in sync
	ReasonMember        = "Members"            // data moves away from members of a pool that the spec does not have any more
	ReasonExpanding     = "Expanding"          // backing volumes are being made larger
	ReasonDataKept      = "DataKept"           // the object is being deleted, but its data is kept: the message says what to do

	ReasonNearFull      = "NearFull"      // a pool has little free space
	ReasonFull          = "Full"          // a pool has no free space: writes that need some end with an error
	ReasonOvercommitted = "Overcommitted" // as much is promised to LUNs as overcommitPercent allows: no new LUN

	ReasonNoClaims        = "NoClaims"        // the selector of a group selects no claim
	ReasonConflict        = "Conflict"        // another group selects a claim as well
	ReasonSeveralClusters = "SeveralClusters" // the LUNs of a group are in several StorageClusters

	ReasonPathUnasked = "NotAskedForTargetPortGroups" // a worker uses a path, but does not request the target port groups on it
)

// Reasons of events about a scrub.
const (
	ReasonScrubStarted    = "ScrubStarted"
	ReasonScrubFinished   = "ScrubFinished"
	ReasonScrubMismatched = "ScrubMismatched" // a range differs
	ReasonScrubRepaired   = "ScrubRepaired"   // the range was repaired
)

// Reasons of events about a drain of the operator.
const (
	ReasonDrained    = "Drained"    // no LUN moves to the node
	ReasonDrainEnded = "DrainEnded" // LUNs return to the node
)

// ReasonPlaced is the reason of the event about the pair and the home of a new LUN.
const ReasonPlaced = "Placed"

// ReasonCrashed is the reason of the event of a TargetPair when the process of one of its nodes has
// crashed; its supervisor starts it again.
const ReasonCrashed = "Crashed"

// ReasonSpread is the reason of the event about a home that a ConsistencyGroup has changed.
const ReasonSpread = "Spread"

// Reasons of events about redundancy, of a TargetPair, a Host and claims. The loss of a Host's
// paths is ReasonPathLost.
const (
	ReasonRedundancyLost = "RedundancyLost"         // writes are on one node
	ReasonRedundancyBack = "RedundancyRestored"     // both nodes have all data again
	ReasonPathsBack      = "HostRedundancyRestored" // a worker has all its paths again
)

// Reasons of moves that the operator derives; the others are the pair's.
const (
	MoveDrain     = "Drain"
	MovePin       = "Pin"
	MoveOwnerGone = "OwnerGone" // the former owner left the pair
	MoveTransfer  = "Transfer"  // by a person
	MoveUnknown   = "Unknown"
)

// Reasons of events about blocks that did not match their checksums.
const (
	ReasonBlocksHealed = "BlocksHealed" // healed from the other node
	ReasonBlocksLost   = "BlocksLost"   // no node has a good copy
)

// Values of TargetPair.status.scrub.origin.
const (
	ScrubBySchedule = "Schedule"
	ScrubByPerson   = "Person"
)

// Tiers of a pool.
const (
	TierFast     = "Fast"
	TierCapacity = "Capacity"
)

// Values of StorageCluster.spec.tiering.mode.
const (
	TieringAuto    = "Auto"
	TieringObserve = "Observe"
	TieringOff     = "Off"
)

// Values of StorageCluster.spec.security.chap.
const (
	CHAPMutual = "Mutual"
	CHAPNone   = "None"
)

// Labels of objects that the operator creates.
const (
	LabelCluster = "gemel.storage/cluster" // StorageCluster
	LabelPair    = "gemel.storage/pair"    // TargetPair
	LabelNode    = "gemel.storage/node"    // "a" or "b"
	LabelPool    = "gemel.storage/pool"    // pool of a backing volume
	LabelMember  = "gemel.storage/member"  // member of a pool, for its claims
	LabelStriped = "gemel.storage/striped" // of the object of a leg: that of its striped volume, or of the snapshot of one
	LabelClone   = "gemel.storage/clone"   // of a snapshot that a clone of a striped volume is made from: the clone's UUID; it goes when the clone is made

	// LabelComponent distinguishes Secrets; ComponentCHAP marks the credentials of a worker on a
	// pair.
	LabelComponent = "app.kubernetes.io/component"
	ComponentCHAP  = "chap"
)

// PairName of a cluster's pair, numbered from 0.
func PairName(cluster string, i int) string { return cluster + "-p" + strconv.Itoa(i) }

// PairNumber of a pair in its cluster; false for a name without a number.
func PairNumber(pair, cluster string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(pair, cluster+"-p"))
	return n, err == nil
}

// FieldPair is a selectable field of LogicalUnits, and an index of the operator's cache.
const FieldPair = "spec.placement.pair"

// Finalizer keeps a LogicalUnit until its data was destroyed after spec.destroy, a pair until it
// has no LUN, and a cluster until it has no pair.
const Finalizer = "gemel.storage/data"

// AnnotationMade is "true" on a LogicalUnit or LogicalUnitSnapshot whose data was created on the
// disks. From then on it is never created again: an empty replacement would hide a loss.
const AnnotationMade = "gemel.storage/made"

// AnnotationReplayed is "true" on a LogicalUnit whose filesystem's log has been replayed for
// read-only hosts, and that has not been written since. The next read-only publish needs no replay.
const AnnotationReplayed = "gemel.storage/log-replayed"

// AnnotationPlaced says on a LogicalUnit, for people, why it is on its pair, and why a node is its
// home. It is written together with spec.placement.
const AnnotationPlaced = "gemel.storage/placed"

// AnnotationRestricted says on a LogicalUnit, for people, what has restricted it to some workers:
// the pool, the StorageClass, or both. It is written together with spec.accessibleFrom.
const AnnotationRestricted = "gemel.storage/restricted"

// Field managers of the operator and the CSI driver.
const (
	OperatorManager = "gemel-operator"
	DriverManager   = "gemel-csi"
)

// DriverName of the CSI driver.
const DriverName = "csi.gemel.storage"

// Parameters of a StorageClass.
const (
	ParamCluster   = "cluster"       // StorageCluster; required
	ParamPreferred = "preferredNode" // "a", "b" or "" (the pair chooses)
	ParamPinned    = "pinnedNode"    // "a", "b", NoPin or "" (none when created; later it stays)
	ParamLUNs      = "luns"          // of a striped volume, 2 to 16; "" or "1": one LUN
	ParamIOPS      = "iops"          // of a volume, instead of ParamLUNs: 1 to 800000
	ParamStripe    = "stripeSize"    // of a striped volume, 64Ki to 1Mi; "": 1Mi divided by the LUNs
	ParamSpread    = "spread"        // of a striped volume, OverNodes or OverPairs; "": OverNodes
	ParamSessions  = "sessions"      // of each worker to each portal, 1 to 8; "": as its Host says, else 1
	ParamPool      = "pool"          // of the StorageCluster; "": the first one, or that of the source
	ParamFSType    = "csi.storage.k8s.io/fstype"
	// ParamTier is TierFast, TierCapacity, NoPin or "" (none when created; later it stays).
	ParamTier = "tier"
	// ParamWriteCache is WriteBack or WriteThrough. A VolumeAttributesClass supports it, ParamTier,
	// ParamPreferred and ParamPinned.
	ParamWriteCache = "writeCache"
)

// Values of ParamSpread: the LUNs of a striped volume are spread over both nodes of one pair, or
// over several pairs.
const (
	OverNodes = "nodes"
	OverPairs = "pairs"
)

// MaxSessions is the greatest value of ParamSessions.
const MaxSessions = 8

// LegsOverPairs is the value of LogicalUnit.spec.spread for OverPairs.
const LegsOverPairs = "Pairs"

// NoPin is the value of ParamPinned and ParamTier for a LUN that is not pinned.
const NoPin = "none"

// Write cache modes of a LUN.
const (
	WriteBack    = "write-back"
	WriteThrough = "write-through"
)
