package groupsnapshot

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	groups = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_operator_group_snapshots_total",
		Help: "Group snapshots by result: published, failed (for a reason that no retry fixes), removed."}, []string{"result"})
	attempts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_operator_group_snapshot_attempts_total",
		Help: "Attempts to cut a group by result: cut, failed."}, []string{"result"})
	heldSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "gemel_operator_group_snapshot_held_seconds",
		Help:    "How long commands that change data were held for a cut, at most.",
		Buckets: []float64{.005, .01, .02, .05, .1, .2, .4, .8, 1.6}})
)

func init() { metrics.Registry.MustRegister(groups, attempts, heldSeconds) }
