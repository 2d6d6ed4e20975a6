package kubectlgemel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

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
		text := fmt.Sprintf("owner %s, home %s", cmp.Or(l.Status.Owner, "-"), cmp.Or(l.Status.PreferredNode, "-"))
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

// owned counts the LUNs that a node owns.
func owned(legs []v1alpha1.LogicalUnit, node string) (n int) {
	for i := range legs {
		if legs[i].Status.Owner == node {
			n++
		}
	}
	return n
}
