// Package object has what the reconcilers have in common: writes with an optimistic lock, the
// finalizer, the mark that data was created, and the requeue after a conflict.
package object

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// Errors that end a reconcile. Test for them with errors.Is.
var (
	// ErrReleased: the finalizer was removed.
	ErrReleased = errors.New("finalizer removed")
	// ErrStale: the cache was stale; the object has to be read again.
	ErrStale = errors.New("the object has changed")
)

// Pointer to an object of type T.
type Pointer[T any] interface {
	*T
	client.Object
	DeepCopy() *T
}

// Patch writes a change of *o with an optimistic lock: the error is a conflict if the object has
// changed since *o was read. Then *o is the written object; after an error it stays. The error
// names the step.
func Patch[T any, O Pointer[T]](ctx context.Context, c client.Client, o *O, step string, change func(O)) error {
	next := O((*o).DeepCopy())
	change(next)
	patch := client.MergeFromWithOptions(*o, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, next, patch, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
		return fmt.Errorf("%s of %s %s: %w", step, kind[T](), (*o).GetName(), err)
	}
	*o = next
	return nil
}

// EnsureFinalizer adds the finalizer unless the object has it or is being deleted.
func EnsureFinalizer[T any, O Pointer[T]](ctx context.Context, c client.Client, o *O) error {
	if !(*o).GetDeletionTimestamp().IsZero() || controllerutil.ContainsFinalizer(*o, v1alpha1.Finalizer) {
		return nil
	}
	return Patch(ctx, c, o, "finalizer", func(next O) { controllerutil.AddFinalizer(next, v1alpha1.Finalizer) })
}

// RemoveFinalizer removes the finalizer. ErrReleased if it was removed or the object does not
// exist.
func RemoveFinalizer[T any, O Pointer[T]](ctx context.Context, c client.Client, o *O) error {
	err := Patch(ctx, c, o, "finalizer", func(next O) { controllerutil.RemoveFinalizer(next, v1alpha1.Finalizer) })
	if err := client.IgnoreNotFound(err); err != nil {
		return err
	}
	return ErrReleased
}

// Destroy allows the destruction of what an object has, unless asked is true already, and deletes
// the object with this UID. An object that is gone is no error.
func Destroy[T any, O Pointer[T]](ctx context.Context, c client.Client, o *O, asked bool, ask func(O)) error {
	if !asked {
		if err := Patch(ctx, c, o, "destroy", ask); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if !(*o).GetDeletionTimestamp().IsZero() {
		return nil
	}
	uid := (*o).GetUID()
	if err := c.Delete(ctx, *o, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", kind[T](), (*o).GetName(), err)
	}
	return nil
}

// IsMade reports whether the object is marked: its data was created once.
func IsMade(o client.Object) bool { return o.GetAnnotations()[v1alpha1.AnnotationMade] == "true" }

// MarkMade marks the object: its data was created.
func MarkMade[T any, O Pointer[T]](ctx context.Context, c client.Client, o *O) error {
	return Patch(ctx, c, o, "mark", func(next O) {
		a := next.GetAnnotations()
		if a == nil {
			a = map[string]string{}
		}
		a[v1alpha1.AnnotationMade] = "true"
		next.SetAnnotations(a)
	})
}

// Confirm checks that the spec and the mark of o are those of the API server, before an
// irreversible step: the cache may be stale. live reads without a cache. ErrStale.
func Confirm[T any, O Pointer[T]](ctx context.Context, live client.Reader, o O) error {
	now := O(new(T))
	if err := live.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
		if apierrors.IsNotFound(err) {
			return ErrStale
		}
		return fmt.Errorf("%s %s: %w", kind[T](), o.GetName(), err)
	}
	if now.GetUID() != o.GetUID() || now.GetGeneration() != o.GetGeneration() ||
		now.GetAnnotations()[v1alpha1.AnnotationMade] != o.GetAnnotations()[v1alpha1.AnnotationMade] {
		return ErrStale
	}
	return nil
}

// kind of an object, which is the name of its Go type.
func kind[T any]() string { return reflect.TypeFor[T]().Name() }

// staleAfter is the delay of a reconcile after a conflict: about the delay of a cache.
const staleAfter = 50 * time.Millisecond

// IsStale reports whether an error is a conflict or ErrStale: the object has changed since it was
// read.
func IsStale(err error) bool { return apierrors.IsConflict(err) || errors.Is(err, ErrStale) }

// RequeueIfStale returns the result of a reconcile: a requeue without an error if the object has
// changed since it was read, and any other error.
func RequeueIfStale(err error) (ctrl.Result, error) {
	if IsStale(err) {
		return ctrl.Result{RequeueAfter: staleAfter}, nil
	}
	return ctrl.Result{}, err
}

// RequeueIfThere is RequeueIfStale for a write of the object itself: there is nothing to do if the
// object is gone.
func RequeueIfThere(err error) (ctrl.Result, error) {
	r, err := RequeueIfStale(err)
	return r, client.IgnoreNotFound(err)
}
