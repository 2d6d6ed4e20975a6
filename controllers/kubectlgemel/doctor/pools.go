package doctor

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/placement"
)

// Free space of a pool, in percent of its capacity, below which it is full and nearly full, as the
// condition SpaceAvailable of the pair says.
const (
	fullBelow       = placement.FullBelow
	nearlyFullBelow = placement.NearFullBelow
)

// poolFull: writes to new blocks fail, or will very soon.
func poolFull(x *exam) {
	pools(x, func(p *v1alpha1.TargetPair, name string, free float64, evidence string) {
		if free >= fullBelow {
			return
		}
		x.add(kindPair, p.Name, Finding{Severity: Critical, Problem: "pool " + name + " is full: writes that need space end with an error", Cause: "LUNs and snapshots use all of the pool, and LUNs are thin", Evidence: []string{evidence},
			Procedure: makeRoom(name)})
	})
}

// poolNearlyFull: there is time to act.
func poolNearlyFull(x *exam) {
	pools(x, func(p *v1alpha1.TargetPair, name string, free float64, evidence string) {
		if free < fullBelow || free >= nearlyFullBelow {
			return
		}
		x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: fmt.Sprintf("less than %d%% of pool %s is free", nearlyFullBelow, name), Cause: "LUNs and snapshots use most of the pool, and LUNs are thin", Evidence: []string{evidence},
			Procedure: makeRoom(name)})
	})
}

// poolOvercommitted: new volumes are refused, while there is space.
func poolOvercommitted(x *exam) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		for _, pool := range placement.FromObject(p, 0).Pools {
			if pool.Space(placement.SpaceEnough) != placement.SpaceOvercommitted {
				continue
			}
			x.add(kindPair, p.Name, Finding{Severity: Warning, Problem: "pool " + pool.Name + " has promised to LUNs what it may: new volumes that need more are refused",
				Cause:    "the sizes of the LUNs are together near overcommitPercent of the pool's capacity",
				Evidence: []string{fmt.Sprintf("pool %s: %s promised of at most %s", pool.Name, sized(resource.NewQuantity(pool.Promised, resource.BinarySI)), sized(resource.NewQuantity(pool.Promisable, resource.BinarySI)))},
				Procedure: []string{"add a pair (spec.pairs), or make the disks larger (spec.pools[].size)",
					"or raise spec.pools[].overcommitPercent of the StorageCluster: LUNs are thin, and then the pool may be full before they are; see docs/operations.md#space"}})
		}
	}
}

func makeRoom(pool string) []string {
	return []string{"delete snapshots and volumes that are not needed, and run fstrim in the others: kubectl get lun -o wide shows what each LUN uses",
		"for new volumes: add a pair (spec.pairs) or a pool (spec.pools); a node gets a larger disk for pool " + pool + " with spec.replace, one node after the other, after pools[].size was raised",
		"see docs/operations.md#space and docs/kubernetes.md#pools"}
}

// pools calls look for each pool of each pair, with its free space in percent.
func pools(x *exam, look func(p *v1alpha1.TargetPair, name string, free float64, evidence string)) {
	for i := range x.Pairs {
		p := &x.Pairs[i]
		list := p.Status.Pools
		if len(list) == 0 { // targets of a release without pools
			list = []v1alpha1.PoolStatus{{Name: v1alpha1.DefaultVolume, Capacity: p.Status.Capacity, Free: p.Status.Free}}
		}
		for _, s := range list {
			if s.Capacity == nil || s.Free == nil || s.Capacity.Value() <= 0 {
				continue
			}
			free := 100 * float64(s.Free.Value()) / float64(s.Capacity.Value())
			look(p, s.Name, free, fmt.Sprintf("pool %s: %s free of %s (%.1f%%), on the node with less", s.Name, sized(s.Free), sized(s.Capacity), free))
		}
	}
}

func sized(q *resource.Quantity) string { return q.String() }
