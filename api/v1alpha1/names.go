package v1alpha1

import (
	"strconv"
	"strings"
)

// Conditions. Each object has Ready; the others say more of why it is not. Status True is always the good state.
const (
	// ConditionReady: the object does what it is for. kstatus and `kubectl wait` look at it.
	ConditionReady = "Ready"
	// ConditionInSync: both nodes of the pair are members and hold every acknowledged write.
	ConditionInSync = "InSync"
	// ConditionReachable: the control API of both nodes answers the operator.
	ConditionReachable = "Reachable"
	// ConditionUpToDate: every target runs the image and the settings of the spec.
	ConditionUpToDate = "UpToDate"
	// ConditionPublished: every host in the spec reaches the LUN, and no other one does.
	ConditionPublished = "Published"
	// ConditionPathsComplete: a worker and the targets of the LUNs that it holds see every path between them, and the worker asks there who owns
	// the LUNs.
	ConditionPathsComplete = "PathsComplete"
)

// Reasons of conditions that other code decides by.
const (
	ReasonReady         = "Ready"
	ReasonProgressing   = "Progressing"
	ReasonNoRoom        = "NoRoom"             // nothing can take it: add a pair or make the disks larger
	ReasonInvalid       = "Invalid"            // the spec cannot be done; the message names the field and the fix
	ReasonPairDown      = "PairDown"           // no node of the pair serves
	ReasonDegraded      = "Degraded"           // one node of the pair is missing: the data is safe on the other
	ReasonMissing       = "Missing"            // it was made once and is not there any more
	ReasonInUse         = "InUse"              // it holds data that somebody uses
	ReasonTooFewNodes   = "TooFewNodes"        // nodes or failure domains for the pairs are lacking
	ReasonNoSource      = "NoSource"           // what it is a copy of is not there
	ReasonNotConfirmed  = "NotConfirmed"       // the storage did not confirm; it is tried again
	ReasonNoStorage     = "NoStorage"          // no backing volume
	ReasonRolling       = "Rolling"            // nodes are being replaced one after the other
	ReasonNotEnrolled   = "NotEnrolled"        // the worker has not said its iSCSI name yet, or two say the same
	ReasonNotSupported  = "NotSupported"       // this version cannot do it
	ReasonAcceptLoss    = "AcceptLoss"         // only an administrator can decide
	ReasonUnschedulable = "Unschedulable"      // a pod of it finds no worker
	ReasonPathLost      = "HostRedundancyLost" // a worker has no connection to one of the nodes
	ReasonPathUnseen    = "PathsNotDiscovered" // it is connected, and does not show the LUNs that are there
	ReasonDataKept      = "DataKept"           // the object is being deleted, its data is not: the message says what to do

	ReasonPathUnasked = "NotAskedForTargetPortGroups" // a worker uses a path and does not ask there who owns the LUNs
)

// Reasons of events about a scrub.
const (
	ReasonScrubStarted    = "ScrubStarted"
	ReasonScrubFinished   = "ScrubFinished"
	ReasonScrubMismatched = "ScrubMismatched" // a range differs
	ReasonScrubRepaired   = "ScrubRepaired"   // it was written again
)

// Reasons of events about blocks that did not match their checksums.
const (
	ReasonBlocksHealed = "BlocksHealed" // they were written again from the other node
	ReasonBlocksLost   = "BlocksLost"   // no node has a good copy
)

// Values of TargetPair.status.scrub.origin.
const (
	ScrubBySchedule = "Schedule"
	ScrubByPerson   = "Person"
)

// Values of StorageCluster.spec.security.chap.
const (
	CHAPMutual = "Mutual"
	CHAPNone   = "None"
)

// Labels on what the operator makes.
const (
	LabelCluster = "gemel.storage/cluster" // StorageCluster
	LabelPair    = "gemel.storage/pair"    // TargetPair
	LabelNode    = "gemel.storage/node"    // "a" or "b"
	LabelPool    = "gemel.storage/pool"    // pool of a backing volume

	// LabelComponent tells the kinds of Secrets apart; ComponentCHAP is on those with credentials of a worker on a pair.
	LabelComponent = "app.kubernetes.io/component"
	ComponentCHAP  = "chap"
)

// PairName of a cluster's pair, by number from 0.
func PairName(cluster string, i int) string { return cluster + "-p" + strconv.Itoa(i) }

// PairNumber of a pair in its cluster; false for a name that tells none.
func PairNumber(pair, cluster string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(pair, cluster+"-p"))
	return n, err == nil
}

// FieldPair of LogicalUnits can be selected by, and the operator's cache is indexed by it.
const FieldPair = "spec.placement.pair"

// Finalizer keeps an object until what it stands for is safe: a LUN with data until spec.destroy has been carried out, a
// pair until it holds no LUN, a cluster until it has no pair.
const Finalizer = "gemel.storage/data"

// AnnotationMade is "true" on a LogicalUnit or LogicalUnitSnapshot whose data was made on the disks. From then on it is never
// made again: if it is not there any more, an empty one in its place would hide the loss.
const AnnotationMade = "gemel.storage/made"

// AnnotationReplayed is "true" on a LogicalUnit whose filesystem has been replayed for hosts that only read it, and not been written
// since. The next one that is published read-only is spared the replay.
const AnnotationReplayed = "gemel.storage/log-replayed"

// FieldManager of what the operator applies, and of what the CSI driver does.
const (
	OperatorManager = "gemel-operator"
	DriverManager   = "gemel-csi"
)

// DriverName of the CSI driver.
const DriverName = "csi.gemel.storage"

// Parameters of a StorageClass.
const (
	ParamCluster   = "cluster"       // StorageCluster; needed
	ParamPreferred = "preferredNode" // "a", "b" or "" (the pair chooses)
	ParamPool      = "pool"          // of that StorageCluster; "": the first one, or that of the source
	ParamFSType    = "csi.storage.k8s.io/fstype"
	// ParamWriteCache is WriteBack or WriteThrough. A VolumeAttributesClass may have this one and ParamPreferred.
	ParamWriteCache = "writeCache"
)

// Write cache modes of a LUN.
const (
	WriteBack    = "write-back"
	WriteThrough = "write-through"
)
