package object

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// server is an API server with one LogicalUnit.
func server(t *testing.T, o *v1alpha1.LogicalUnit) (client.Client, func() *v1alpha1.LogicalUnit) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).Build()
	return c, func() *v1alpha1.LogicalUnit {
		t.Helper()
		lu := &v1alpha1.LogicalUnit{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), lu); err != nil {
			t.Fatal(err)
		}
		return lu
	}
}

func unit() *v1alpha1.LogicalUnit {
	return &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: "lun-1", UID: "1", Generation: 1}}
}

// A write replaces the given object; a write of an outdated object is a conflict, and changes
// neither.
func TestPatchDetectsConflicts(t *testing.T) {
	c, read := server(t, unit())
	lu, old := read(), read()
	first := lu
	if err := MarkMade(t.Context(), c, &lu); err != nil || lu == first || IsMade(first) || !IsMade(lu) || !IsMade(read()) || lu.ResourceVersion != read().ResourceVersion {
		t.Fatalf("%v, %+v", err, lu)
	}
	was := old
	err := EnsureFinalizer(t.Context(), c, &old)
	if !IsStale(err) || !strings.HasPrefix(err.Error(), "finalizer of LogicalUnit lun-1: ") || old != was || len(read().Finalizers) != 0 {
		t.Errorf("%v, %+v", err, read())
	}
}

// The finalizer is added once, and not to a deleted object; without it the object is gone.
func TestFinalizerIsAddedOnceAndRemoved(t *testing.T) {
	ctx := t.Context()
	c, read := server(t, unit())
	lu := read()
	if err := EnsureFinalizer(ctx, c, &lu); err != nil || !controllerutil.ContainsFinalizer(read(), v1alpha1.Finalizer) {
		t.Fatalf("%v, %+v", err, read())
	}
	version := lu.ResourceVersion
	if err := EnsureFinalizer(ctx, c, &lu); err != nil || read().ResourceVersion != version {
		t.Errorf("%v, written without need", err)
	}
	if err := c.Delete(ctx, read()); err != nil {
		t.Fatal(err)
	}
	deleted := read()
	deleted.Finalizers = nil
	if err := EnsureFinalizer(ctx, c, &deleted); err != nil || len(deleted.Finalizers) != 0 {
		t.Errorf("%v, %+v", err, deleted)
	}
	if err := RemoveFinalizer(ctx, c, &lu); !IsStale(err) || errors.Is(err, ErrReleased) {
		t.Errorf("the finalizer of an outdated object was removed: %v", err)
	}
	lu = read()
	for range 2 { // the second time it is gone
		if err := RemoveFinalizer(ctx, c, &lu); !errors.Is(err, ErrReleased) {
			t.Error(err)
		}
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(lu), &v1alpha1.LogicalUnit{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

type noServer struct{ client.Reader }

var errDown = errors.New("down")

func (noServer) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errDown
}

// Another object of the name, another spec, or another mark is stale; labels and status are not.
func TestConfirmDetectsStaleObjects(t *testing.T) {
	ctx := t.Context()
	c, read := server(t, unit())
	for name, change := range map[string]func(*v1alpha1.LogicalUnit){
		"another object": func(lu *v1alpha1.LogicalUnit) { lu.UID = "2" },
		"another spec":   func(lu *v1alpha1.LogicalUnit) { lu.Generation++ },
		"marked":         func(lu *v1alpha1.LogicalUnit) { lu.Annotations = map[string]string{v1alpha1.AnnotationMade: "true"} },
		"gone":           func(lu *v1alpha1.LogicalUnit) { lu.Name = "lun-2" },
	} {
		lu := read()
		change(lu)
		if err := Confirm(ctx, c, lu); !errors.Is(err, ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	lu := read()
	lu.Labels, lu.Status.Owner = map[string]string{"x": "y"}, "a"
	if err := Confirm(ctx, c, lu); err != nil {
		t.Error(err)
	}
	if err := Confirm(ctx, noServer{}, lu); !errors.Is(err, errDown) || err.Error() != "LogicalUnit lun-1: down" {
		t.Error(err)
	}
	marked := read()
	if err := MarkMade(ctx, c, &marked); err != nil {
		t.Fatal(err)
	}
	if err := Confirm(ctx, c, lu); !errors.Is(err, ErrStale) {
		t.Errorf("marked on the server: %v", err)
	}
}

func TestRequeueIfStaleHidesConflictsOnly(t *testing.T) {
	conflict := apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("logicalunits").GroupResource(), "lun-1", errDown)
	for name, x := range map[string]struct {
		err  error
		want ctrl.Result
		left error
	}{
		"none":     {},
		"conflict": {fmt.Errorf("status: %w", conflict), ctrl.Result{RequeueAfter: staleAfter}, nil},
		"stale":    {fmt.Errorf("now: %w", ErrStale), ctrl.Result{RequeueAfter: staleAfter}, nil},
		"another":  {errDown, ctrl.Result{}, errDown},
	} {
		if got, err := RequeueIfStale(x.err); got != x.want || !errors.Is(err, x.left) || (err == nil) != (x.left == nil) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
