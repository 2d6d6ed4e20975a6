package logicalunit

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/finding"
	"github.com/gemel-storage/gemel/controllers/tally"
	"github.com/gemel-storage/gemel/placement"
)

// growable counts the size of the spec as promised, and refuses it where the pool of a pair may not
// promise so much. What is known of a pair may be missing: then nothing is refused, and the pair
// has the last word.
func (p *pass) growable(ctx context.Context) error {
	t, ok := p.Tally.(*tally.Tally)
	if !ok {
		return nil
	}
	spec, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	known := map[string]placement.Pair{}
	for _, name := range p.lu.Spec.Placement.Pairs() {
		var pair v1alpha1.TargetPair
		if err := p.Get(ctx, client.ObjectKey{Name: name}, &pair); client.IgnoreNotFound(err) != nil {
			return err
		}
		known[name] = placement.FromObject(&pair, 0)
	}
	return t.Grow(p.lu, func(name, pool string, promised map[string]int64, more int64) error {
		pair := known[name]
		promise(spec, &pair, promised)
		x := pair.Pool(spec.PoolName(pool))
		if x == nil {
			return nil
		}
		if err := x.Overcommits(more); err != nil {
			return finding.New(v1alpha1.ReasonNoRoom, "expand the LUN: pair %s: %v: make the disks larger, or raise overcommitPercent", name, err)
		}
		return nil
	})
}
