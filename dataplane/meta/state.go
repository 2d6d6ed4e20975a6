// Package meta is the replicated metadata of a pair (R9): LUNs, snapshots, hosts and their maps,
// reservations, mode pages, ownership. State is a plain value; Apply changes it deterministically,
// so that both nodes, applying the same entries at the same indexes, hold the same. What an entry
// means for files and hosts is the runtime's part.
package meta

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Limits.
const (
	MaxLUNs      = 16384     // per pair
	MaxLUN       = 16383     // flat addressing (SAM-5 §4.7.7)
	MaxName      = 253       // bytes
	MaxLabels    = 64        // per object
	MaxLabelSize = 1024      // bytes, key and value together
	SizeStep     = 1 << 20   // LUN sizes are multiples of 1 MiB
	MaxSize      = 256 << 40 // bytes
)

// Stage of an object that is made on both nodes before it is visible (R14).
type Stage string

// Stages. A copy is Empty, Copying, then Ready; of 0.1.0 it is Preparing, then Ready,
// and all of it is copied when it is prepared.
const (
	Preparing Stage = "preparing"
	Empty     Stage = "empty"   // its file is there, and nothing has been copied yet
	Copying   Stage = "copying" // it is what its source was at an instant, and not all of that has been copied yet
	Ready     Stage = "ready"
)

// LUN is one logical unit.
type LUN struct {
	UUID           string            `json:"uuid"`
	Name           string            `json:"name"`
	Size           int64             `json:"size"` // bytes
	Stage          Stage             `json:"stage"`
	Owner          string            `json:"owner"` // "a" or "b"
	Seq            uint64            `json:"seq"`   // of the ownership (R10)
	Preferred      string            `json:"preferred"`
	Hold           *Hold             `json:"hold,omitempty"`       // of the last transfer by a person
	Pin            string            `json:"pin,omitempty"`        // the node that owns it whenever it can, "" if there is none
	Tier           string            `json:"tier,omitempty"`       // TierFast or TierCapacity, where its extents lie; "": where their use puts each
	Group          string            `json:"group,omitempty"`      // balancing keeps the LUNs of a group spread over the nodes
	Quarantine     string            `json:"quarantine,omitempty"` // why no command of hosts is executed; "": they are
	SourceSnapshot string            `json:"source_snapshot,omitempty"`
	SourceLUN      string            `json:"source_lun,omitempty"`
	Volume         string            `json:"volume,omitempty"` // backing volume on both nodes; empty: the default one
	Labels         map[string]string `json:"labels,omitempty"`
	Created        time.Time         `json:"created"`
	Born           uint64            `json:"born,omitempty"` // log index at which it was made: another LUN under the same uuid has another
	Maps           map[string]Map    `json:"maps,omitempty"` // by host
	PR             *scsi.PRState     `json:"pr,omitempty"`
	Mode           *scsi.ModeState   `json:"mode,omitempty"`
}

// Map lets a host see a LUN.
type Map struct {
	LUN        uint16 `json:"lun"`
	Generation uint64 `json:"generation"`
	ReadOnly   bool   `json:"read_only,omitempty"`
	Lost       bool   `json:"lost,omitempty"` // writes acknowledged to this host may be gone: MEDIUM ERROR until it is mapped again (R8)
	Near       Near   `json:"near,omitzero"`  // where the host is
}

// Snapshot is a read-only copy, not exported.
type Snapshot struct {
	UUID    string            `json:"uuid"`
	Name    string            `json:"name"`
	Source  string            `json:"source"`
	Size    int64             `json:"size"`
	Stage   Stage             `json:"stage"`
	Created time.Time         `json:"created"`
	Born    uint64            `json:"born,omitempty"`   // as for a LUN
	Volume  string            `json:"volume,omitempty"` // its source's
	Labels  map[string]string `json:"labels,omitempty"`
	Group   string            `json:"group,omitempty"`   // uuid of the group snapshot that it is a member of
	Attempt uint64            `json:"attempt,omitempty"` // of the group, in which it was made
}

// Host is an initiator.
type Host struct {
	IQN     string `json:"iqn"`
	NextLUN uint16 `json:"next_lun"` // numbers are handed out upwards, so that reuse is as late as possible
	CHAP    CHAP   `json:"chap,omitzero"`
	// Profile that was asked for; empty: the host is recognised by its iSCSI name. 0.1.0 passes
	// over it, and is not sent it.
	Profile string `json:"profile,omitempty"`
}

