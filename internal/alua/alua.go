// Package alua holds the asymmetric logical unit access states and the encodings that report them
// (SPC-4 §5.15, §6.37). Gemel is implicit only: TPGS = 01b.
package alua

// State is an asymmetric access state (SPC-4 table 303).
type State byte

// States that Gemel reports.
const (
	Optimized     State = 0x0
	NonOptimized  State = 0x1
	Standby       State = 0x2
	Unavailable   State = 0x3
	Transitioning State = 0xf
)

// Status says why a group has its state (SPC-4 table 305).
type Status byte

// Status codes.
const (
	NoStatus Status = 0
	Explicit Status = 1 // SET TARGET PORT GROUPS; never used by Gemel
	Implicit Status = 2
)

// Group is one target port group. Gemel has two: tag 1 = node a, tag 2 = node b, each with one port
// of the same number.
type Group struct {
	Tag       uint16
	State     State
	Preferred bool
	Status    Status
	Ports     []uint16 // relative target port identifiers
}

// Report is the answer to REPORT TARGET PORT GROUPS for one logical unit.
type Report struct {
	Groups         []Group
	TransitionTime byte // implicit transition time in seconds (extended header)
}
