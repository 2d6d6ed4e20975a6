// Package objects is a backend that writes LogicalUnits and LogicalUnitSnapshots and waits until the operator has carried them
// out. It keeps no state and reads nothing from a cache: several of it may work at once, and any may die at any point.
// What one begun and did not finish, the repeated call finds by the object's name.
//
// A volume's id is the name of its LogicalUnit, a hash of the CSI name. The uuid of the LUN would be as unique, but is known only
// when the object is placed: the id has to be known before anything is written, so that a repeated create finds what the
// first one made, and every call finds its object by one read. The object's name stands on the disks, so the id outlives
// the loss of all objects.
package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
	c client.WithWatch
}

var _ backend.Backend = (*Backend)(nil)

// New is over a client that reads from the API server itself.
func New(c client.WithWatch) *Backend { return &Backend{c: c} }

// VolumeID implements backend.Backend.
func (b *Backend) VolumeID(name string) string { return "lun-" + hash("volume/"+name) }

// SnapshotID implements backend.Backend.
func (b *Backend) SnapshotID(name string) string { return "snap-" + hash("snapshot/"+name) }

// NeedsCluster implements backend.Backend.
func (b *Backend) NeedsCluster() bool { return true }

// hash has 128 bits, in hexadecimal: a CSI name may be any text, the name of an object not.
func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:16])
}

// validName is that of an object (RFC 1123 subdomain): what is none names nothing of ours.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

func notFound(kind, id string) error {
	return fmt.Errorf("%w: there is no %s %q", backend.ErrNotFound, kind, id)
}

// errGone: the object that was waited for is not there any more.
var errGone = errors.New("the object is gone")

// unit reads a LogicalUnit. One that is being destroyed is not found.
func (b *Backend) unit(ctx context.Context, id string) (*v1alpha1.LogicalUnit, error) {
	if !validName.MatchString(id) {
		return nil, notFound("volume", id)
	}
	var lu v1alpha1.LogicalUnit
	if err := b.c.Get(ctx, client.ObjectKey{Name: id}, &lu); err != nil {
		return nil, apiError("volume", id, err)
	}
	return &lu, nil
}

// ready reads the LogicalUnit of a volume that has been made and is not being destroyed.
func (b *Backend) ready(ctx context.Context, id string) (*v1alpha1.LogicalUnit, error) {
	lu, err := b.unit(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case lu.Spec.Destroy:
		return nil, fmt.Errorf("%w: volume %q is being deleted", backend.ErrNotFound, id)
	case lu.Annotations[v1alpha1.AnnotationMade] != "true":
		return nil, fmt.Errorf("%w: volume %q is not made yet", backend.ErrNotFound, id)
	case lu.Status.Size == nil: // just made, or the status was lost
		return nil, fmt.Errorf("%w: nothing is known of the volume %q yet: ask again", backend.ErrUnavailable, id)
	}
	return lu, nil
}

// apiError gives an error of the API server its sentinel.
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

// conflictPause is between two tries to write what somebody else has just written.
const conflictPause = 20 * time.Millisecond

// change writes a LogicalUnit with what edit makes of it, as long as nobody else writes in between: then edit is asked again. An
// edit that changes nothing is not written. What edit refuses is returned as it is.
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

// failed is the condition that is not true and speaks of this generation, nil if there is none.
func failed(list []metav1.Condition, kind string, generation int64) *metav1.Condition {
	for i := range list {
		if c := &list[i]; c.Type == kind && c.Status != metav1.ConditionTrue && c.ObservedGeneration >= generation {
			return c
		}
	}
	return nil
}

// verdict is the error of a condition that waiting does not fix, nil of others.
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
