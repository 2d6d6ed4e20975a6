package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gemel-storage/gemel/dataplane/extents"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/tiering"
	"github.com/gemel-storage/gemel/internal/human"
)

// Where extents lie in the members of a backing volume is a node's own business: nothing of it is
// in the log, and the other node may have other members. The mover empties members that are
// drained, and evens how full the others are.

// arrangeEvery is how often the mover looks.
const arrangeEvery = 10 * time.Second

const (
	// After a move the mover rests as long as the move has taken, to empty a member, or three times
	// as long, to even members: where hosts keep the disks busy, moves take longer, and so do
	// rests.
	drainRests = 1
	evenRests  = 3
	tierRests  = 3 // after a move between tiers
	// moveRate bounds what is moved where disks are fast, in bytes a second.
	moveRate = 128 << 20
)

// mover is its state. A volume that is not in a map is as one that has the zero value there.
type mover struct {
	kick  chan struct{}
	under map[string]map[tiering.Tier]bool // by volume: what was being made even, for the loop alone
	swept map[*store.File]bool             // for the loop alone

	mu     sync.Mutex
	stuck  map[string]string // by volume: why a drain makes no progress
	moving map[string]bool   // by volume: extents are being moved
	each   time.Duration     // for which a move of a drain lasts with its rest, on average
}

func newMover() mover {
	return mover{kick: make(chan struct{}, 1), under: map[string]map[tiering.Tier]bool{}, swept: map[*store.File]bool{}, stuck: map[string]string{}, moving: map[string]bool{}}
}

// MoveExtent moves an extent of a LUN to the place of its backing volume that has a number, while
// hosts use it. It changes nothing that the other node or a host sees.
func (n *Node) MoveExtent(ctx context.Context, lun string, extent int64, to uint8) error {
	e := n.entryOf(lun)
	if e == nil {
		return fmt.Errorf("LUN %s: %w", lun, store.ErrNotFound)
	}
	return e.file.MoveExtent(ctx, extent, to)
}

// DrainMember implements control.Node.
func (n *Node) DrainMember(_ context.Context, volume, member string, on bool) error {
	v, err := n.store.Volume(meta.VolumeOf(volume))
	if err != nil {
		return fmt.Errorf("volume: node %s: %w: %w", n.self, err, meta.ErrNotFound)
	}
	if on {
		if err := n.drainable(v, member); err != nil {
			return err
		}
	}
	switch err := v.Drain(member, on); {
	case errors.Is(err, store.ErrNoPlace):
		return fmt.Errorf("member: node %s: backing volume %q has no member %q: %w", n.self, v.Name(), member, meta.ErrNotFound)
	case errors.Is(err, store.ErrLastPlace):
		return fmt.Errorf("member: node %s: %q is the last member of backing volume %q that is not drained; add another one first: %w", n.self, member, v.Name(), meta.ErrInUse)
	case errors.Is(err, store.ErrNoSpace):
		return fmt.Errorf("member: node %s: the own directory of backing volume %q has no space to record the drain; free some, and try again: %w: %w", n.self, v.Name(), err, meta.ErrExhausted)
	case err != nil:
		return err
	}
	n.log.Info("drain of a member of a backing volume", "volume", v.Name(), "member", member, "on", on)
	n.mover.say(v.Name(), "")
	select {
	case n.mover.kick <- struct{}{}:
	default:
	}
	return nil
}

// drainable refuses a drain for which the other members have no room, and a second one.
func (n *Node) drainable(v *store.BackingVolume, member string) error {
	var list []tiering.Volume
	for _, p := range v.Places() {
		total, free, err := p.Room()
		if err != nil {
			return err
		}
		if p.Draining && p.Name != member {
			return fmt.Errorf("member: node %s: member %q of backing volume %q is drained; take it away first, or end its drain: %w", n.self, p.Name, v.Name(), meta.ErrInUse)
		}
		if p.Name == member { // what has to move, and not what else is on its filesystem
			least := free
			free = total
			for _, f := range n.spreadFiles(v) {
				bytes, err := f.AllocatedIn(p.Number)
				if err != nil {
					return err
				}
				free -= bytes
			}
			free = max(free, least) // what copies share is counted in each of them, and is shared again
		}
		list = append(list, tiering.Volume{Number: p.Number, Tier: tierOf(p), Total: total, Free: free, Draining: p.Name == member})
	}
	if lacks := tiering.Lacking(list); lacks > 0 {
		return fmt.Errorf("member: node %s: the other members of backing volume %q lack %s for what is on %q; add a member, or delete LUNs or snapshots: %w",
			n.self, v.Name(), human.Size(uint64(lacks)), member, meta.ErrExhausted)
	}
	return nil
}

