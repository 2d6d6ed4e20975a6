package logicalunit

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// A striped volume is restored leg by leg, from the parts of a snapshot, which are of one instant.
// A clone of a striped volume needs such an instant as well: it is restored from a group snapshot
// of its source, which has the name of the clone, and goes when the clone is made.

// sameLayout checks that the source of a copy has the LUNs that the copy has. field is that of
// spec.source; striped and leg are the source's.
func (p *pass) sameLayout(field, name string, striped *v1alpha1.Striping, leg *v1alpha1.Leg) error {
	mine := p.lu.Spec.Leg
	switch {
	case leg != nil && (mine == nil || mine.Number != leg.Number || mine.Striping != leg.Striping):
		return finding.New(v1alpha1.ReasonInvalid, "spec.source.%s: %s is a part of %s, which is striped: copy that", field, name, leg.Of)
	case leg == nil && mine != nil:
		return finding.New(v1alpha1.ReasonInvalid, "spec.source.%s: %s is no part of a striped volume, and this LogicalUnit is", field, name)
	case (striped == nil) != (p.lu.Spec.Striped == nil), striped != nil && *striped != *p.lu.Spec.Striped:
		return finding.New(v1alpha1.ReasonInvalid, "spec.striped: this volume has %s, and its source %s has %s: a copy has the LUNs of its source", layoutOf(p.lu.Spec.Striped), name, layoutOf(striped))
	}
	return nil
}

// layoutOf is the layout of a volume; Count 0: one LUN.
func layoutOf(s *v1alpha1.Striping) stripe.Layout {
	if s == nil {
		return stripe.Layout{}
	}
	return stripe.Layout{Count: int(s.LUNs), Size: int64(s.StripeBytes)}
}

// isClone reports whether the volume is a clone of another one, and needs a point in time of it.
func (p *pass) isClone() bool { return p.lu.Spec.Source != nil && p.lu.Spec.Source.LogicalUnit != "" }

// legSource is what a leg is made from.
func (p *pass) legSource(i int) *v1alpha1.Source {
	switch {
	case p.lu.Spec.Source == nil:
		return nil
	case p.isClone():
		return &v1alpha1.Source{Snapshot: v1alpha1.LegName(p.lu.Name, i)}
	}
	return &v1alpha1.Source{Snapshot: v1alpha1.LegName(p.lu.Spec.Source.Snapshot, i)}
}

// ensureSource waits until there is what the legs of a new copy are made from. The snapshot for a
// clone is taken here: its name is always the same, so a crash between any two writes is harmless.
func (p *pass) ensureSource(ctx context.Context) error {
	if !p.isClone() || p.made() || p.deleted() || p.lu.Spec.Destroy {
		return nil
	}
	g, err := p.clonePoint(ctx, p)
	if g == nil && err == nil {
		g, err = p.clonePoint(ctx, p.Live) // a cache can be behind
	}
	if err != nil {
		return err
	}
	if g == nil {
		if err := object.Confirm(ctx, p.Live, p.lu); err != nil {
			return err
		}
		g = &v1alpha1.LogicalUnitGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Name: p.lu.Name, Labels: map[string]string{v1alpha1.LabelCluster: p.lu.Spec.Cluster, v1alpha1.LabelClone: p.lu.Spec.Placement.UUID}},
			Spec: v1alpha1.LogicalUnitGroupSnapshotSpec{Cluster: p.lu.Spec.Cluster, Name: p.lu.Name, Members: []v1alpha1.GroupSnapshotMember{{Source: p.lu.Spec.Source.LogicalUnit, Snapshot: p.lu.Name}}}}
		if err := p.Create(ctx, g, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
			if apierrors.IsAlreadyExists(err) {
				return object.ErrStale
			}
			return fmt.Errorf("the snapshot of the source: %w", err)
		}
	}
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case !p.ofClone(g):
		return finding.New(v1alpha1.ReasonInvalid, "LogicalUnitGroupSnapshot %s was not taken for this clone: delete it, or give the volume another name", g.Name)
	case object.IsMade(g):
		return nil
	case c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonProgressing && c.ObservedGeneration == g.Generation:
		return finding.Wait(c.Reason, "the snapshot of the source, LogicalUnitGroupSnapshot %s: %s", g.Name, c.Message)
	}
	return finding.Wait(v1alpha1.ReasonProgressing, "the snapshot of the source, LogicalUnitGroupSnapshot %s, is being taken", g.Name)
}

// ofClone reports whether a group snapshot was taken for this clone. A later volume of the same
// name has another UUID.
func (p *pass) ofClone(g *v1alpha1.LogicalUnitGroupSnapshot) bool {
	return g.Labels[v1alpha1.LabelClone] == p.lu.Spec.Placement.UUID
}

// clonePoint reads the group snapshot that a clone is made from; nil if there is none.
func (p *pass) clonePoint(ctx context.Context, from client.Reader) (*v1alpha1.LogicalUnitGroupSnapshot, error) {
	g := &v1alpha1.LogicalUnitGroupSnapshot{}
	err := from.Get(ctx, client.ObjectKey{Name: p.lu.Name}, g)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("LogicalUnitGroupSnapshot %s: %w", p.lu.Name, err)
	}
	return g, nil
}

// removeClonePoint removes the snapshot that a clone was made from. It does not wait until the
// snapshot is gone; left reports whether it was still there.
func (p *pass) removeClonePoint(ctx context.Context, from client.Reader) (left bool, err error) {
	if !p.isClone() {
		return false, nil
	}
	g, err := p.clonePoint(ctx, from)
	if err != nil || g == nil || !p.ofClone(g) {
		return false, err
	}
	return true, object.Destroy(ctx, p, &g, g.Spec.Destroy, func(g *v1alpha1.LogicalUnitGroupSnapshot) { g.Spec.Destroy = true })
}

// endClonePoint removes that snapshot, and waits until it is gone: nothing of a clone outlives it.
func (p *pass) endClonePoint(ctx context.Context) error {
	left, err := p.removeClonePoint(ctx, p.Live)
	if err != nil || !left {
		return err
	}
	return finding.Wait(v1alpha1.ReasonProgressing, "the snapshot of the source, LogicalUnitGroupSnapshot %s, is being removed", p.lu.Name)
}
