// Package backend is what the CSI controller asks of the storage: volumes, publications and snapshots in the driver's own
// terms. Implementations: direct (straight to a pair over its control API) and objects (LogicalUnits and LogicalUnitSnapshots, which
// the operator carries out).
package backend

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
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
)

// SizeStep is what volume sizes are multiples of, in bytes.
const SizeStep = 1 << 20

// MaxSize is the largest volume that a pair holds, in bytes.
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
	Cluster        string   // StorageCluster; empty where there is none
	Pool           string   // of backing volumes; empty where that is not known
	Pair           string   // that holds it, a key of Health; empty where there is but one
	Mutable                 // what it has
}

// Mutable is what may be changed while a volume is in use. In a request, empty fields stay as they are.
type Mutable struct {
	PreferredNode string // "a" or "b"
	WriteCache    string // v1alpha1.WriteBack or v1alpha1.WriteThrough
}

// Over is m, and where that is empty, what it is laid over.
func (m Mutable) Over(below Mutable) Mutable {
	return Mutable{PreferredNode: cmp.Or(m.PreferredNode, below.PreferredNode), WriteCache: cmp.Or(m.WriteCache, below.WriteCache)}
}

// Snapshot is a point in time of a volume. It outlives its source.
type Snapshot struct {
	ID           string
	Name         string
	SourceVolume string
	Size         int64 // bytes
	Created      time.Time
}

// CreateVolume says what is wanted. At most one source may be set.
type CreateVolume struct {
	ID             string // from VolumeID
	Name           string
	Size           int64 // bytes, a multiple of SizeStep
	SourceVolume   string
	SourceSnapshot string
	Cluster        string // StorageCluster, set when the backend needs it
	Pool           string // of backing volumes; empty: the first one, or that of the source, the only one possible
	Labels         map[string]string
	Mutable        // empty fields: the pair chooses the node, write-back
}

// Publish says who shall reach a volume.
type Publish struct {
	VolumeID         string
	HostIQN          string
	ReadOnly         bool // the storage refuses writes
	Exclusive        bool // ErrInUse while another host has it
	OneWriter        bool // ErrInUse while another host may write, unless ReadOnly
	Replay           bool // with ReadOnly: it holds a filesystem, whose log has to be replayed by one host before any has it
	Auth, MutualAuth *attach.CHAP
}

// Page asks for a part of a list. After is empty or the token that the page before came with; Limit 0 leaves the size
// to the backend.
type Page struct {
	After string
	Limit int
}

// Health is what the storage says about itself.
type Health struct {
	Serving bool   // I/O is possible
	Reason  string // CamelCase, empty when all is well
	Message string // what is wrong and what to do
}

// Backend is the storage. Every call is idempotent: asking again for what already is succeeds, with the present state.
// Every call ends with its context. Any method may return ErrUnavailable or ErrTimeout, after which the call may or may not have taken effect.
type Backend interface {
	// VolumeID and SnapshotID derive the id from the CSI name, so that a repeated create finds what the first one made.
	VolumeID(name string) string
	SnapshotID(name string) string
	// NeedsCluster tells whether CreateVolume has to name a StorageCluster.
	NeedsCluster() bool

	// CreateVolume: ErrExists when the id or name exists with another size or source, ErrNotFound without the source,
	// ErrInvalid when the source is larger or in another pool, or when there is no such pool, ErrExhausted.
	CreateVolume(ctx context.Context, q CreateVolume) (Volume, error)
	// DeleteVolume destroys the data. A volume that is not there is deleted. ErrInUse while it is published.
	DeleteVolume(ctx context.Context, id string) error
	// GetVolume: ErrNotFound, for malformed ids as well.
	GetVolume(ctx context.Context, id string) (Volume, error)
	// ListVolumes in a stable order; next is empty at the end. ErrBadToken.
	ListVolumes(ctx context.Context, p Page) (list []Volume, next string, err error)
	// ExpandVolume grows online; a volume that is as large already stays. ErrNotFound, ErrExhausted.
	ExpandVolume(ctx context.Context, id string, size int64) (Volume, error)

	// ModifyVolume changes what may change while hosts use the volume; it returns when both nodes have it. That a node is preferred
	// moves the volume there at best effort. ErrNotFound.
	ModifyVolume(ctx context.Context, id string, m Mutable) (Volume, error)

	// Publish admits a host and says how it reaches the volume. ErrNotFound, ErrExists when it is published to that host
	// with another ReadOnly, ErrInvalid for an impossible host. With Replay, the first host may be admitted for writing, alone, until it says
	// that it has replayed the log (attach.Attachment.Replay); ErrUnavailable for others meanwhile.
	Publish(ctx context.Context, q Publish) (attach.Attachment, error)
	// Unpublish fences: when it returns nil, no command of that host on that volume is running or will ever be accepted, and
	// its persistent reservations are gone. An empty host means all. A volume that is not there is unpublished.
	Unpublish(ctx context.Context, id, hostIQN string) error

	// CreateSnapshot: ErrNotFound without the source, ErrExists when id or name exist with another source.
	CreateSnapshot(ctx context.Context, id, name, source string) (Snapshot, error)
	// DeleteSnapshot: one that is not there is deleted.
	DeleteSnapshot(ctx context.Context, id string) error
	// GetSnapshot: ErrNotFound, for malformed ids as well.
	GetSnapshot(ctx context.Context, id string) (Snapshot, error)
	// ListSnapshots of a volume, or of all with an empty source. ErrBadToken.
	ListSnapshots(ctx context.Context, source string, p Page) (list []Snapshot, next string, err error)

	// Capacity is the largest volume that can be made, in bytes: of a StorageCluster, or anywhere with an empty name, in a pool, or the
	// first one with an empty name. 0 where there is no such pool.
	Capacity(ctx context.Context, cluster, pool string) (int64, error)
	// Health of each pair, by Volume.Pair. Storage that does not answer is a finding, not an error.
	Health(ctx context.Context) (map[string]Health, error)
}
