package meta

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Entry is one change in the log. Exactly one field is set.
type Entry struct {
	CreateLUN      *CreateLUN      `json:"create_lun,omitempty"`
	CreateSnapshot *CreateSnapshot `json:"create_snapshot,omitempty"`
	Mark           *Object         `json:"mark,omitempty"`   // an empty copy becomes what its source is at this moment; not for a node of 0.1.0, which passes over it
	Commit         *Object         `json:"commit,omitempty"` // a prepared LUN or snapshot becomes visible
	Abort          *Object         `json:"abort,omitempty"`  // or goes again
	DeleteLUN      *Object         `json:"delete_lun,omitempty"`
	DeleteSnapshot *Object         `json:"delete_snapshot,omitempty"`
	Grow           *Expand         `json:"grow,omitempty"`   // both nodes make room for an expansion
	Expand         *Expand         `json:"expand,omitempty"` // which is then visible
	Modify         *Modify         `json:"modify,omitempty"`
	MapHost        *MapHost        `json:"map_host,omitempty"`
	UnmapHost      *UnmapHost      `json:"unmap_host,omitempty"`
	SetOwner       *SetOwner       `json:"set_owner,omitempty"`
	Drain          *Drain          `json:"drain,omitempty"`
	Policy         *Policy         `json:"policy,omitempty"`
	PR             *PR             `json:"pr,omitempty"`
	Mode           *Mode           `json:"mode,omitempty"`
	Reset          *Reset          `json:"reset,omitempty"`
	MarkLost       *MarkLost       `json:"mark_lost,omitempty"`

	// Steps of a group snapshot; not for a node that does not know them.
	BeginGroup *BeginGroup `json:"begin_group,omitempty"`
	CutGroup   *CutGroup   `json:"cut_group,omitempty"`
	VoidGroup  *VoidGroup  `json:"void_group,omitempty"`

	// Batch are changes of several callers that become durable together. Not for a node that does
	// not know them.
	Batch []*Entry `json:"batch,omitempty"`
}

// CreateLUN prepares a LUN.
type CreateLUN struct {
	LUN LUN `json:"lun"`
	// Later: a copy gets its content with a Mark.
	Later bool `json:"later,omitempty"`
}

// CreateSnapshot prepares a snapshot.
type CreateSnapshot struct {
	Snapshot Snapshot `json:"snapshot"`
	Later    bool     `json:"later,omitempty"` // as for a LUN
}

// Object names a LUN or snapshot.
type Object struct {
	UUID string `json:"uuid"`
	// Born, if it is set, names one of the objects that had this uuid one after the other: a copy
	// that is marked, and committed or aborted then. An entry about another one changes nothing.
	Born uint64 `json:"born,omitempty"`
	// Reason of an Abort, and whether it is a lack of space.
	Reason string `json:"reason,omitempty"`
	Full   bool   `json:"full,omitempty"`
}

// Expand grows a LUN.
type Expand struct {
	UUID string `json:"uuid"`
	Size int64  `json:"size"`
}

// Modify changes what an administrator may change under a host that is at work. Fields that are not
// set stay.
type Modify struct {
	UUID         string `json:"uuid"`
	Preferred    string `json:"preferred,omitempty"`
	WriteThrough *bool  `json:"write_through,omitempty"`
	Pin          string `json:"pin,omitempty"`   // a node, or NoPin; not for a node of 0.1.0, which passes over it
	Group        string `json:"group,omitempty"` // of LUNs that stay spread, or NoGroup; not for a node of 0.1.0 either
	Tier         string `json:"tier,omitempty"`  // TierFast, TierCapacity or NoPin; not for a node of 0.1.0 either
	// Quarantine is why commands of hosts are not executed any more, or NoQuarantine; not for a
	// node of 0.1.0 either.
	Quarantine string `json:"quarantine,omitempty"`
}

