package host

import (
	"context"
	"slices"
	"strings"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
)

// mapped are the LUNs that are mapped to a worker, from the cache: they must not be changed.
func (r *Reconciler) mapped(ctx context.Context, iqn string) ([]*v1alpha1.LogicalUnit, error) {
	iqn = strings.ToLower(iqn)
	list, err := index.Units(ctx, r, index.UnitHost, iqn)
	if err != nil {
		return nil, err
	}
	var out []*v1alpha1.LogicalUnit
	for i := range list {
		if list[i].Status.Host(iqn) != nil {
			out = append(out, &list[i])
		}
	}
	return out, nil
}

// count sets how many of the LUNs each node owns, and is the home of.
func count(seen []v1alpha1.HostSessions, luns []*v1alpha1.LogicalUnit) {
	for i := range seen {
		for j := range seen[i].Nodes {
			n := &seen[i].Nodes[j]
			n.Owned, n.Home = 0, 0
			for _, lu := range luns {
				if lu.Spec.Placement == nil || lu.Spec.Placement.Pair != seen[i].Pair {
					continue
				}
				if lu.Status.Owner == n.Node {
					n.Owned++
				}
				if lu.Status.PreferredNode == n.Node {
					n.Home++
				}
			}
		}
	}
}

// lastMoves are the last moves of the LUNs, the newest last.
func lastMoves(luns []*v1alpha1.LogicalUnit) (out []v1alpha1.HostMove) {
	for _, lu := range luns {
		for _, m := range lu.Status.Moves {
			out = append(out, v1alpha1.HostMove{LogicalUnit: lu.Name, LogicalUnitMove: m})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.HostMove) int {
		if c := a.Time.Compare(b.Time.Time); c != 0 {
			return c
		}
		return strings.Compare(a.LogicalUnit, b.LogicalUnit) // equal times: an order that does not change
	})
	return out[max(0, len(out)-v1alpha1.MovesShown):]
}
