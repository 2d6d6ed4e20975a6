package enroll

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// A worker asks once for each pair when it comes up, and again when it is refused: each address may do that and not much more, so that one that asks
// without end keeps nobody else from an answer.
const (
	perSecond    = 5
	burst        = 50
	maxAddresses = 8192
)

// limits of requests by address.
type limits struct {
	mu sync.Mutex
	by map[string]*rate.Limiter
}

func (l *limits) allow(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil || len(l.by) >= maxAddresses {
		l.by = map[string]*rate.Limiter{} // all are forgiven: what is remembered has a bound
	}
	x := l.by[address]
	if x == nil {
		x = rate.NewLimiter(perSecond, burst)
		l.by[address] = x
	}
	return x.Allow()
}

var requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_enroll_requests_total",
	Help: "Requests of node plugins, for CHAP credentials: given, unneeded; for how a volume is reached: reach; for either: refused, unauthenticated, throttled, unavailable, error."}, []string{"outcome"})

func init() { metrics.Registry.MustRegister(requests) }
