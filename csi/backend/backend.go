// Package backend is the interface between the CSI controller and the storage: volumes,
// publications and snapshots. Implementations: direct (the control API of one pair) and objects
// (LogicalUnits and snapshots, which the operator reconciles).
package backend

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// Errors of backends. Test for them with errors.Is; the text says what and why.
var (
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("exists with other properties")
	ErrInUse       = errors.New("in use")
	ErrInvalid     = errors.New("invalid")
	ErrExhausted   = errors.New("no room")
	ErrUnavailable = errors.New("storage is unavailable")
	ErrBadToken    = errors.New("invalid starting token")
	ErrTimeout     = errors.New("storage did not answer in time")
	ErrUnsupported = errors.New("not supported by a release of the storage")
	// ErrUnreachable: the workers of the request do not reach the volume.
	ErrUnreachable = errors.New("not accessible from there")
	// ErrNotTogether: the volumes of the request cannot be in one group snapshot as they are.
	ErrNotTogether = errors.New("cannot be snapshotted together")
	// ErrInGroup: a snapshot of a group snapshot is not deleted without the others.
	ErrInGroup = errors.New("part of a group snapshot")
)

// SizeStep is the unit of volume sizes, in bytes.
const SizeStep = 1 << 20

// MaxSize of a volume, in bytes.
const MaxSize = 256 << 40

// Volume is a LUN.
type Volume struct {
	ID             string // stable for the life of the volume
	Name           string
	Size           int64 // bytes
	SourceVolume   string
	SourceSnapshot string
	Labels         map[string]string
	Hosts          []string // IQNs that it is published to, sorted
	Writers        []string // those of Hosts that may write
	Cluster        string   // StorageCluster; may be empty
	Pool           string   // empty if unknown
	Pairs          []string // keys of Health: several for a striped volume that is spread over pairs; none if there is only one
	// AccessibleFrom are the topology segments that the volume can be used in; nil: everywhere. It
	// does not change.
	AccessibleFrom []map[string]string
	Layout         stripe.Layout // of a striped volume; Count 0: it has one LUN
	Mutable                      // current values
}

// Mutable is what can change while a volume is in use. In a request, empty fields keep their
// values.
type Mutable struct {
	PreferredNode string // "a" or "b"; while the volume is pinned, only that node is possible, and another one counts later
	PinnedNode    string // "a", "b" or v1alpha1.NoPin
	WriteCache    string // v1alpha1.WriteBack or v1alpha1.WriteThrough
	Tier          string // v1alpha1.TierFast, v1alpha1.TierCapacity or v1alpha1.NoPin
}

// Over returns m with empty fields replaced by those of below.
func (m Mutable) Over(below Mutable) Mutable {
	return Mutable{PreferredNode: cmp.Or(m.PreferredNode, below.PreferredNode), PinnedNode: cmp.Or(m.PinnedNode, below.PinnedNode), WriteCache: cmp.Or(m.WriteCache, below.WriteCache), Tier: cmp.Or(m.Tier, below.Tier)}
}

// Snapshot is a point in time of a volume. It outlives its source.
type Snapshot struct {
	ID           string
	Name         string
	SourceVolume string
	Size         int64 // bytes
	Created      time.Time
	Group        string // ID of the group snapshot that it is part of; empty if it is independent
}

// GroupSnapshot is a set of snapshots of several volumes, taken at one instant: if a write is in
// one of them, so is every write to any of the volumes that was acknowledged before that write
// began. It outlives its sources.
type GroupSnapshot struct {
	ID        string
	Name      string
	Snapshots []Snapshot // one of each source
	Created   time.Time
}

// CreateVolume is a request. At most one source may be set.
type CreateVolume struct {
	ID             string // from VolumeID
	Name           string
	Size           int64 // bytes, a multiple of SizeStep for each LUN
	SourceVolume   string
	SourceSnapshot string
	Cluster        string // StorageCluster, if the backend needs it
	Pool           string // empty: the first one, or that of the source, which is the only possible one
	Labels         map[string]string
	// Preferred is the topology segment that the caller prefers; nil if none. It is the consumer's
	// only if there is one: otherwise any.
	Preferred map[string]string
	// Requisite are topology segments in at least one of which the volume has to be accessible; an
	// empty one is everywhere. nil: the caller does not care.
	Requisite []map[string]string
	// Layout of a striped volume; Count 0: one LUN. Only a backend that needs a cluster has them.
	Layout stripe.Layout
	// OverPairs spreads the LUNs of a striped volume over pairs; else all are on one.
	OverPairs bool
	// Sessions of a worker to each portal; 0: as the worker says. Only a backend that needs a
	// cluster has them.
	Sessions int
	Mutable  // empty fields: the pair chooses the node, write-back
}

// Publish is a request to publish a volume to a host.
type Publish struct {
	VolumeID         string
	HostIQN          string
	ReadOnly         bool // the storage rejects writes
	Exclusive        bool // ErrInUse while another host has it
	OneWriter        bool // ErrInUse while another host may write, unless ReadOnly
	Replay           bool // with ReadOnly: one host must replay the log of the filesystem before any host mounts it
	Auth, MutualAuth *attach.CHAP
}

