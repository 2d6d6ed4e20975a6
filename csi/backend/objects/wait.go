package objects

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

func equal(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

const (
	// watchLimit bounds a watch; then the object is read again.
	watchLimit = 10 * time.Second
	// stuckEvery is how often a wait looks whether what it waits for can come.
	stuckEvery = 2 * time.Second
	// watchPause is the delay before a new watch.
	watchPause = 200 * time.Millisecond
)

// wait returns when done returns true or an error. done is called with the current object and after
// each change; if the object is deleted or replaced, the error is errGone. When the context ends,
// the error is ErrTimeout with the last condition.
//
// stuck is called with an object that is not done, and every two seconds; an error of it ends the
// wait.
func wait[O client.Object](ctx context.Context, b *Backend, what string, o O, empty func() O, list client.ObjectList, done func(O) (bool, error), stuck func(O) error) error {
	uid, key := o.GetUID(), client.ObjectKeyFromObject(o)
	seen := o
	look := func(now client.Object) (bool, error) {
		if now.GetUID() != uid {
			return true, errGone
		}
		seen = now.(O)
		return done(seen)
	}
	ended := func(err error) error {
		return fmt.Errorf("%s: %w: %w; last seen: %s", what, backend.ErrTimeout, err, lastSeen(seen))
	}
	for {
		o := empty() // decoding into a non-empty object keeps removed fields
		err := b.c.Get(ctx, key, o)
		switch {
		case ctx.Err() != nil:
			return ended(ctx.Err())
		case apierrors.IsNotFound(err):
			return errGone
		case err == nil:
			if ok, err := look(o); ok || err != nil {
				return err
			}
			if err := stuck(seen); err != nil {
				return err
			}
			if ok, err := follow(ctx, b, o, list, look, func() error { return stuck(seen) }); ok || err != nil {
				return err
			}
		}
		if err := sleep(ctx, watchPause); err != nil {
			return ended(err)
		}
	}
}

// follow watches the object from the version of o. It returns false when the watch has ended.
func follow[O client.Object](ctx context.Context, b *Backend, o O, list client.ObjectList, look func(client.Object) (bool, error), stuck func() error) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	w, err := b.c.Watch(ctx, list, client.MatchingFields{"metadata.name": o.GetName()},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: o.GetResourceVersion()}})
	if err != nil {
		return false, nil // the caller retries
	}
	defer w.Stop()
	again := time.NewTicker(stuckEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if err := stuck(); err != nil {
				return true, err
			}
		case e, open := <-w.ResultChan():
			now, ok := e.Object.(client.Object)
			switch {
			case !open || e.Type == watch.Error || !ok:
				return false, nil
			case e.Type == watch.Deleted:
				return true, errGone
			case e.Type == watch.Bookmark:
				continue
			}
			if done, err := look(now); done || err != nil {
				return true, err
			}
		case <-ctx.Done():
			return false, nil
		}
	}
}

// lastSeen is the last condition of the object, for messages.
func lastSeen(o client.Object) string {
	var list []metav1.Condition
	switch o := o.(type) {
	case *v1alpha1.LogicalUnit:
		list = o.Status.Conditions
	case *v1alpha1.LogicalUnitSnapshot:
		list = o.Status.Conditions
	case *v1alpha1.LogicalUnitGroupSnapshot:
		list = o.Status.Conditions
	}
	said := ""
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPublished} {
		if c := meta.FindStatusCondition(list, kind); c != nil && c.Status != metav1.ConditionTrue && c.Message != said {
			said = c.Message
		}
	}
	if said == "" {
		return "no condition: check that the operator runs"
	}
	return said
}

// waitUnit calls wait for a LogicalUnit, and returns the last object.
func (b *Backend) waitUnit(ctx context.Context, what string, lu *v1alpha1.LogicalUnit, done func(*v1alpha1.LogicalUnit) (bool, error)) (*v1alpha1.LogicalUnit, error) {
	var seen *v1alpha1.LogicalUnit
	err := wait(ctx, b, what, lu, func() *v1alpha1.LogicalUnit { return &v1alpha1.LogicalUnit{} }, &v1alpha1.LogicalUnitList{}, func(now *v1alpha1.LogicalUnit) (bool, error) {
		seen = now
		return done(now)
	}, func(now *v1alpha1.LogicalUnit) error { return b.pairsDown(ctx, what, now.Spec.Placement.Pairs()) })
	return seen, err
}

// pairsDown returns ErrUnavailable with the reason if no node of one of the pairs serves. What the
// call has written stays, and the operator does it when the pair is back. To wait for that would
// keep the calls of other volumes from their turn: the sidecars make a few calls at a time, and
// repeat each that is not available.
func (b *Backend) pairsDown(ctx context.Context, what string, names []string) error {
	for _, name := range names {
		p := &v1alpha1.TargetPair{}
		if b.c.Get(ctx, client.ObjectKey{Name: name}, p) != nil {
			continue // the wait goes on
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonPairDown {
			return fmt.Errorf("%s: %w: pair %s does not serve: %s; the call will be retried", what, backend.ErrUnavailable, name, c.Message)
		}
	}
	return nil
}
