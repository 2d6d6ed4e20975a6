package enroll

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// A worker sends one request for each pair when it starts, and more after a refusal. The limits for
// each address allow that and not much more, so that a client with endless requests does not block
// others.
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
		l.by = map[string]*rate.Limiter{} // forget all, to bound the memory
	}
	x := l.by[address]
	if x == nil {
		x = rate.NewLimiter(perSecond, burst)
		l.by[address] = x
	}
	return x.Allow()
}

var requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_enroll_requests_total",
	Help: "Requests of node plugins by outcome. For CHAP credentials: given, unneeded; for the paths of a volume: reach; for both: refused, unauthenticated, throttled, unavailable, error."}, []string{"outcome"})

func init() { metrics.Registry.MustRegister(requests) }
