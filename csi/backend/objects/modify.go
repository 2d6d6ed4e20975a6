package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
)

// current values of a volume, and wanted ones.
func current(lu *v1alpha1.LogicalUnit) backend.Mutable {
	return backend.Mutable{PreferredNode: lu.Status.PreferredNode, PinnedNode: cmp.Or(lu.Status.PinnedNode, v1alpha1.NoPin), WriteCache: lu.Status.WriteCache, Tier: cmp.Or(lu.Status.Tier, v1alpha1.NoPin)}
}

func wanted(lu *v1alpha1.LogicalUnit) backend.Mutable {
	return backend.Mutable{PreferredNode: lu.Spec.PreferredNode, PinnedNode: cmp.Or(lu.Spec.PinnedNode, v1alpha1.NoPin), WriteCache: lu.Spec.WriteCache, Tier: cmp.Or(lu.Spec.Tier, v1alpha1.NoPin)}
}

// specPin is the pin of a spec, where empty is no pin.
func specPin(pin string) string {
	if pin == v1alpha1.NoPin {
		return ""
	}
	return pin
}

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
		want := m.Over(wanted(lu))
		lu.Spec.PreferredNode, lu.Spec.PinnedNode, lu.Spec.WriteCache, lu.Spec.Tier = want.PreferredNode, specPin(want.PinnedNode), want.WriteCache, specPin(want.Tier)
		return nil
	})
	if err != nil {
		return backend.Volume{}, err
	}
	generation := lu.Generation
	lu, err = b.waitUnit(ctx, what, lu, func(now *v1alpha1.LogicalUnit) (bool, error) {
		wants := wanted(now)
		if m.Over(wants) != wants {
			return true, fmt.Errorf("%s: %w: the LogicalUnit has been changed by another call", what, backend.ErrUnavailable)
		}
		has, m := current(now), m
		if now.Spec.PinnedNode != "" {
			m.PreferredNode = "" // it is set when the pin is gone
		}
		if now.Status.ObservedGeneration >= generation && m.Over(has) == has {
			return true, nil
		}
		c := failed(now.Status.Conditions, v1alpha1.ConditionReady, generation)
		if c != nil && c.Reason == v1alpha1.ReasonNotSupported { // only here: a volume that is created exists without its pin
			return false, fmt.Errorf("%s: %w: %s", what, backend.ErrUnsupported, c.Message)
		}
		return false, verdict(what, c)
	})
	if errors.Is(err, errGone) {
		return backend.Volume{}, notFound("volume", id)
	}
	if err != nil {
		return backend.Volume{}, err
	}
	return volume(lu), nil
}
