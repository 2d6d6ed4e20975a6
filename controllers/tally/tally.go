// Package tally counts what is placed on each pair: LUNs, by the node that owns them, and the bytes
// that they are promised. A LUN is thin, so what is free says little of what is promised: a LUN
// that nothing was written to takes nothing yet. The counts follow the events of the operator's
// cache, so a placement costs the same however many LUNs there are.
package tally

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gemel-storage/gemel/api/v1alpha1"
	"github.com/gemel-storage/gemel/controllers/index"
)

// Count is what is placed on a pair.
type Count struct {
	LUNs     int
	Owned    map[string]int   // LUNs by the node that owns them, as their status says
	Promised map[string]int64 // by the pool of their placement: the sum of their sizes in bytes
}

// Counter tells what is placed on a pair. The result is the caller's.
type Counter interface {
	Of(ctx context.Context, pair string) (Count, error)
}

// Tally is a Counter that follows LogicalUnits. The zero value has counted none.
type Tally struct {
	synced atomic.Pointer[func() bool]

	mu    sync.Mutex
	units map[types.UID]entry
	pairs map[string]*Count
}

// entry is what a LogicalUnit counts for.
type entry struct {
	pair, pool, owner string
	size              int64
}

var _ Counter = (*Tally)(nil)

// entryOf reports what a LogicalUnit counts for. A striped volume counts by its legs, which are
// LogicalUnits.
func entryOf(lu *v1alpha1.LogicalUnit) (entry, bool) {
	at := lu.Spec.Placement
	if at == nil || lu.Spec.Striped != nil {
		return entry{}, false
	}
	return entry{at.Pair, at.Pool, lu.Status.Owner, lu.Spec.Size.Value()}, true
}

// Set counts a LogicalUnit as it is now. A placement is written once and stays, so an object that
// lacks one which is known is an older version, whose event has come late.
func (t *Tally) Set(lu *v1alpha1.LogicalUnit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, ok := entryOf(lu)
	was, known := t.units[lu.UID]
	if !ok || known && was == now {
		return
	}
	if known {
		t.count(was, -1)
	}
	if t.units == nil {
		t.units, t.pairs = map[types.UID]entry{}, map[string]*Count{}
	}
	t.units[lu.UID] = now
	t.count(now, 1)
}

// Forget ends the count of a LogicalUnit that has gone.
func (t *Tally) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was, known := t.units[uid]; known {
		t.count(was, -1)
		delete(t.units, uid)
	}
}

// count adds an entry so many times. mu is held.
func (t *Tally) count(x entry, n int) {
	c := t.pairs[x.pair]
	if c == nil {
		c = &Count{Owned: map[string]int{}, Promised: map[string]int64{}}
		t.pairs[x.pair] = c
	}
	c.LUNs += n
	c.Promised[x.pool] += int64(n) * x.size
	if c.Owned[x.owner] += n; c.Owned[x.owner] == 0 {
		delete(c.Owned, x.owner)
	}
	if c.LUNs == 0 {
		delete(t.pairs, x.pair)
	}
}

// Of implements Counter. It fails as long as the LogicalUnits that there were at the start are not
// counted.
func (t *Tally) Of(_ context.Context, pair string) (Count, error) {
	if synced := t.synced.Load(); synced != nil && !(*synced)() {
		return Count{}, fmt.Errorf("the LogicalUnits of pair %s are not counted yet: the operator has just started", pair)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.pairs[pair]
	if c == nil {
		return Count{}, nil
	}
	return Count{c.LUNs, maps.Clone(c.Owned), maps.Clone(c.Promised)}, nil
}

// Follow has a cache tell the tally of every LogicalUnit. It is called once, before the cache
// starts.
func (t *Tally) Follow(ctx context.Context, c cache.Cache) error {
	i, err := c.GetInformer(ctx, &v1alpha1.LogicalUnit{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	set := func(o any) {
		if lu, ok := o.(*v1alpha1.LogicalUnit); ok {
			t.Set(lu)
		}
	}
	r, err := i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: func(_, now any) { set(now) }, DeleteFunc: func(o any) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if lu, ok := o.(*v1alpha1.LogicalUnit); ok {
			t.Forget(lu.UID)
		}
	}})
	if err != nil {
		return err
	}
	synced := r.HasSynced
	t.synced.Store(&synced)
	return nil
}

// Reader is a Counter that looks the LogicalUnits of a pair up each time: for a client without a
// cache.
type Reader struct{ client.Reader }

var _ Counter = Reader{}

// Of implements Counter.
func (r Reader) Of(ctx context.Context, pair string) (Count, error) {
	units, err := index.Units(ctx, r.Reader, index.UnitPair, pair)
	if err != nil {
		return Count{}, fmt.Errorf("LogicalUnits of pair %s: %w", pair, err)
	}
	var t Tally
	for i := range units {
		t.Set(&units[i])
	}
	return t.Of(ctx, pair)
}
