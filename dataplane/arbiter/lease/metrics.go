package lease

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count requests, not calls: one Get may send several. A request that another one has
// beaten is "beaten".
type metrics struct {
	attempts *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	hedged   *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_arbiter_attempts_total",
			Help: "Requests to API servers for the pair's Lease."}, []string{"verb", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gemel_arbiter_attempt_seconds",
			Help: "How long an API server took to answer a request for the pair's Lease, for any answer.", Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1}}, []string{"verb"}),
		hedged: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_arbiter_hedged_total",
			Help: "Requests for the pair's Lease that were sent because another API server had not answered yet."}, []string{"verb"}),
	}
}

func (m *metrics) attempt(a *answer, ctx context.Context, took time.Duration) {
	if a.err != nil && errors.Is(ctx.Err(), context.Canceled) {
		m.attempts.WithLabelValues(word(a.verb), "beaten").Inc()
		return
	}
	m.attempts.WithLabelValues(word(a.verb), a.outcome()).Inc()
	if a.status != 0 {
		m.seconds.WithLabelValues(word(a.verb)).Observe(took.Seconds())
	}
}

// Describe implements prometheus.Collector.
func (c *Client) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range []prometheus.Collector{c.metrics.attempts, c.metrics.seconds, c.metrics.hedged} {
		v.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *Client) Collect(ch chan<- prometheus.Metric) {
	for _, v := range []prometheus.Collector{c.metrics.attempts, c.metrics.seconds, c.metrics.hedged} {
		v.Collect(ch)
	}
}