// MapHost admits a host to a LUN.
type MapHost struct {
	UUID     string `json:"uuid"`
	Host     string `json:"host"`
	CHAP     CHAP   `json:"chap,omitzero"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Profile of the host; not for a node of 0.1.0, which passes over it.
	Profile string `json:"profile,omitempty"`
	// Exclusive refuses while another host is mapped.
	Exclusive bool `json:"exclusive,omitempty"`
	// Near, which is not for a node of 0.1.0, becomes the home of a LUN that no other host is
	// mapped to. At is the proposer's time.
	Near Near      `json:"near,omitzero"`
	At   time.Time `json:"at,omitzero"`
}

// UnmapHost withdraws a host, or all when Host is empty.
type UnmapHost struct {
	UUID string `json:"uuid"`
	Host string `json:"host"`
}

// PR is a change of reservations.
type PR struct {
	UUID  string       `json:"uuid"`
	Nexus scsi.NexusID `json:"nexus"`
	Req   scsi.PROut   `json:"req"`
}

// Mode is a MODE SELECT.
type Mode struct {
	UUID  string          `json:"uuid"`
	Nexus scsi.NexusID    `json:"nexus"`
	Req   scsi.ModeSelect `json:"req"`
}

// Reset aborts commands on both nodes (LOGICAL UNIT RESET and wider). UUID empty: every LUN.
type Reset struct {
	UUID  string          `json:"uuid,omitempty"`
	Scope scsi.ResetScope `json:"scope"`
	By    scsi.NexusID    `json:"by"`
}

// MarkLost makes LUNs answer MEDIUM ERROR to every host that they are mapped to now, until it is
// mapped again (R8).
type MarkLost struct {
	UUIDs []string `json:"uuids"`
}

// Encode makes the bytes that travel in the log.
func (e *Entry) Encode() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // plain data
	}
	return b
}

// DecodeEntry reads an entry. ErrNewer, if it is of a kind that this release does not know, or says
// more than it knows.
func DecodeEntry(b []byte) (*Entry, error) {
	var e Entry
	if err := Decode(b, &e); err != nil {
		return nil, fmt.Errorf("log entry: %w", err)
	}
	return &e, nil
}

// Outcome of an entry, the same on both nodes.
type Outcome struct {
	Code  string        `json:"code,omitempty"` // "", or the name of one of the errors
	Error string        `json:"error,omitempty"`
	Noop  bool          `json:"noop,omitempty"` // what was asked for already is
	Map   *Map          `json:"map,omitempty"`
	SCSI  *scsi.Outcome `json:"scsi,omitempty"`
	Parts []Outcome     `json:"parts,omitempty"` // of a batch
}

var codes = map[string]error{"not_found": ErrNotFound, "exists": ErrExists, "in_use": ErrInUse,
	"invalid": ErrInvalid, "exhausted": ErrExhausted, "not_ready": ErrNotReady, "unfinished": ErrUnfinished, "aborted": ErrAborted}

// Err turns the outcome back into an error.
func (o *Outcome) Err() error {
	if o.Code == "" {
		return nil
	}
	base := codes[o.Code]
	if base == nil {
		return fmt.Errorf("%s", o.Error)
	}
	return fmt.Errorf("%s: %w", o.Error, base)
}

func failed(code, format string, args ...any) Outcome {
	return Outcome{Code: code, Error: fmt.Sprintf(format, args...)}
}

// Effect is what the runtime has to do outside the state after an entry was applied.
type Effect struct {
	UnitsChanged bool     // set, size or ownership of units
	MapsChanged  bool     // what hosts see
	LUNs         []string // keys to persist: LUNs
	Snapshots    []string
	Hosts        []string
	Groups       []string

	CreatedLUN      *LUN      // prepare its file, with its content unless it is Empty
	CreatedSnapshot *Snapshot // prepare its file, with its content unless it is Empty
	Marked          []*Marked // begin with copies
	RemovedLUN      string    // remove its file
	RemovedSnapshot string
	RemovedVolume   string // in which either of them was
	Grown           *LUN   // its file is to have this size, which the state does not show yet
	Resized         *LUN
	Fence           []string          // hosts whose commands on FenceLUN must end
	FenceNumbers    map[string]uint16 // the LUN numbers under which they saw it
	FenceLUN        string            //
	Moved           []string          // LUNs with a new owner
	UAs             []scsi.PRUA       // for PRLUN
	Aborts          []scsi.NexusID    // for PRLUN
	PRLUN           string
	ModeLUN         string   // mode pages changed: 2A/01 for everyone but By
	PreferredLUNs   []string // their preferred node changed: 2A/06 for everyone
	Reset           *Reset
	By              scsi.NexusID
	Parts           []*Effect // of a batch
}

// Apply changes the state by one entry at the next index. now is the proposer's time, carried in
// the entry's objects; nothing else is read, so both nodes arrive at the same.
func (s *State) Apply(index uint64, e *Entry) (out Outcome, fx Effect) {
	s.Index = index
	switch {
	case len(e.Batch) > 0:
		return s.applyBatch(index, e.Batch)
	case e.CreateLUN != nil:
		return s.createLUN(&e.CreateLUN.LUN, e.CreateLUN.Later)
	case e.CreateSnapshot != nil:
		return s.createSnapshot(&e.CreateSnapshot.Snapshot, e.CreateSnapshot.Later)
	case e.Mark != nil:
		return s.mark(e.Mark)
	case e.Commit != nil:
		return s.commit(e.Commit)
	case e.Abort != nil:
		return s.abort(e.Abort)
	case e.DeleteLUN != nil:
		return s.deleteLUN(e.DeleteLUN.UUID)
	case e.DeleteSnapshot != nil:
		return s.deleteSnapshot(e.DeleteSnapshot.UUID)
	case e.Grow != nil:
		return s.grow(e.Grow)
	case e.Expand != nil:
		return s.expand(e.Expand)
	case e.Modify != nil:
		return s.modify(e.Modify)
	case e.MapHost != nil:
		return s.mapHost(e.MapHost)
	case e.UnmapHost != nil:
		return s.unmapHost(e.UnmapHost)
	case e.SetOwner != nil:
		return s.setOwner(e.SetOwner)
	case e.Drain != nil:
		return s.setDrain(e.Drain)
	case e.Policy != nil:
		return s.setPolicy(e.Policy)
	case e.PR != nil:
		return s.applyPR(e.PR)
	case e.Mode != nil:
		return s.applyMode(e.Mode)
	case e.Reset != nil:
		return s.applyReset(e.Reset)
	case e.MarkLost != nil:
		return s.markLost(e.MarkLost)
	case e.BeginGroup != nil:
		return s.beginGroup(e.BeginGroup)
	case e.CutGroup != nil:
		return s.cutGroup(e.CutGroup)
	case e.VoidGroup != nil:
		return s.voidGroup(e.VoidGroup)
	}
	return failed("invalid", "the entry has a kind that this release does not know"), fx
}

// clone copies a LUN so that readers of the old value are not disturbed.
func (l *LUN) clone() *LUN {
	c := *l
	c.Maps = maps.Clone(l.Maps)
	return &c
}

// touch replaces a LUN by its clone and marks it for persisting.
func (s *State) touch(id string, fx *Effect) *LUN {
	l := s.LUNs[id].clone()
	s.LUNs[id] = l
	fx.LUNs = append(fx.LUNs, id)
	return l
}

// Now is what proposers put into objects: UTC, whole milliseconds.
func Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