// CHAP holds a host's secrets on this pair. They are stored, never logged, never returned.
type CHAP struct {
	User         string `json:"user,omitempty"`
	Secret       string `json:"secret,omitempty"`
	MutualUser   string `json:"mutual_user,omitempty"`
	MutualSecret string `json:"mutual_secret,omitempty"`
}

// State is the replicated metadata of a pair.
type State struct {
	Index      uint64               `json:"index"`
	Generation uint64               `json:"generation"` // of the last mapping
	LUNs       map[string]*LUN      `json:"luns"`
	Snapshots  map[string]*Snapshot `json:"snapshots"`
	Hosts      map[string]*Host     `json:"hosts"`
	Drain      *Drain               `json:"drain,omitempty"`
	Policy     *Policy              `json:"policy,omitempty"` // nil: none was ever set
	Groups     map[string]*Group    `json:"groups,omitempty"`
}

// NewState is the state of an empty pair.
func NewState() *State {
	return &State{LUNs: map[string]*LUN{}, Snapshots: map[string]*Snapshot{}, Hosts: map[string]*Host{}, Groups: map[string]*Group{}}
}

// Errors of changes. The control API maps them to gRPC codes.
var (
	ErrNotFound  = errors.New("not found")
	ErrExists    = errors.New("exists with other properties")
	ErrInUse     = errors.New("in use")
	ErrInvalid   = errors.New("invalid")
	ErrExhausted = errors.New("exhausted")
	ErrNotReady  = errors.New("still being created")
	// ErrUnfinished: a preparation of the same copy was never committed. The nodes may hold
	// different states of its source, so it is aborted before it is made again.
	ErrUnfinished = errors.New("an earlier attempt was not finished")
	// ErrAborted: what was asked for is of an attempt that is over.
	ErrAborted = errors.New("the attempt is over")
)

// LUNByName finds a LUN, nil if there is none.
func (s *State) LUNByName(name string) *LUN {
	for _, l := range s.LUNs {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// SnapshotByName finds a snapshot, nil if there is none.
func (s *State) SnapshotByName(name string) *Snapshot {
	for _, n := range s.Snapshots {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// SortedLUNs lists LUNs by uuid.
func (s *State) SortedLUNs() []*LUN {
	out := make([]*LUN, 0, len(s.LUNs))
	for _, id := range slices.Sorted(maps.Keys(s.LUNs)) {
		out = append(out, s.LUNs[id])
	}
	return out
}

// SortedSnapshots lists snapshots by uuid.
func (s *State) SortedSnapshots() []*Snapshot {
	out := make([]*Snapshot, 0, len(s.Snapshots))
	for _, id := range slices.Sorted(maps.Keys(s.Snapshots)) {
		out = append(out, s.Snapshots[id])
	}
	return out
}

// Owned counts LUNs per owner.
func (s *State) Owned(node string) (n int) {
	for _, l := range s.LUNs {
		if l.Owner == node {
			n++
		}
	}
	return n
}

// Volumes counts the LUNs and snapshots in each backing volume that has some; the default one is
// under the empty name.
func (s *State) Volumes() map[string]int {
	n := map[string]int{}
	for _, l := range s.LUNs {
		n[l.Volume]++
	}
	for _, x := range s.Snapshots {
		n[x.Volume]++
	}
	return n
}

// Lost counts LUNs that answer MEDIUM ERROR to a host (R8).
func (s *State) Lost() (n int) {
	for _, l := range s.LUNs {
		for _, m := range l.Maps {
			if m.Lost {
				n++
				break
			}
		}
	}
	return n
}

// freeLUN picks the next number for a host: upwards from the last one, around once.
func (s *State) freeLUN(h *Host) (uint16, bool) {
	var used [MaxLUN + 1]bool
	for _, l := range s.LUNs {
		if len(l.Maps) == 0 {
			continue
		}
		if m, ok := l.Maps[h.IQN]; ok && m.LUN <= MaxLUN {
			used[m.LUN] = true
		}
	}
	for i := range used {
		n := uint16((int(h.NextLUN) + i) % len(used))
		if !used[n] {
			return n, true
		}
	}
	return 0, false
}
