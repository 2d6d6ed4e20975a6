package scsi

import "slices"

// Persistent reservation types (SPC-4 table 65).
const (
	PRWriteExclusive        = 1
	PRExclusiveAccess       = 3
	PRWriteExclusiveRegOnly = 5
	PRExclusiveAccessReg    = 6
	PRWriteExclusiveAllReg  = 7
	PRExclusiveAccessAllReg = 8
)

// maxRegistrants bounds what one unit keeps; beyond it REGISTER fails with 55/04.
const maxRegistrants = 1024

// Registrant is an I_T nexus with its reservation key.
type Registrant struct {
	Nexus NexusID `json:"nexus"`
	Key   uint64  `json:"key"`
}

// PRState is the reservation state of a unit: a value that is replicated and never changed in
// place.
type PRState struct {
	Generation  uint32       `json:"generation"`
	Registrants []Registrant `json:"registrants,omitempty"` // in order of registration
	Type        byte         `json:"type,omitempty"`        // 0: nothing is reserved
	Holder      NexusID      `json:"holder,omitzero"`       // not used by the all-registrants types
	APTPL       bool         `json:"aptpl,omitempty"`       // as last asked; the state is durable in any case
	Reserved    *NexusID     `json:"reserved,omitempty"`    // RESERVE(6), SPC-2 §7.21
}

// AccessKind is what a command does, as far as reservations care (SPC-4 table 66, SBC-3 table 13).
type AccessKind byte

// Access kinds.
const (
	AccessFree  AccessKind = iota // INQUIRY and what has rules of its own: never in conflict
	AccessQuery                   // allowed under every persistent reservation, not under RESERVE(6)
	AccessRead                    // in conflict with the exclusive access types
	AccessWrite                   // in conflict with all types
)

// KindOf is the access kind of a medium operation.
func KindOf(k OpKind) AccessKind {
	if k == OpRead || k == OpMapped {
		return AccessRead
	}
	return AccessWrite // SYNCHRONIZE CACHE too (SBC-3 table 13)
}

// Conflict reports whether a command of nexus n has to end with RESERVATION CONFLICT. It does not
// allocate: it is called for every operation when its execution starts (R9).
func (s *PRState) Conflict(n *NexusID, kind AccessKind) bool {
	if kind == AccessFree || s.Type == 0 && s.Reserved == nil {
		return false
	}
	if s.Reserved != nil && *s.Reserved != *n {
		return true
	}
	if s.Type == 0 || kind == AccessQuery {
		return false
	}
	switch s.Type {
	case PRWriteExclusive:
		return kind == AccessWrite && s.Holder != *n
	case PRExclusiveAccess:
		return s.Holder != *n
	case PRWriteExclusiveRegOnly, PRWriteExclusiveAllReg:
		return kind == AccessWrite && s.find(n) < 0
	}
	return s.find(n) < 0
}

func (s *PRState) find(n *NexusID) int {
	for i := range s.Registrants {
		if s.Registrants[i].Nexus == *n {
			return i
		}
	}
	return -1
}

// Hosts lists the iSCSI names that are registered or hold a RESERVE(6), each once.
func (s *PRState) Hosts() (list []string) {
	add := func(host string) {
		if !slices.Contains(list, host) {
			list = append(list, host)
		}
	}
	for i := range s.Registrants {
		add(s.Registrants[i].Nexus.Initiator)
	}
	if s.Reserved != nil {
		add(s.Reserved.Initiator)
	}
	return list
}

func allRegistrants(typ byte) bool {
	return typ == PRWriteExclusiveAllReg || typ == PRExclusiveAccessAllReg
}

func registrantsOnly(typ byte) bool {
	return typ == PRWriteExclusiveRegOnly || typ == PRExclusiveAccessReg
}

func validPRType(typ byte) bool {
	return typ == PRWriteExclusive || typ == PRExclusiveAccess || typ >= PRWriteExclusiveRegOnly && typ <= PRExclusiveAccessAllReg
}

// holds reports whether n is a holder of the reservation.
func (s *PRState) holds(n *NexusID) bool {
	if s.Type == 0 {
		return false
	}
	if allRegistrants(s.Type) {
		return s.find(n) >= 0
	}
	return s.Holder == *n
}
