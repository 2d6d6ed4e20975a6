package objects

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/csi/backend"
	"github.com/gemel-storage/gemel/placement"
)

// hasRoom refuses a striped volume whose LUNs are more than its worker can have besides those that
// it has reported. "RESOURCE_EXHAUSTED: Indicates that the maximum supported number of volumes that
// can be attached to the specified node are already attached."
//
// The scheduler counts volumes, and a worker holds LUNs: so it can choose a worker for a striped
// volume that has room for one LUN. Volumes of one LUN are for the scheduler to count, whose
// figures are not as old as those of the worker. LUNs that are published and not attached yet are
// not counted here. The limit protects the worker's memory, and nothing depends on its being exact,
// so that a worker that cannot be read is no reason to refuse.
func (b *Backend) hasRoom(ctx context.Context, lu *v1alpha1.LogicalUnit, iqn string) error {
	if lu.Spec.Striped == nil {
		return nil
	}
	luns := lu.Spec.Striped.LUNs
	hosts, err := b.hostsOf(ctx, iqn)
	if err != nil {
		b.logger().Warn("cannot read the Host of a worker: whether it has room for the LUNs of a volume is not known", "host", iqn, "volume", lu.Name, "err", err)
		return nil
	}
	for _, h := range hosts {
		if h.Spec.MaxLUNs > 0 && h.Status.Attached+luns > h.Spec.MaxLUNs {
			return fmt.Errorf("publish volume %s to %s: %w: the volume has %d LUNs, and worker %s has %d of the %d LUNs that it can have (--max-volumes of its node plugin, node.maxVolumes of the chart): "+
				"detach other volumes from it, or use another worker", lu.Name, iqn, backend.ErrExhausted, luns, h.Name, h.Status.Attached, h.Spec.MaxLUNs)
		}
	}
	return nil
}

// promises refuses a size that the pools of a volume's pairs may not promise, by what the status of
// the pairs says. That may be a few seconds old: the operator counts once more, and has the last
// word.
func (b *Backend) promises(ctx context.Context, lu *v1alpha1.LogicalUnit, size int64) error {
	more := size - lu.Spec.Size.Value()
	pairs := lu.Spec.Placement.Pairs()
	if more <= 0 || len(pairs) == 0 {
		return nil
	}
	for _, name := range pairs {
		var p v1alpha1.TargetPair
		if err := b.read(ctx, client.ObjectKey{Name: name}, &p); err != nil {
			b.logger().Warn("cannot read a TargetPair: whether it may promise more is not known", "pair", name, "volume", lu.Name, "err", err)
			continue
		}
		part := more
		if legs := lu.Spec.Placement.LegPairs; len(legs) > 0 {
			part = 0
			for _, on := range legs {
				if string(on) == name {
					part += more / int64(len(legs))
				}
			}
		}
		known := placement.FromObject(&p, 0)
		if x := known.Pool(lu.Spec.Placement.Pool); x != nil {
			if err := x.Overcommits(part); err != nil {
				return fmt.Errorf("expand volume %s: %w: pair %s: %w: make the disks larger, or raise overcommitPercent", lu.Name, backend.ErrExhausted, name, err)
			}
		}
	}
	return nil
}

// sessions is how many sessions a worker makes to each portal for a volume: as the volume says,
// else as the worker's Host does. One session serves every volume, so that a worker that cannot be
// read is no reason to refuse.
func (b *Backend) sessions(ctx context.Context, lu *v1alpha1.LogicalUnit, iqn string) int {
	if lu.Spec.Sessions > 0 {
		return int(lu.Spec.Sessions)
	}
	hosts, err := b.hostsOf(ctx, iqn)
	if err != nil {
		b.logger().Warn("cannot read the Host of a worker: it makes one session to each portal for a volume", "host", iqn, "volume", lu.Name, "err", err)
	}
	n := int32(0)
	for _, h := range hosts {
		n = max(n, h.Spec.Sessions)
	}
	return int(n)
}

// hostsOf are the Hosts with an iSCSI name: one, but for workers that were cloned.
func (b *Backend) hostsOf(ctx context.Context, iqn string) ([]v1alpha1.Host, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	var hosts v1alpha1.HostList
	err := b.c.List(ctx, &hosts, client.MatchingFields{"spec.iqn": iqn})
	return hosts.Items, err
}
