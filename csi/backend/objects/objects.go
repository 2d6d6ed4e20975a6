// Package objects is a backend that writes LogicalUnits, LogicalUnitSnapshots and
// LogicalUnitGroupSnapshots, and waits until the operator has reconciled them. It keeps no state
// and uses no cache: several instances may run at once, and each may crash at any point. A repeated
// call finds unfinished work by the object's name.
//
// A volume's ID is the name of its LogicalUnit, a hash of the CSI name. The UUID of the LUN would
// be as unique, but is known only when the object is placed: the ID must be known before anything
// is written, so that a repeated create finds the first object, and every call finds its object
// with one read. The object's name is on the disks, so the ID survives the loss of all objects.
package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// Backend implements backend.Backend.
type Backend struct {
	// Log gets what is no error of a call; nil: nothing is logged.
	Log *slog.Logger

	c client.WithWatch
}

var _ backend.Backend = (*Backend)(nil)

// logger is Log, or one that drops everything.
func (b *Backend) logger() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

// New takes a client that reads from the API server, without a cache.
func New(c client.WithWatch) *Backend { return &Backend{c: c} }

// VolumeID implements backend.Backend.
func (b *Backend) VolumeID(name string) string { return "lun-" + hash("volume/"+name) }

// SnapshotID implements backend.Backend.
func (b *Backend) SnapshotID(name string) string { return "snap-" + hash("snapshot/"+name) }

// NeedsCluster implements backend.Backend.
func (b *Backend) NeedsCluster() bool { return true }

// hash returns 128 bits in hexadecimal, because a CSI name may be invalid as the name of an object.
func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:16])
}

// validName is a name of an object (RFC 1123 subdomain); other IDs are not of this driver.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

func notFound(kind, id string) error {
	return fmt.Errorf("%w: %s %q does not exist", backend.ErrNotFound, kind, id)
}

// errGone: the object was deleted during a wait.
var errGone = errors.New("the object is gone")

// unit reads a LogicalUnit.
func (b *Backend) unit(ctx context.Context, id string) (*v1alpha1.LogicalUnit, error) {
	if !validName.MatchString(id) {
		return nil, notFound("volume", id)
	}
	var lu v1alpha1.LogicalUnit
	if err := b.c.Get(ctx, client.ObjectKey{Name: id}, &lu); err != nil {
		return nil, apiError("volume", id, err)
	}
	if lu.Spec.Leg != nil { // it is never used by itself
		return nil, fmt.Errorf("%w: %s is a part of the striped volume %s, and no volume", backend.ErrNotFound, id, lu.Spec.Leg.Of)
	}
	return &lu, nil
}

// ready reads the LogicalUnit of a volume that exists and is not being deleted.
func (b *Backend) ready(ctx context.Context, id string) (*v1alpha1.LogicalUnit, error) {
	lu, err := b.unit(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case lu.Spec.Destroy:
		return nil, fmt.Errorf("%w: volume %q is being deleted", backend.ErrNotFound, id)
	case lu.Annotations[v1alpha1.AnnotationMade] != "true":
		return nil, fmt.Errorf("%w: volume %q is not created yet", backend.ErrNotFound, id)
	case lu.Status.Size == nil: // just created, or the status was lost
		return nil, fmt.Errorf("%w: the LogicalUnit %q has no status yet: retry", backend.ErrUnavailable, id)
	}
	return lu, nil
}

// apiError converts an error of the API server to one of package backend.
func apiError(kind, id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fmt.Errorf("%s %s: %w: %w", kind, id, backend.ErrTimeout, err)
	case apierrors.IsNotFound(err):
		return notFound(kind, id)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return fmt.Errorf("%s %s: %w: %w", kind, id, backend.ErrInvalid, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s %s: %w", kind, id, err)
	}
	return fmt.Errorf("%s %s: %w: %w", kind, id, backend.ErrUnavailable, err)
}

// conflictPause is the delay before a retry after a conflict.
const conflictPause = 20 * time.Millisecond

// change updates a LogicalUnit with edit, and retries after a conflict. It writes nothing if edit
// changes nothing, and returns an error of edit unchanged.
func (b *Backend) change(ctx context.Context, id string, edit func(*v1alpha1.LogicalUnit) error) (*v1alpha1.LogicalUnit, error) {
	for {
		lu, err := b.unit(ctx, id)
		if err != nil {
			return nil, err
		}
		next := lu.DeepCopy()
		if err := edit(next); err != nil {
			return nil, err
		}
		if equal(lu.Spec, next.Spec) {
			return lu, nil
		}
		err = b.c.Patch(ctx, next, client.MergeFromWithOptions(lu, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.DriverManager))
		if err == nil {
			return next, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, apiError("volume", id, err)
		}
		if err := sleep(ctx, conflictPause); err != nil {
			return nil, fmt.Errorf("volume %s: %w: %w", id, backend.ErrTimeout, err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failed returns the condition if it is not True for this generation, or nil.
func failed(list []metav1.Condition, kind string, generation int64) *metav1.Condition {
	for i := range list {
		if c := &list[i]; c.Type == kind && c.Status != metav1.ConditionTrue && c.ObservedGeneration >= generation {
			return c
		}
	}
	return nil
}

// verdict returns the error of a condition that waiting does not fix, nil otherwise.
func verdict(what string, c *metav1.Condition) error {
	if c == nil {
		return nil
	}
	var class error
	switch c.Reason {
	case v1alpha1.ReasonNoRoom:
		class = backend.ErrExhausted
	case v1alpha1.ReasonInvalid:
		class = backend.ErrInvalid
	case v1alpha1.ReasonNoSource, v1alpha1.ReasonMissing:
		class = backend.ErrNotFound
	case v1alpha1.ReasonInUse:
		class = backend.ErrInUse
	default:
		return nil
	}
	return fmt.Errorf("%s: %w: %s", what, class, c.Message)
}
