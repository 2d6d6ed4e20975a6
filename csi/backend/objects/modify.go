package objects

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// ModifyVolume implements backend.Backend. It waits for the values in the status, which are those
// of the pair, and not only for the generation, which also advances if the pair could not be
// modified.
func (b *Backend) ModifyVolume(ctx context.Context, id string, m backend.Mutable) (backend.Volume, error) {
	if _, err := b.ready(ctx, id); err != nil {
		return backend.Volume{}, err
	}
	what := "modify volume " + id
	lu, err := b.change(ctx, id, func(lu *v1alpha1.LogicalUnit) error {
		if lu.Spec.Destroy {
			return notFound("volume", id)
		}
		want := m.Over(backend.Mutable{PreferredNode: lu.Spec.PreferredNode, WriteCache: lu.Spec.WriteCache})
		lu.Spec.PreferredNode, lu.Spec.WriteCache = want.PreferredNode, want.WriteCache
		return nil
	})
	if err != nil {
		return backend.Volume{}, err
	}
	generation := lu.Generation
	lu, err = b.waitUnit(ctx, what, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		wants := backend.Mutable{PreferredNode: now.Spec.PreferredNode, WriteCache: now.Spec.WriteCache}
		if m.Over(wants) != wants {
			return true, fmt.Errorf("%s: %w: the LogicalUnit has been changed by another call", what, backend.ErrUnavailable)
		}
		has := backend.Mutable{PreferredNode: now.Status.PreferredNode, WriteCache: now.Status.WriteCache}
		if now.Status.ObservedGeneration >= generation && m.Over(has) == has {
			return true, nil
		}
		return false, verdict(what, failed(now.Status.Conditions, v1alpha1.ConditionReady, generation))
	})
	if errors.Is(err, errGone) {
		return backend.Volume{}, notFound("volume", id)
	}
	if err != nil {
		return backend.Volume{}, err
	}
	return volume(lu), nil
}