func (m *mover) say(volume, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck[volume] = why
}

// failed is say, where there is something to say.
func (m *mover) failed(v *store.BackingVolume, why string) {
	if why != "" {
		m.say(v.Name(), why)
	}
}

// busy tells whether the mover has moved something of a volume since it began to look at it:
// nothing else moves between tiers meanwhile.
func (m *mover) busy(volume string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moving[volume]
}

// took is told how long a move of a drain has lasted.
func (m *mover) took(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.each == 0 {
		m.each = d
	}
	m.each += (d - m.each) / 16
}

func (m *mover) setBusy(volume string, busy bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moving[volume] = busy
}

// arrangeLoop is the mover.
func (n *Node) arrangeLoop() {
	if !slices.ContainsFunc(n.store.Volumes(), func(v *store.BackingVolume) bool { return len(v.Places()) > 1 }) {
		return
	}
	t := time.NewTicker(arrangeEvery)
	defer t.Stop()
	for {
		for _, v := range n.store.Volumes() {
			if len(v.Places()) > 1 && n.store.Failed() == nil {
				n.arrange(v)
			}
		}
		select {
		case <-t.C:
		case <-n.mover.kick:
		case <-n.run.ctx.Done():
			return
		}
	}
}

// arrange does what there is to do for a volume, and returns when that is done or cannot be.
func (n *Node) arrange(v *store.BackingVolume) {
	family := n.relations(v)
	slices.SortFunc(family, byFamily)
	var files []*store.File
	for _, x := range family {
		files = append(files, x.file)
	}
	for _, f := range files {
		if !n.mover.swept[f] {
			if _, err := f.SweepExtents(n.run.ctx); err != nil {
				n.mover.failed(v, n.moveFailed(v, err))
				continue
			}
			n.mover.swept[f] = true
		}
	}
	for _, p := range v.Places() {
		if p.Draining {
			n.emptyPlace(v, p, family)
		}
	}
	n.evenPlaces(v, files)
	n.mover.setBusy(v.Name(), false)
	for f := range n.mover.swept { // of those that are closed
		if !f.Open() {
			delete(n.mover.swept, f)
		}
	}
}

// emptyPlace moves everything away from a place that is drained. What copies share is shared again
// where it goes: the first of a family is copied, and the others are made like it.
func (n *Node) emptyPlace(v *store.BackingVolume, p store.Place, list []relation) {
	for i := range list {
		f := list[i].file
		for e := range f.ExtentCount() {
			if f.Where(e) != p.Number {
				continue
			}
			relative, to, ok := target(v, p, list, i, e)
			if !ok {
				n.mover.say(v.Name(), "the other members have no room: add a member, or delete LUNs or snapshots")
				return
			}
			began := time.Now()
			moved := n.moveOne(v, f, e, to, relative, drainRests)
			n.mover.took(time.Since(began))
			if !moved {
				if n.run.ctx.Err() != nil || n.store.Failed() != nil || !f.Open() {
					break
				}
				if f.Where(e) == p.Number {
					return
				}
			}
			if !stillDraining(v, p.Number) {
				return
			}
		}
	}
	n.mover.say(v.Name(), "")
}

// target is where an extent goes from a place that is drained: to its relatives, or else to the
// emptiest place of the tier, or of the other one.
func target(v *store.BackingVolume, from store.Place, list []relation, at int, extent int64) (relative *store.File, to uint8, ok bool) {
	open := map[uint8]bool{}
	for _, p := range v.Places() {
		_, free, err := p.Room()
		open[p.Number] = err == nil && !p.Draining && free >= leastRoom
	}
	if relative, to = like(list, at, extent, func(place uint8) bool { return open[place] }); relative != nil {
		return relative, to, true
	}
	if to, ok = emptiest(v, func(x *store.Place) bool { return x.Fast == from.Fast }); !ok {
		to, ok = emptiest(v, func(x *store.Place) bool { return x.Fast != from.Fast })
	}
	return nil, to, ok
}

