package kubectlgemel

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/logicalunit"
	"github.com/gemel-storage/gemel/controllers/snapshot"
)

// wholesOnDisk are the legs of striped volumes, and the parts of their snapshots, by the UUID of
// the whole. They may be on several pairs.
type wholesOnDisk struct {
	legs  map[string][]*v1alpha1.LogicalUnit
	parts map[string][]*v1alpha1.LogicalUnitSnapshot
}

// striped creates the objects of striped volumes and their snapshots. Where a pair could not be
// read, a whole that lacks legs is left out: its other legs may be there, with hosts that the
// operator would fence if the object did not list them.
func (i *Importer) striped(ctx context.Context, n *count, w wholesOnDisk, unread string) {
	lacks := func(kind, name string, have int, want int32) bool {
		if unread == "" || have >= int(want) {
			return false
		}
		n.failed++
		fmt.Fprintf(i.Out, "%s %s: %d of its %d LUNs were found, and pair %s could not be read: repeat the command when it can\n", kind, name, have, want, unread)
		return true
	}
	for _, id := range slices.Sorted(maps.Keys(w.legs)) {
		if l := w.legs[id][0].Spec.Leg; !lacks("LogicalUnit", l.Of, len(w.legs[id]), l.LUNs) {
			i.create(ctx, n, logicalunit.VolumeOf(w.legs[id]))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.parts)) {
		if l := w.parts[id][0].Spec.Leg; !lacks("LogicalUnitSnapshot", l.Of, len(w.parts[id]), l.LUNs) {
			i.create(ctx, n, snapshot.VolumeOf(w.parts[id]))
		}
	}
}

// legsOf are the LUNs of a striped volume, in their order.
func legsOf(ctx context.Context, c client.Client, of string) ([]v1alpha1.LogicalUnit, error) {
	var l v1alpha1.LogicalUnitList
	if err := c.List(ctx, &l, client.MatchingLabels{v1alpha1.LabelStriped: of}); err != nil {
		return nil, err
	}
	legs := slices.DeleteFunc(l.Items, func(lu v1alpha1.LogicalUnit) bool { return lu.Spec.Leg == nil })
	slices.SortFunc(legs, func(x, y v1alpha1.LogicalUnit) int { return cmp.Compare(x.Spec.Leg.Number, y.Spec.Leg.Number) })
	return legs, nil
}

// wholes are the striped volumes of LUNs, by the names of both.
func wholes(ctx context.Context, c client.Client) (map[string]string, error) {
	var l v1alpha1.LogicalUnitList
	if err := c.List(ctx, &l, client.HasLabels{v1alpha1.LabelStriped}); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range l.Items {
		if leg := l.Items[i].Spec.Leg; leg != nil {
			out[l.Items[i].Name] = leg.Of
		}
	}
	return out, nil
}

// parts checks the LUNs of a striped volume, and says who owns each. Without a stripe there are
// none.
func parts(ctx context.Context, c client.Client, ch *chain, lu *v1alpha1.LogicalUnit) ([]v1alpha1.LogicalUnit, error) {
	if lu.Spec.Striped == nil {
		return nil, nil
	}
	legs, err := legsOf(ctx, c, lu.Name)
	if err != nil {
		return nil, err
	}
	for i := range legs {
		l := &legs[i]
		name := fmt.Sprintf("LUN %d", l.Spec.Leg.Number)
		if !condition(ch, name, l.Status.Conditions, v1alpha1.ConditionReady) {
			return legs, nil
		}
		where := ""
		if lu.Spec.Placement != nil && len(lu.Spec.Placement.LegPairs) > 0 && l.Spec.Placement != nil {
			where = "pair " + l.Spec.Placement.Pair + ", "
		}
		text := fmt.Sprintf("%sowner %s, home %s", where, cmp.Or(l.Status.Owner, "-"), cmp.Or(l.Status.PreferredNode, "-"))
		if held := heldText(l); held != "" {
			text += ", " + held
		}
		ch.link(true, name, text, "")
		if n := len(l.Status.Moves); n > 0 {
			ch.link(true, name+" moved", moveText(l.Status.Moves[n-1]), "")
		}
	}
	return legs, nil
}

// heldText says until when a person's transfer keeps a LUN at its owner; empty if none does.
func heldText(lu *v1alpha1.LogicalUnit) string {
	if until := lu.Status.HeldUntil; until != nil && until.After(time.Now()) {
		return "held until " + until.UTC().Format(time.RFC3339) + " by a person's transfer"
	}
	return ""
}

// owned counts the LUNs of a striped volume on a pair, and those of them that a node owns.
func owned(lu *v1alpha1.LogicalUnit, legs []v1alpha1.LogicalUnit, pair, node string) (owns, all int) {
	for i := range legs {
		if len(lu.Spec.Placement.LegPairs) > 0 && !legs[i].Spec.Placement.On(pair) {
			continue
		}
		all++
		if legs[i].Status.Owner == node {
			owns++
		}
	}
	return owns, all
}
