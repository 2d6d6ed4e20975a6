package logicalunit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
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
	"github.com/gemel-storage/gemel/placement"
)

// A striped volume has a LogicalUnit for itself, and one for each leg (docs/decisions/0075). The
// one of the volume is placed as every LUN is, makes those of the legs, passes on what is asked of
// it, and sums up what they say. It calls no pair: each leg is reconciled as a LUN of its own.

// legs are the objects of the legs, in their order; nil where there is none yet.
type legs []*v1alpha1.LogicalUnit

// reconcileStriped makes the legs match the spec of their volume.
//
// The volume is marked when all legs are: until then a leg that does not exist is created, with a
// name that is always the same, so a crash between any two writes is harmless. Afterwards a leg is
// never created again, because an empty one would hide the loss.
func (p *pass) reconcileStriped(ctx context.Context) (ready, published error) {
	if p.deleted() && p.lu.Spec.Destroy {
		err := p.destroyLegs(ctx)
		return err, err
	}
	if n := int64(p.lu.Spec.Striped.LUNs); p.lu.Spec.Size.Value()%(n<<20) != 0 {
		err := finding.New(v1alpha1.ReasonInvalid, "spec.size: %s is not a multiple of %d MiB, 1 MiB for each LUN", &p.lu.Spec.Size, n)
		return err, err
	}
	if err := p.place(ctx); err != nil {
		return err, err
	}
	if err := p.ensureSource(ctx); err != nil {
		return err, err
	}
	// What is said of a change of the spec, above all that a host is fenced, has to be true: then
	// the legs are read without the cache. Without such a change the cache will do, as long as
	// hosts stay what they were.
	live := p.lu.Status.ObservedGeneration != p.lu.Generation || !p.made() || p.deleted()
	for {
		if foreign, err := p.readLegs(ctx, live); err != nil {
			return err, err
		} else if foreign != "" {
			err := finding.New(v1alpha1.ReasonInvalid, "LogicalUnit %s is no leg of this volume, but was there before it: delete it, or give the volume another name", foreign)
			return err, err
		}
		if err := p.ensureLegs(ctx); err != nil {
			return err, err
		}
		if live || equality.Semantic.DeepEqual(p.stripedHosts(), p.lu.Status.Hosts) {
			break
		}
		live = true
	}
	if ready = p.tooBig; ready == nil {
		ready = p.legsAre(v1alpha1.ConditionReady)
	}
	if p.made() {
		_, err := p.removeClonePoint(ctx, p)
		ready = errors.Join(ready, err)
	}
	return ready, p.legsAre(v1alpha1.ConditionPublished)
}

// readLegs reads the legs, live without the cache. foreign has the name of one of them, and is
// none of this volume's.
func (p *pass) readLegs(ctx context.Context, live bool) (foreign string, err error) {
	var from client.Reader = p.Client
	if live {
		from = p.Live
	}
	p.legs = make(legs, p.lu.Spec.Striped.LUNs)
	for i := range p.legs {
		leg := &v1alpha1.LogicalUnit{}
		err := from.Get(ctx, client.ObjectKey{Name: v1alpha1.LegName(p.lu.Name, i)}, leg)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("leg %d: %w", i, err)
		}
		if l := leg.Spec.Leg; l == nil || l.Of != p.lu.Name || l.UUID != p.lu.Spec.Placement.UUID {
			foreign = leg.Name
			continue
		}
		p.legs[i] = leg
	}
	return foreign, nil
}

// leg is the object of a leg as the spec of the volume says.
func (p *pass) leg(i int) *v1alpha1.LogicalUnit {
	s := &p.lu.Spec
	leg := &v1alpha1.LogicalUnit{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.LegName(p.lu.Name, i), Labels: map[string]string{v1alpha1.LabelCluster: s.Cluster, v1alpha1.LabelStriped: p.lu.Name}},
		Spec: v1alpha1.LogicalUnitSpec{Cluster: s.Cluster, Pool: s.Pool, Shared: s.Shared, Volume: s.Volume.DeepCopy(),
			Leg: &v1alpha1.Leg{Of: p.lu.Name, UUID: s.Placement.UUID, Number: int32(i), Striping: *s.Striped}}}
	leg.Spec.Source = p.legSource(i)
	for _, t := range s.AccessibleFrom {
		leg.Spec.AccessibleFrom = append(leg.Spec.AccessibleFrom, *t.DeepCopy())
	}
	p.passOn(leg)
	return leg
}

