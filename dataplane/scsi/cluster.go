package scsi

import (
	"github.com/gemel-storage/gemel/internal/alua"
)

// Reset scopes for Cluster.Reset.
type ResetScope byte

// Scopes of a reset that acts on both nodes (R9).
const (
	ResetUnit   ResetScope = iota // LOGICAL UNIT RESET, CLEAR TASK SET
	ResetTarget                   // TARGET WARM RESET: every unit of the host that asks
)

// Cluster is what the device server asks of the node around it: the replicated tables and the pair.
// All methods are safe for concurrent use. Lookup, LUNs and Groups are on the command path and do
// not block.
type Cluster interface {
	// Lookup finds the unit a host (iSCSI name, lower case) sees under a flat LUN; nil when none is
	// mapped.
	Lookup(host string, lun uint16) *Unit
	// Access is the access state of the node itself. Only one that serves knows that what Lookup
	// does not find is not there: the tables of one that has just started, or is no member, may be
	// older than the mapping. Called for such commands only.
	Access() Access
	// SinglePath reports whether a host (iSCSI name, lower case) has one path only and does not
	// know ALUA. Called for commands that are to be answered NOT READY only.
	SinglePath(host string) bool
	// LUNs appends the numbers visible to host, ascending.
	LUNs(host string, to []uint16) []uint16
	// Groups reports both target port groups as they are for this unit (RTPG).
	Groups(u *Unit) alua.Report
	// Propose replicates a change of pair state and calls done once it is durable and applied on
	// every member (R9). change is one of PROut or ModeSelect. The result byte is a SCSI status,
	// the sense as the applying code made it.
	Propose(u *Unit, nexus NexusID, change Change, done func(Outcome))
	// Reset aborts the commands of every nexus on the unit (nil: on each unit that the host of by
	// sees) on both nodes and calls done when each has ended or will never start (R11c). Unit
	// attentions 29/03 (29/02 for the target) are raised on both nodes, except for by, whose own
	// task manager answers.
	Reset(u *Unit, scope ResetScope, by NexusID, done func(ok bool))
}

// Change is a proposal to the pair's metadata log: exactly one field is set. It must be
// deterministic to apply.
type Change struct {
	PROut      *PROut
	ModeSelect *ModeSelect
}

// Outcome is what applying a Change gave, the same on every node.
type Outcome struct {
	Status byte   // SCSI status
	Sense  []byte // with CHECK CONDITION
}
