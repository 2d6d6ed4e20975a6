package pair

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/tally"
	"github.com/gemel-storage/gemel/placement"
)

var poolLabels = []string{"cluster", "pair", "pool"}

// poolBytes are the figures of the status of pools, as metrics: rules of alerts need no other
// exporter.
var poolBytes = map[string]*prometheus.GaugeVec{
	"capacity": prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gemel_targetpair_pool_capacity_bytes",
		Help: "Capacity of a pool of a pair, on the node that has less."}, poolLabels),
	"free": prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gemel_targetpair_pool_free_bytes",
		Help: "Free space of a pool of a pair, on the node that has less, to 1%."}, poolLabels),
	"promised": prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gemel_targetpair_pool_promised_bytes",
		Help: "Sum of the sizes of the LUNs of a pool of a pair."}, poolLabels),
	"promisable": prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gemel_targetpair_pool_promisable_bytes",
		Help: "How much of a pool of a pair may be promised to LUNs (overcommitPercent of the pool)."}, poolLabels),
}

func init() {
	for _, g := range poolBytes {
		metrics.Registry.MustRegister(g)
	}
}

// setPoolMetrics makes the metrics of a pair those of its status; before are the pools that it had.
// Series that stay are never taken away: an alert that waits would begin again if they were scraped
// in between.
func setPoolMetrics(p *v1alpha1.TargetPair, before []v1alpha1.PoolStatus) {
	for _, old := range before {
		if !slices.ContainsFunc(p.Status.Pools, func(x v1alpha1.PoolStatus) bool { return x.Name == old.Name }) {
			deleteMetrics(prometheus.Labels{"pair": p.Name, "pool": old.Name})
		}
	}
	for i := range p.Status.Pools {
		x := &p.Status.Pools[i]
		for kind, q := range map[string]*resource.Quantity{"capacity": x.Capacity, "free": x.Free, "promised": x.Promised, "promisable": x.Promisable} {
			if q != nil {
				poolBytes[kind].WithLabelValues(p.Spec.Cluster, p.Name, x.Name).Set(float64(q.Value()))
			}
		}
	}
}

func deletePoolMetrics(pair string) { deleteMetrics(prometheus.Labels{"pair": pair}) }

func deleteMetrics(of prometheus.Labels) {
	for _, g := range poolBytes {
		g.DeletePartialMatch(of)
	}
}

// setPromised completes the status of pools with what is promised of them, and with what may be.
// While the LUNs are not counted yet, the status stays as it was.
func (r *Reconciler) setPromised(ctx context.Context, c *v1alpha1.StorageCluster, pair string, pools, recorded []v1alpha1.PoolStatus) {
	count, err := tally.Or(r.Tally, r.Client).Of(ctx, pair)
	if err != nil {
		log.FromContext(ctx).V(1).Info("cannot count what is promised", "reason", err.Error())
		for i := range pools {
			if k := slices.IndexFunc(recorded, func(t v1alpha1.PoolStatus) bool { return t.Name == pools[i].Name }); k >= 0 {
				pools[i].Promised, pools[i].Promisable = recorded[k].Promised, recorded[k].Promisable
			}
		}
		return
	}
	promised := map[string]int64{}
	for pool, bytes := range count.Promised {
		promised[c.Spec.PoolName(pool)] += bytes
	}
	for i := range pools {
		x := &pools[i]
		x.Promised = resource.NewQuantity(promised[x.Name], resource.BinarySI)
		if pool := c.Spec.Pool(x.Name); pool != nil && x.Capacity != nil {
			x.Promisable = resource.NewQuantity(pool.PromisableOf(x.Capacity.Value()), resource.BinarySI)
		}
	}
}

var spaceReasons = map[placement.Space]string{placement.SpaceOvercommitted: v1alpha1.ReasonOvercommitted, placement.SpaceNearFull: v1alpha1.ReasonNearFull, placement.SpaceFull: v1alpha1.ReasonFull}

// setSpaceCondition sets the condition SpaceAvailable: that of the pool with the least space. It is
// left out while nothing is known of the pools.
func setSpaceCondition(p *v1alpha1.TargetPair) {
	var before placement.Space
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionSpaceAvailable); c != nil {
		for s, reason := range spaceReasons {
			if c.Reason == reason {
				before = s
			}
		}
	}
	known := placement.FromObject(p, 0)
	pool, state := placement.Worst(known.Pools, before)
	if pool == nil {
		return
	}
	c := metav1.Condition{Type: v1alpha1.ConditionSpaceAvailable, Status: metav1.ConditionFalse, ObservedGeneration: p.Generation, Reason: spaceReasons[state]}
	const makeRoom = "delete snapshots and volumes that are not needed, run fstrim in the others, or raise spec.pools[].size if the disks can be expanded"
	free := fmt.Sprintf("%s of %s are free in pool %s, on the node that has less", resource.NewQuantity(pool.Free, resource.BinarySI), resource.NewQuantity(pool.Capacity, resource.BinarySI), pool.Name)
	switch state {
	case placement.SpaceEnough:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonReady, "every pool has free space"
	case placement.SpaceOvercommitted:
		c.Message = fmt.Sprintf("%s of pool %s are promised to LUNs, of at most %s: new LUNs that need more are refused: add a pair, make the disks larger, or raise spec.pools[].overcommitPercent",
			resource.NewQuantity(pool.Promised, resource.BinarySI), pool.Name, resource.NewQuantity(pool.Promisable, resource.BinarySI))
	case placement.SpaceNearFull:
		c.Message = free + ": when none is left, writes that need space end with an error; " + makeRoom
	case placement.SpaceFull:
		c.Message = free + ": writes that need space end with an error, or will soon; " + makeRoom
	}
	meta.SetStatusCondition(&p.Status.Conditions, c)
}
