package nodesim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// record is what the arbiter keeps for both nodes.
type record struct {
	mu      sync.Mutex
	rng     *rand.Rand
	rec     *pair.Record
	version int
	writes  int

	delay time.Duration
	away  bool
	lossy float64 // of answers, how many are lost
	late  float64 // of writes, how many land after their asker has given up
}

// set changes how the arbiter is.
func (r *record) set(f func(*record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func (r *record) setAway(away bool) { r.set(func(r *record) { r.away = away }) }

var errAway = errors.New("the arbiter does not answer")

// access is the arbiter as one life of a node reaches it.
type access struct {
	r    *record
	life *life
}

// trip is one way of a request. False: it did not get there.
func (a *access) trip(ctx context.Context) bool {
	a.r.mu.Lock()
	delay, away := a.r.delay, a.r.away
	a.r.mu.Unlock()
	a.life.m.thaw()
	if a.life.isDead() {
		return false
	}
	if away {
		<-ctx.Done()
		return false
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return !a.life.isDead()
	case <-ctx.Done():
		return false
	}
}

func (r *record) chance(p func(*record) float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.Float64() < p(r)
}

// Get implements arbiter.Arbiter.
func (a *access) Get(ctx context.Context) (pair.Record, string, error) {
	if !a.trip(ctx) {
		return pair.Record{}, "", errAway
	}
	a.r.mu.Lock()
	rec, version := a.r.rec, strconv.Itoa(a.r.version)
	a.r.mu.Unlock()
	if !a.trip(ctx) || a.r.chance(func(r *record) float64 { return r.lossy }) {
		return pair.Record{}, "", errAway
	}
	if rec == nil {
		return pair.Record{}, "", arbiter.ErrNotFound
	}
	out := *rec
	out.Members = slices.Clone(rec.Members)
	return out, version, nil
}

// CompareAndSwap implements arbiter.Arbiter.
func (a *access) CompareAndSwap(ctx context.Context, version string, rec pair.Record) (string, error) {
	if !a.trip(ctx) {
		return "", errAway
	}
	if a.r.chance(func(r *record) float64 { return r.late }) {
		time.AfterFunc(1500*time.Millisecond, func() { _, _ = a.r.swap(version, rec) })
		<-ctx.Done()
		return "", errAway
	}
	v, err := a.r.swap(version, rec)
	if !a.trip(ctx) || a.r.chance(func(r *record) float64 { return r.lossy }) {
		return "", errAway
	}
	return v, err
}

func (r *record) swap(version string, rec pair.Record) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := strconv.Itoa(r.version); r.rec == nil && version != "" || r.rec != nil && version != have {
		return "", arbiter.ErrConflict
	}
	rec.Members = slices.Clone(rec.Members)
	r.rec = &rec
	r.version++
	r.writes++
	return strconv.Itoa(r.version), nil
}