func stillDraining(v *store.BackingVolume, number uint8) bool {
	return slices.ContainsFunc(v.Places(), func(p store.Place) bool { return p.Number == number && p.Draining })
}

// leastRoom is what is left free of a place, in bytes.
const leastRoom = 4 * extents.Size

// emptiest is the place that is used least and has room for an extent, of those that may be taken.
func emptiest(v *store.BackingVolume, may func(*store.Place) bool) (number uint8, ok bool) {
	least := 2.0
	for _, p := range v.Places() {
		total, free, err := p.Room()
		if err != nil || p.Draining || !may(&p) || total <= 0 || free < leastRoom {
			continue
		}
		if share := float64(total-free) / float64(total); share < least {
			least, number, ok = share, p.Number, true
		}
	}
	return number, ok
}

// evenPlaces moves extents that are written and shared with no other object, so that places are
// used alike.
func (n *Node) evenPlaces(v *store.BackingVolume, files []*store.File) {
	var list []tiering.Volume
	for _, p := range v.Places() {
		total, free, err := p.Room()
		if err != nil {
			return
		}
		if !p.Draining {
			list = append(list, tiering.Volume{Number: p.Number, Tier: tierOf(p), Total: total, Free: free})
		}
	}
	flows, under := tiering.Even(list, n.mover.under[v.Name()])
	n.mover.under[v.Name()] = under
	for _, x := range flows {
		n.pour(v, files, x)
	}
}

// pour moves so many bytes from one place to another, of the LUNs that have most there.
func (n *Node) pour(v *store.BackingVolume, files []*store.File, x tiering.Flow) {
	has := map[*store.File]int64{}
	for _, f := range files {
		has[f] = f.CountExtents()[x.From]
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b *store.File) int { return cmp.Compare(has[b], has[a]) })
	for _, f := range files {
		for e := range f.ExtentCount() {
			if x.Bytes <= 0 {
				return
			}
			if f.Where(e) != x.From {
				continue
			}
			data, shared, err := f.Extent(e)
			if err != nil || !data || shared {
				continue
			}
			if !n.moveOne(v, f, e, x.To, nil, evenRests) {
				if f.Open() && f.Where(e) == x.From {
					return
				}
				break
			}
			x.Bytes -= extents.Size
		}
	}
}

// moveOne moves an extent, and rests. It returns whether the extent moved.
func (n *Node) moveOne(v *store.BackingVolume, f *store.File, extent int64, to uint8, relative *store.File, rests int) bool {
	n.mover.setBusy(v.Name(), true)
	least := time.Duration(0)
	if data, _, err := f.Extent(extent); err != nil || data { // else there is nothing to copy
		least = extents.Size * time.Second / moveRate
	}
	began := time.Now()
	err := f.MoveExtentLike(n.run.ctx, extent, to, relative)
	if err != nil {
		n.mover.failed(v, n.moveFailed(v, err))
	}
	n.rest(max(time.Duration(rests)*time.Since(began), least))
	return err == nil
}

// rest returns whether the node goes on after it.
func (n *Node) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-n.run.ctx.Done():
		return false
	}
}

func tierOf(p store.Place) tiering.Tier {
	if p.Fast {
		return tiering.Fast
	}
	return tiering.Capacity
}

// moveFailed says why an extent did not move, "" if that is of no interest.
func (n *Node) moveFailed(v *store.BackingVolume, err error) string {
	switch {
	case n.run.ctx.Err() != nil, errors.Is(err, os.ErrClosed), errors.Is(err, fs.ErrNotExist), errors.Is(err, extents.ErrMoving), n.store.Failed() != nil:
	default:
		n.log.Warn("cannot move an extent between members of a backing volume; trying again", "volume", v.Name(), "err", err)
		return err.Error()
	}
	return ""
}
