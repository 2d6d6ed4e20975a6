// Package tally counts what is placed on each pair: LUNs, by the node that owns them, and the bytes
// that they are promised. A LUN is thin, so what is free says little of what is promised: a LUN
// that nothing was written to takes nothing yet. The counts follow the events of the operator's
// cache, so a placement costs the same however many LUNs there are.
package tally

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	units map[types.UID]counted
	pairs map[string]*Count
}

// counted is a LogicalUnit that counts.
type counted struct {
	parts    []part
	reserved bool  // the placement is being written, and may not be
	granted  int64 // bytes that it may grow to
}

// part is what a LogicalUnit counts for on one pair. It is a value that is compared.
type part struct {
	pair, pool, owner string
	luns              int
	bytes             int64
}

var _ Counter = (*Tally)(nil)

// partsOf reports what a LogicalUnit of so many bytes counts for. The LUNs of a striped volume are
// its legs, which are LogicalUnits; their bytes are promised as soon as the volume has its place.
func partsOf(lu *v1alpha1.LogicalUnit, size int64) (out []part) {
	at := lu.Spec.Placement
	switch {
	case at == nil:
	case lu.Spec.Leg != nil:
		out = append(out, part{at.Pair, at.Pool, lu.Status.Owner, 1, 0})
	case lu.Spec.Striped != nil && len(at.LegPairs) > 0:
		for _, pair := range at.LegPairs {
			out = append(out, part{string(pair), at.Pool, "", 0, size / int64(len(at.LegPairs))})
		}
	case lu.Spec.Striped != nil:
		out = append(out, part{at.Pair, at.Pool, "", 0, size})
	default:
		out = append(out, part{at.Pair, at.Pool, lu.Status.Owner, 1, size})
	}
	return out
}

// sizeOf is what a LogicalUnit is promised: its size, that of its spec until it has one. A spec
// with a larger size is a wish, see Grow.
func sizeOf(lu *v1alpha1.LogicalUnit) int64 {
	if lu.Status.Size != nil {
		return lu.Status.Size.Value()
	}
	return lu.Spec.Size.Value()
}

// Set counts a LogicalUnit as it is now. A placement is written once and stays, so an object that
// lacks one which is known is an older version, whose event has come late.
func (t *Tally) Set(lu *v1alpha1.LogicalUnit) {
	if lu.Spec.Placement == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(lu, counted{granted: t.units[lu.UID].granted})
}

// Reserve counts a LogicalUnit whose placement is about to be written, so that the next placement
// knows of it. If the write fails, the reservation stays until Release, or until the object is
// gone: whether it was written is not known.
func (t *Tally) Reserve(lu *v1alpha1.LogicalUnit, at *v1alpha1.Placement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was, known := t.units[lu.UID]; known && !was.reserved {
		return // it has its place
	}
	lu = lu.DeepCopy()
	lu.Spec.Placement = at
	t.set(lu, counted{reserved: true})
}

// Release ends the reservation of a LogicalUnit; one that is known to be placed stays counted.
func (t *Tally) Release(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.units[uid].reserved {
		t.forget(uid)
	}
}

// Grow counts a LogicalUnit with the size of its spec from now on, unless refuse says why so many
// bytes more cannot be promised in a pool of a pair that has promised so many of each pool. refuse
// must not call the tally, nor change what it is given.
func (t *Tally) Grow(lu *v1alpha1.LogicalUnit, refuse func(pair, pool string, promised map[string]int64, more int64) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := lu.Spec.Size.Value()
	was := max(sizeOf(lu), t.units[lu.UID].granted)
	if size <= was {
		return nil
	}
	more := map[part]int64{}
	for _, x := range partsOf(lu, size) {
		more[part{pair: x.pair, pool: x.pool}] += x.bytes
	}
	for _, x := range partsOf(lu, was) {
		more[part{pair: x.pair, pool: x.pool}] -= x.bytes
	}
	for x, bytes := range more {
		var promised map[string]int64
		if c := t.pairs[x.pair]; c != nil {
			promised = c.Promised
		}
		if err := refuse(x.pair, x.pool, promised, bytes); err != nil {
			return err
		}
	}
	t.set(lu, counted{granted: size})
	return nil
}

// set counts a LogicalUnit with a placement. mu is held.
func (t *Tally) set(lu *v1alpha1.LogicalUnit, now counted) {
	now.parts = partsOf(lu, max(sizeOf(lu), now.granted))
	was := t.units[lu.UID]
	if !slices.Equal(was.parts, now.parts) {
		t.count(was.parts, -1)
		t.count(now.parts, 1)
	}
	if t.units == nil {
		t.units = map[types.UID]counted{}
	}
	t.units[lu.UID] = now
}

// Forget ends the count of a LogicalUnit that has gone.
func (t *Tally) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(uid)
}

func (t *Tally) forget(uid types.UID) {
	t.count(t.units[uid].parts, -1)
	delete(t.units, uid)
}

// count adds parts so many times. mu is held.
func (t *Tally) count(parts []part, n int) {
	for _, x := range parts {
		c := t.pairs[x.pair]
		if c == nil {
			c = &Count{Owned: map[string]int{}, Promised: map[string]int64{}}
			if t.pairs == nil {
				t.pairs = map[string]*Count{}
			}
			t.pairs[x.pair] = c
		}
		c.LUNs += n * x.luns
		if c.Promised[x.pool] += int64(n) * x.bytes; c.Promised[x.pool] == 0 {
			delete(c.Promised, x.pool)
		}
		if c.Owned[x.owner] += n * x.luns; c.Owned[x.owner] == 0 {
			delete(c.Owned, x.owner)
		}
		if c.LUNs == 0 && len(c.Promised) == 0 {
			delete(t.pairs, x.pair)
		}
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

// Or is the counter, or if there is none a Reader.
func Or(c Counter, r client.Reader) Counter {
	if c != nil {
		return c
	}
	return Reader{r}
}

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
