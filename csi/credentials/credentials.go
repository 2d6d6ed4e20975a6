// Package credentials keeps the CHAP credentials of this worker, which it gets from the operator by
// enrolment: in memory only, one set for each pair, for all its LUNs.
package credentials

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// Set has the credentials of a worker and a pair. Both nil: the worker logs in by name only.
type Set struct {
	Auth, Mutual *attach.CHAP
}

// Same reports whether two sets are equal.
func (s Set) Same(o Set) bool { return same(s.Auth, o.Auth) && same(s.Mutual, o.Mutual) }

func same(a, b *attach.CHAP) bool { return a == b || a != nil && b != nil && *a == *b }

// Source returns credentials; enroll.Client is one.
type Source interface {
	Enroll(ctx context.Context, pair string) (enroll.Answer, error)
}

// Keeper of credentials.
type Keeper struct {
	source   Source
	log      *slog.Logger
	requests *prometheus.CounterVec
	given    prometheus.Counter

	mu    sync.Mutex
	pairs map[string]*entry
}

type entry struct {
	turn  chan struct{} // one call at a time requests; the others use its result
	known bool
	set   Set
}

// New returns an empty keeper.
func New(s Source, reg prometheus.Registerer, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{source: s, log: log, pairs: map[string]*entry{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gemel_csi_enrollments_total",
			Help: "Requests to the operator for this worker's CHAP credentials, by outcome: given, unneeded, refused, unavailable."}, []string{"outcome"}),
		given: prometheus.NewCounter(prometheus.CounterOpts{Name: "gemel_csi_credentials_renewed_total",
			Help: "Attachments whose credentials were renewed because the targets rejected them."})}
	return k, errors.Join(reg.Register(k.requests), reg.Register(k.given))
}

// Get returns the credentials on a pair, and requests them only if they are unknown.
func (k *Keeper) Get(ctx context.Context, pair string) (Set, error) {
	return k.get(ctx, pair, func(e *entry) bool { return e.known })
}

// Other returns credentials on a pair other than the rejected ones.
func (k *Keeper) Other(ctx context.Context, pair string, refused Set) (Set, error) {
	return k.get(ctx, pair, func(e *entry) bool { return e.known && !e.set.Same(refused) })
}

// Fresh always requests the credentials.
func (k *Keeper) Fresh(ctx context.Context, pair string) (Set, error) {
	return k.get(ctx, pair, func(*entry) bool { return false })
}

func (k *Keeper) get(ctx context.Context, pair string, good func(*entry) bool) (Set, error) {
	k.mu.Lock()
	e := k.pairs[pair]
	if e == nil {
		e = &entry{turn: make(chan struct{}, 1)}
		k.pairs[pair] = e
	}
	k.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return Set{}, context.Cause(ctx)
	}
	if good(e) {
		return e.set, nil
	}
	a, err := k.source.Enroll(ctx, pair)
	switch {
	case errors.Is(err, enroll.ErrRefused):
		k.requests.WithLabelValues("refused").Inc()
	case err != nil:
		k.requests.WithLabelValues("unavailable").Inc()
	case a.User == "":
		k.requests.WithLabelValues("unneeded").Inc()
		e.known, e.set = true, Set{}
	default:
		k.requests.WithLabelValues("given").Inc()
		e.known, e.set = true, Set{Auth: &attach.CHAP{User: a.User, Secret: a.Secret}, Mutual: &attach.CHAP{User: a.MutualUser, Secret: a.MutualSecret}}
	}
	return e.set, err
}
