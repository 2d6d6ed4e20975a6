package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/internal/object"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// The snapshot of a striped volume has an object for each leg. The reconciler of groups creates
// these, and takes them at one instant (docs/decisions/0076). Here they are summed up.

// checkSource checks that an object is of its source: what is of a striped volume, or of one of its
// legs, is not taken by itself.
func (p *pass) checkSource(ctx context.Context, lu *v1alpha1.LogicalUnit) error {
	leg := p.o.Spec.Leg
	switch {
	case leg == nil && lu.Spec.Leg != nil:
		return finding.New(v1alpha1.ReasonInvalid, "spec.source: %s is a part of the striped volume %s: take a snapshot of that", lu.Name, lu.Spec.Leg.Of)
	case lu.Spec.Striped != nil && p.o.Spec.Group == "":
		return finding.New(v1alpha1.ReasonInvalid, "spec.source: %s is striped, and the snapshots of its LUNs have to be of one instant: create a LogicalUnitGroupSnapshot that has it as a member", lu.Name)
	case leg == nil:
		return nil
	}
	whole := &v1alpha1.LogicalUnitSnapshot{}
	err := p.Live.Get(ctx, client.ObjectKey{Name: leg.Of}, whole)
	switch {
	case apierrors.IsNotFound(err):
		return finding.New(v1alpha1.ReasonInvalid, "spec.leg.of: LogicalUnitSnapshot %s does not exist: set spec.destroy and delete this object", leg.Of)
	case err != nil:
		return fmt.Errorf("LogicalUnitSnapshot %s: %w", leg.Of, err)
	case whole.Spec.Striped == nil || *whole.Spec.Striped != leg.Striping || whole.Spec.Placement == nil || whole.Spec.Placement.UUID != leg.UUID:
		return finding.New(v1alpha1.ReasonInvalid, "spec.leg: LogicalUnitSnapshot %s is not the one with the UUID %s that this is a part of: set spec.destroy and delete this object", leg.Of, leg.UUID)
	case lu.Spec.Leg == nil || lu.Spec.Leg.Of != whole.Spec.Source || lu.Spec.Leg.Number != leg.Number || lu.Spec.Leg.Striping != leg.Striping:
		return finding.New(v1alpha1.ReasonInvalid, "spec.source: %s is not leg %d of %s: set spec.destroy and delete this object", lu.Name, leg.Number, whole.Spec.Source)
	}
	return nil
}

// reconcileStriped marks the snapshot when those of all legs are marked, and says what they say.
func (p *pass) reconcileStriped(ctx context.Context) error {
	if err := p.awaitGroup(ctx); err != nil {
		return err
	}
	if err := p.readLegs(ctx, p); err != nil {
		return err
	}
	if slices.Contains(p.legs, nil) { // a cache can be behind
		if err := p.readLegs(ctx, p.Live); err != nil {
			return err
		}
	}
	for i, leg := range p.legs {
		switch {
		case leg == nil && p.made():
			return finding.New(v1alpha1.ReasonMissing, "LogicalUnitSnapshot %s, a part of this snapshot, does not exist, and is not taken again, because it would be of another point in time: "+
				"recreate it with `kubectl gemel import --apply` if it is on the disks, or delete the VolumeSnapshot", v1alpha1.LegName(p.o.Name, i))
		case leg == nil:
			return finding.Wait(v1alpha1.ReasonProgressing, "LogicalUnitSnapshot %s, a part of this snapshot, does not exist yet", v1alpha1.LegName(p.o.Name, i))
		}
		c := meta.FindStatusCondition(leg.Status.Conditions, v1alpha1.ConditionReady)
		switch {
		case c == nil || c.ObservedGeneration != leg.Generation || leg.Status.Size == nil || leg.Status.TakenAt == nil || !object.IsMade(leg) && c.Status == metav1.ConditionTrue:
			return finding.New(v1alpha1.ReasonProgressing, "LogicalUnitSnapshot %s, a part of this snapshot, is being reconciled", leg.Name)
		case c.Status != metav1.ConditionTrue:
			return finding.New(c.Reason, "LogicalUnitSnapshot %s, a part of this snapshot: %s", leg.Name, c.Message)
		}
	}
	if p.made() {
		return nil
	}
	return object.MarkMade(ctx, p, &p.o)
}

