package groupsnapshot

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
)

// ensureLegs replaces each member that is of a striped volume by those of its legs, which it
// creates unless they exist. Such a member goes only after its legs, and they are created only
// while it exists; so none is left without one that knows of it.
func (p *pass) ensureLegs(ctx context.Context) error {
	confirmed := false
	for _, s := range p.members {
		if s.Spec.Striped == nil {
			p.luns = append(p.luns, s)
			continue
		}
		for i := range int(s.Spec.Striped.LUNs) {
			want := legOf(s, i)
			leg, err := find(ctx, p, want.Name)
			if err != nil {
				return err
			}
			if leg == nil && !confirmed { // as for members
				if err := object.Confirm(ctx, p.Live, p.o); err != nil {
					return err
				}
				confirmed = true
			}
			if leg == nil {
				leg = want
				if err := p.createObject(ctx, leg); err != nil {
					return err
				}
			}
			if err := p.checkLeg(want, leg); err != nil {
				return err
			}
			p.luns = append(p.luns, leg)
		}
	}
	if n := len(p.luns); n > v1alpha1.MaxGroupMembers {
		return finding.New(v1alpha1.ReasonInvalid, "spec.members: they have %d LUNs, and a group snapshot has %d at most: take several", n, v1alpha1.MaxGroupMembers)
	}
	return nil
}

// legOf is the object of a leg of a member.
func legOf(s *v1alpha1.LogicalUnitSnapshot, i int) *v1alpha1.LogicalUnitSnapshot {
	name := v1alpha1.LegName(s.Name, i)
	return &v1alpha1.LogicalUnitSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelCluster: s.Spec.Cluster, v1alpha1.LabelStriped: s.Name}},
		Spec: v1alpha1.LogicalUnitSnapshotSpec{Cluster: s.Spec.Cluster, Source: v1alpha1.LegName(s.Spec.Source, i), Name: name, Group: s.Spec.Group,
			Leg: &v1alpha1.Leg{Of: s.Name, UUID: s.Spec.Placement.UUID, Number: int32(i), Striping: *s.Spec.Striped}}}
}

// checkLeg checks that a leg can be taken.
func (p *pass) checkLeg(want, have *v1alpha1.LogicalUnitSnapshot) error {
	what := ""
	switch l := have.Spec.Leg; {
	case l == nil || *l != *want.Spec.Leg || have.Spec.Source != want.Spec.Source || have.Spec.Group != want.Spec.Group || have.Spec.Cluster != want.Spec.Cluster:
		what = "is no part of this group snapshot"
	case object.IsMade(have):
		what = "was taken before, with an earlier group snapshot of this name"
	case have.Spec.Destroy || !have.DeletionTimestamp.IsZero():
		what = "was deleted by itself"
	default:
		return nil
	}
	return finding.New(v1alpha1.ReasonInvalid, "spec.members: %s: the LogicalUnitSnapshot %s %s: delete it, or take a group snapshot of another name", want.Spec.Leg.Of, have.Name, what)
}