// passOn sets what may change of a volume in the spec of a leg. A leg is never made smaller.
func (p *pass) passOn(leg *v1alpha1.LogicalUnit) {
	s := &p.lu.Spec
	if size := s.Size.Value() / int64(s.Striped.LUNs); leg.Spec.Size.Value() < size && (p.tooBig == nil || leg.Spec.Size.IsZero()) {
		leg.Spec.Size = *resource.NewQuantity(size, resource.BinarySI)
	}
	leg.Spec.Hosts, leg.Spec.WriteCache, leg.Spec.Tier = slices.Clone(s.Hosts), s.WriteCache, s.Tier
}

// ensureLegs creates the legs unless they exist, passes the spec on to them, and marks the volume
// when all legs are marked.
func (p *pass) ensureLegs(ctx context.Context) error {
	var missing []int
	for i, leg := range p.legs {
		if leg == nil {
			missing = append(missing, i)
		}
	}
	switch {
	case len(missing) > 0 && p.made():
		return finding.New(v1alpha1.ReasonMissing, "LogicalUnit %s, a leg of this volume, does not exist: it is not created again, because an empty leg would hide the loss; "+
			"recreate it with `kubectl gemel import --apply` if its LUN exists, or restore the volume from a backup", v1alpha1.LegName(p.lu.Name, missing[0]))
	case len(missing) == len(p.legs) && p.deleted():
		if err := p.endClonePoint(ctx); err != nil {
			return err
		}
		return object.RemoveFinalizer(ctx, p, &p.lu) // deleted before a leg was created: there is no data
	case len(missing) > 0 && (p.deleted() || p.lu.Spec.Destroy):
		return finding.New(v1alpha1.ReasonInvalid, "spec.destroy or a deletion came before all legs were created: set spec.destroy and delete the object")
	}
	if !p.deleted() && !p.lu.Spec.Destroy {
		p.tooBig = p.growable(ctx)
	}
	// The cache may have an older spec of the volume, which lacks a host that uses it.
	if len(missing) > 0 || slices.ContainsFunc(p.legs, p.differs) {
		if err := object.Confirm(ctx, p.Live, p.lu); err != nil {
			return err
		}
	}
	for _, i := range missing {
		leg := p.leg(i)
		if err := p.Create(ctx, leg, client.FieldOwner(v1alpha1.OperatorManager)); err != nil {
			if apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("leg %d: %w", i, object.ErrStale)
			}
			return fmt.Errorf("leg %d: %w", i, err)
		}
		p.legs[i] = leg
	}
	made := true
	for i, leg := range p.legs {
		if p.differs(leg) {
			if err := object.Patch(ctx, p, &p.legs[i], "spec", p.passOn); err != nil {
				return err
			}
		}
		made = made && object.IsMade(p.legs[i])
	}
	if !made || p.made() {
		return nil
	}
	return object.MarkMade(ctx, p, &p.lu)
}

// differs reports whether a leg lacks something of what its volume says.
func (p *pass) differs(leg *v1alpha1.LogicalUnit) bool {
	if leg == nil {
		return false
	}
	want := leg.DeepCopy()
	p.passOn(want)
	return !equality.Semantic.DeepEqual(want.Spec, leg.Spec)
}

