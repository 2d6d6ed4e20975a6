// Package object has what reconcilers of this operator do with their objects in the same way: writes with an optimistic lock, the
// finalizer, the mark that data was made, and the requeue after a conflict.
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

// Errors that end a pass of a reconciler. Test for them with errors.Is.
var (
	// ErrReleased: the finalizer has been removed, and the object goes.
	ErrReleased = errors.New("released")
	// ErrStale: the cache was behind, so that the object is to be read again.
	ErrStale = errors.New("the object has changed")
)

// Pointer to an object of type T.
type Pointer[T any] interface {
	*T
	client.Object
	DeepCopy() *T
}

// Patch writes a change of *o if nobody else has written since *o was read; otherwise the error is a conflict. Then *o is the object as
// it was written; after an error it stays. The error names the step.
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

// RemoveFinalizer removes the finalizer. ErrReleased when it is removed or the object has gone.
func RemoveFinalizer[T any, O Pointer[T]](ctx context.Context, c client.Client, o *O) error {
	err := Patch(ctx, c, o, "release", func(next O) { controllerutil.RemoveFinalizer(next, v1alpha1.Finalizer) })
	if err := client.IgnoreNotFound(err); err != nil {
		return err
	}
	return ErrReleased
}

// IsMade says whether the object has the mark that its data was made once.
func IsMade(o client.Object) bool { return o.GetAnnotations()[v1alpha1.AnnotationMade] == "true" }

// MarkMade writes the mark.
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

// Confirm makes sure that o is what the API server has, as far as the spec and the mark go, before a step that cannot be undone: a cache
// may be behind. live reads without a cache. ErrStale.
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

// kind of an object: its Go type has the same name.
func kind[T any]() string { return reflect.TypeFor[T]().Name() }

// staleAfter is when a reconciler looks again at an object that was written while it looked: about as long as a cache is behind.
const staleAfter = 50 * time.Millisecond

// IsStale says whether an error is a conflict or ErrStale: the object has been written since it was read.
func IsStale(err error) bool { return apierrors.IsConflict(err) || errors.Is(err, ErrStale) }

// RequeueIfStale ends a reconciliation. If the object has been written since it was read, it is looked at again soon, which is no error;
// every other error stays.
func RequeueIfStale(err error) (ctrl.Result, error) {
	if IsStale(err) {
		return ctrl.Result{RequeueAfter: staleAfter}, nil
	}
	return ctrl.Result{}, err
}