// Page requests a part of a list. After is empty or the token of the previous page; with Limit 0
// the backend chooses the size.
type Page struct {
	After string
	Limit int
}

// Health of a pair.
type Health struct {
	Serving bool   // I/O is possible
	Reason  string // CamelCase, empty if healthy
	Message string // what is wrong and what to do
}

// Backend is the storage. Every call is idempotent: a repeated call succeeds and returns the
// current state. Every call ends with its context. Any method may return ErrUnavailable or
// ErrTimeout, after which the call may or may not have taken effect.
type Backend interface {
	// VolumeID and SnapshotID derive the ID from the CSI name, so that a repeated create finds the
	// existing object.
	VolumeID(name string) string
	SnapshotID(name string) string
	// NeedsCluster reports whether CreateVolume needs a StorageCluster.
	NeedsCluster() bool

	// CreateVolume: ErrExists if the ID or name exists with another size or source, ErrNotFound
	// without the source, ErrInvalid if the source is larger or in another pool, or if the pool
	// does not exist, ErrExhausted, ErrUnreachable. A repeated call returns the volume as it was
	// created, whatever Requisite is.
	CreateVolume(ctx context.Context, req CreateVolume) (Volume, error)
	// DeleteVolume destroys the data. It succeeds if the volume does not exist. ErrInUse while it
	// is published.
	DeleteVolume(ctx context.Context, id string) error
	// GetVolume: ErrNotFound, also for malformed IDs.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// ListVolumes in a stable order; next is empty at the end. ErrBadToken.
	ListVolumes(ctx context.Context, p Page) (list []Volume, next string, err error)
	// ExpandVolume expands online; a volume that is large enough stays. ErrNotFound, ErrExhausted.
	ExpandVolume(ctx context.Context, id string, size int64) (Volume, error)

	// ModifyVolume changes a volume that may be in use; it returns when both nodes have the change.
	// The pair moves the volume to a new node later. ErrNotFound; ErrUnsupported for a pin while a
	// node of the pair is of a release that knows no pins.
	ModifyVolume(ctx context.Context, id string, m Mutable) (Volume, error)

	// Publish maps the volume to a host and returns how the host reaches it. ErrNotFound, ErrExists
	// if it is published to that host with another ReadOnly, ErrInvalid for an invalid host. With
	// Replay, the first host may be mapped for writing, exclusively, until it reports that it has
	// replayed the log (attach.Attachment.Replay); ErrUnavailable for others meanwhile.
	Publish(ctx context.Context, req Publish) (attach.Attachment, error)
	// Unpublish fences: after it returns nil, no command of that host on that volume is running or
	// will be accepted, and its persistent reservations are removed. An empty host means all. It
	// succeeds if the volume does not exist.
	Unpublish(ctx context.Context, id, hostIQN string) error

	// CreateSnapshot: ErrNotFound without the source, ErrExists if ID or name exist with another
	// source.
	CreateSnapshot(ctx context.Context, id, name, source string) (Snapshot, error)
	// DeleteSnapshot succeeds if the snapshot does not exist. ErrInGroup.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot: ErrNotFound, also for malformed IDs.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots of a volume, or of all with an empty source. ErrBadToken.
	ListSnapshots(ctx context.Context, source string, p Page) (list []Snapshot, next string, err error)

	// GroupSnapshots reports whether there are group snapshots. If not, the other methods of
	// group snapshots return ErrUnsupported.
	GroupSnapshots() bool
	// GroupSnapshotID derives the ID from the CSI name, as SnapshotID does.
	GroupSnapshotID(name string) string
	// CreateGroupSnapshot takes snapshots of several volumes at one instant, or none. The order of
	// the sources does not matter; each is named once. ErrNotFound without a source, ErrNotTogether
	// if the sources are in several StorageClusters or one is being expanded, ErrExists if ID or
	// name exist with other sources, ErrExhausted.
	CreateGroupSnapshot(ctx context.Context, id, name string, sources []string) (GroupSnapshot, error)
	// DeleteGroupSnapshot deletes a group snapshot with all its snapshots, which the caller names:
	// ErrInvalid if these are not the group's. It succeeds if the group snapshot does not exist.
	DeleteGroupSnapshot(ctx context.Context, id string, snapshots []string) error
	// GetGroupSnapshot: ErrNotFound, also for malformed IDs, and before all snapshots are complete.
	GetGroupSnapshot(ctx context.Context, id string) (GroupSnapshot, error)

	// Capacity is the size of the largest volume that can be created, in bytes: in a
	// StorageCluster, or any if empty, and a pool, or the first one if empty. 0 if the pool does
	// not exist, or is restricted to workers that the topology segment is not of. An empty segment
	// is everywhere.
	Capacity(ctx context.Context, cluster, pool string, segment map[string]string) (int64, error)
	// Health of each pair, by the names in Volume.Pairs; of the only one by the empty name. A pair
	// that does not answer is a result, not an error.
	Health(ctx context.Context) (map[string]Health, error)
}