// destroyLegs destroys the legs, and then releases the volume. Each leg fences its hosts before its
// LUN is destroyed.
func (p *pass) destroyLegs(ctx context.Context) error {
	if p.lu.Spec.Placement == nil {
		return object.RemoveFinalizer(ctx, p, &p.lu)
	}
	if err := object.Confirm(ctx, p.Live, p.lu); err != nil {
		return err
	}
	if _, err := p.readLegs(ctx, true); err != nil { // what is not of this volume stays
		return err
	}
	var left []string
	for i, leg := range p.legs {
		if leg == nil {
			continue
		}
		left = append(left, leg.Name)
		if !leg.Spec.Destroy || len(leg.Spec.Hosts) > 0 {
			if err := object.Patch(ctx, p, &p.legs[i], "spec.destroy", func(l *v1alpha1.LogicalUnit) { l.Spec.Hosts, l.Spec.Destroy = nil, true }); err != nil {
				return err
			}
		}
		if leg.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(p.Delete(ctx, p.legs[i], client.Preconditions{UID: &leg.UID})); err != nil {
				return fmt.Errorf("leg %d: %w", i, err)
			}
		}
	}
	if len(left) > 0 {
		return finding.New(v1alpha1.ReasonProgressing, "the legs are being destroyed: %s; what keeps one of them is in its conditions", strings.Join(left, ", "))
	}
	if err := p.endClonePoint(ctx); err != nil {
		return err
	}
	return object.RemoveFinalizer(ctx, p, &p.lu)
}

// legsAre is what keeps a condition of the volume from being true: what the first leg says that is
// not, or that a leg has not said anything of its spec yet.
func (p *pass) legsAre(kind string) error {
	for i, leg := range p.legs {
		c := meta.FindStatusCondition(leg.Status.Conditions, kind)
		switch {
		case c == nil || c.ObservedGeneration != leg.Generation || leg.Status.ObservedGeneration != leg.Generation && c.Status == metav1.ConditionTrue:
			return finding.New(v1alpha1.ReasonProgressing, "leg %d, LogicalUnit %s, is being reconciled", i, leg.Name)
		case c.Status != metav1.ConditionTrue:
			return finding.New(c.Reason, "leg %d, LogicalUnit %s: %s", i, leg.Name, c.Message)
		}
	}
	return nil
}

// placeLeg places a leg on the pair that its volume says. Homes alternate on each pair, so neither
// node is the home of two legs more than the other one.
func (p *pass) placeLeg(ctx context.Context) error {
	l := p.lu.Spec.Leg
	volume := &v1alpha1.LogicalUnit{}
	err := p.Live.Get(ctx, client.ObjectKey{Name: l.Of}, volume)
	switch {
	case apierrors.IsNotFound(err):
		return finding.New(v1alpha1.ReasonInvalid, "spec.leg.of: LogicalUnit %s does not exist: delete this one", l.Of)
	case err != nil:
		return fmt.Errorf("LogicalUnit %s: %w", l.Of, err)
	case volume.Spec.Striped == nil || volume.Spec.Placement == nil || volume.Spec.Placement.UUID != l.UUID:
		return finding.New(v1alpha1.ReasonInvalid, "spec.leg: LogicalUnit %s is not the volume %s that this is a leg of: delete this one", l.Of, l.UUID)
	}
	at, pair := volume.Spec.Placement, volume.Spec.Placement.Pair
	var on []string
	for _, name := range at.LegPairs {
		on = append(on, string(name))
	}
	where := "is on pair " + pair
	if len(on) > int(l.Number) {
		pair, where = on[l.Number], "is on pairs "+strings.Join(at.Pairs(), ", ")
	}
	choice := placement.Choice{Pair: pair, Home: placement.LegHome(at.Home, on, int(l.Number))}
	choice.Reason = fmt.Sprintf("leg %d of %d of the striped volume %s, which %s; homes alternate, and node %s of pair %s becomes the home", l.Number, l.LUNs, l.Of, where, choice.Home, pair)
	return p.writePlacement(ctx, at.Pool, choice, nil)
}

// volumeOf is the striped volume of a leg, for the queue.
func volumeOf(_ context.Context, o client.Object) []reconcile.Request {
	if lu, ok := o.(*v1alpha1.LogicalUnit); ok && lu.Spec.Leg != nil {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: lu.Spec.Leg.Of}}}
	}
	return nil
}