// readLegs reads the objects of the legs; nil where there is none of this snapshot.
func (p *pass) readLegs(ctx context.Context, from client.Reader) error {
	p.legs = make([]*v1alpha1.LogicalUnitSnapshot, p.o.Spec.Striped.LUNs)
	for i := range p.legs {
		leg := &v1alpha1.LogicalUnitSnapshot{}
		err := from.Get(ctx, client.ObjectKey{Name: v1alpha1.LegName(p.o.Name, i)}, leg)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("part %d: %w", i, err)
		case IsLeg(p.o, leg):
			p.legs[i] = leg
		}
	}
	return nil
}

// IsLeg reports whether an object is of a leg of this snapshot, and not of an earlier one's.
func IsLeg(whole, leg *v1alpha1.LogicalUnitSnapshot) bool {
	l, at := leg.Spec.Leg, whole.Spec.Placement
	return l != nil && at != nil && l.Of == whole.Name && l.UUID == at.UUID
}

// destroyLegs destroys the snapshots of the legs, and returns when there are none.
func (p *pass) destroyLegs(ctx context.Context) error {
	if err := object.Confirm(ctx, p.Live, p.o); err != nil {
		return err
	}
	if err := p.readLegs(ctx, p.Live); err != nil {
		return err
	}
	var left []string
	for i, leg := range p.legs {
		if leg == nil {
			continue
		}
		left = append(left, leg.Name)
		if err := Remove(ctx, p, &p.legs[i]); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return finding.New(v1alpha1.ReasonProgressing, "its parts are being destroyed: %s", strings.Join(left, ", "))
	}
	return nil
}

// Remove allows the destruction of a snapshot, and deletes its object.
func Remove(ctx context.Context, c client.Client, s **v1alpha1.LogicalUnitSnapshot) error {
	return object.Destroy(ctx, c, s, (*s).Spec.Destroy, func(s *v1alpha1.LogicalUnitSnapshot) { s.Spec.Destroy = true })
}

// setStripedStatus sums up the legs: the size is that of the volume.
func (p *pass) setStripedStatus(s *v1alpha1.LogicalUnitSnapshotStatus) {
	least := int64(-1)
	for _, leg := range p.legs {
		if leg == nil || leg.Status.Size == nil || leg.Status.TakenAt == nil {
			return // as it was
		}
		if size := leg.Status.Size.Value(); least < 0 || size < least {
			least = size
		}
	}
	if least < 0 {
		return
	}
	last := slices.MaxFunc(p.legs, func(a, b *v1alpha1.LogicalUnitSnapshot) int { return a.Status.TakenAt.Compare(b.Status.TakenAt.Time) })
	layout := stripe.Layout{Count: len(p.legs), Size: int64(p.o.Spec.Striped.StripeBytes)}
	s.Size, s.TakenAt = resource.NewQuantity(layout.Volume(least), resource.BinarySI), last.Status.TakenAt.DeepCopy()
}

// wholeOf is the snapshot of a striped volume that a leg is a part of, for the queue.
func wholeOf(_ context.Context, o client.Object) []reconcile.Request {
	if s, ok := o.(*v1alpha1.LogicalUnitSnapshot); ok && s.Spec.Leg != nil {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: s.Spec.Leg.Of}}}
	}
	return nil
}

// VolumeOf makes the object of the snapshot of a striped volume from its parts on the disks. Its
// status says which of them are missing.
func VolumeOf(legs []*v1alpha1.LogicalUnitSnapshot) *v1alpha1.LogicalUnitSnapshot {
	first := slices.MinFunc(legs, func(a, b *v1alpha1.LogicalUnitSnapshot) int { return cmp.Compare(a.Spec.Leg.Number, b.Spec.Leg.Number) })
	l := first.Spec.Leg
	out := &v1alpha1.LogicalUnitSnapshot{TypeMeta: first.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: l.Of, Labels: map[string]string{v1alpha1.LabelCluster: first.Spec.Cluster},
		Annotations: map[string]string{v1alpha1.AnnotationMade: "true"}}, Spec: *first.Spec.DeepCopy()}
	s := &out.Spec
	s.Leg, s.Striped, s.Name = nil, &v1alpha1.Striping{LUNs: l.LUNs, StripeBytes: l.StripeBytes}, l.Of
	s.Source = strings.TrimSuffix(s.Source, "-"+strconv.Itoa(int(l.Number)))
	s.Placement.UUID, s.Placement.SourceUUID = l.UUID, ""
	found := map[int32]string{}
	for _, leg := range legs {
		found[leg.Spec.Leg.Number] = leg.Spec.Placement.Pair
	}
	s.Placement.LegPairs = v1alpha1.LegPairsFound(l.LUNs, s.Placement.Pair, found)
	return out
}
