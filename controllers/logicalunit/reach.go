package logicalunit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Errors of Reach. Test for them with errors.Is.
var (
	// ErrNotYet: a transient state; a retry succeeds later.
	ErrNotYet = errors.New("not yet")
	// ErrNotPublished: the spec does not list the host.
	ErrNotPublished = errors.New("not published to this host")
)

// Reach returns how a host reaches a LUN. replayed is the generation of the mapping under which the
// host reports that it has replayed the log of the LUN's filesystem, 0 if it reports nothing. The
// report is written to the spec with an optimistic lock; then the reconciler fences the host and
// maps it again read-only, and only a status with the new mapping is returned.
//
// A report for another generation is ignored: the host has been fenced since, and another host may
// have had the LUN.
func Reach(ctx context.Context, c client.Client, name, iqn string, replayed int64) (*v1alpha1.LogicalUnit, v1alpha1.HostMapping, error) {
	var none v1alpha1.HostMapping
	lu := &v1alpha1.LogicalUnit{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, lu); apierrors.IsNotFound(err) {
		return nil, none, fmt.Errorf("LogicalUnit %s: %w", name, ErrNotPublished)
	} else if err != nil {
		return nil, none, err
	}
	iqn = strings.ToLower(iqn)
	want := lu.Spec.Host(iqn)
	if want == nil {
		return nil, none, fmt.Errorf("LogicalUnit %s: %w: delete the pods that use the volume on this worker; the volume is then published again", name, ErrNotPublished)
	}
	m := lu.Status.Host(iqn)
	if m == nil || lu.Status.WWID == "" || lu.Spec.Placement == nil || m.ReadOnly == want.Writes() {
		return nil, none, fmt.Errorf("LogicalUnit %s: %w mapped to %s as its spec says", name, ErrNotYet, iqn)
	}
	if replayed == 0 || replayed != m.Generation || !want.Replay {
		return lu, *m, nil
	}
	next := lu.DeepCopy()
	next.Spec.Host(iqn).Replay = false
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[v1alpha1.AnnotationReplayed] = "true"
	err := c.Patch(ctx, next, client.MergeFromWithOptions(lu, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.OperatorManager))
	if err != nil && !apierrors.IsConflict(err) {
		return nil, none, fmt.Errorf("LogicalUnit %s: %w", name, err)
	}
	return nil, none, fmt.Errorf("LogicalUnit %s: the log has been replayed; %s is %w mapped read-only", name, iqn, ErrNotYet)
}
