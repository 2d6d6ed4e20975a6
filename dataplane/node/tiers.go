package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/dataplane/tiering"
)

// A backing volume whose members are of two tiers has what hosts use most on the fast ones (package
// tiering). Each node counts for itself what misses its page cache, decides once a round, and moves
// extents while hosts use them. Where an extent lies is no business of the other node; but since
// only the owner of a LUN sees reads, it tells the other node of them (tierhints.go).

// tierRound is how long counts are collected before a decision.
const tierRound = time.Minute

// tiers of places, as the configuration has them. The volumes are valid.
func (c *Config) tiers() (tiers []store.PlaceTier, err error) {
	var errs []error
	for _, s := range c.Tiers {
		place, tier, ok := strings.Cut(s, "=")
		volume, member, isMember := strings.Cut(place, "/")
		switch {
		case !ok || !isMember || volume == "" || member == "":
			errs = append(errs, bad("tier", "%q must be VOLUME/MEMBER=TIER, or VOLUME/%s=TIER for the volume's own directory", s, store.HomePlace))
		case tier != tiering.Fast.String() && tier != tiering.Capacity.String():
			errs = append(errs, bad("tier", "%q: the tier must be %q or %q", s, tiering.Fast, tiering.Capacity))
		default:
			tiers = append(tiers, store.PlaceTier{Of: volume, Name: member, Fast: tier == tiering.Fast.String()})
		}
	}
	volumes, members, err := c.volumes()
	if err != nil {
		return nil, err
	}
	if err := store.CheckTiers(tiers, volumes, members); err != nil {
		errs = append(errs, bad("tier", "%v", err))
	}
	return tiers, errors.Join(errs...)
}

// tiers is what a node knows of its backing volumes that have two tiers.
type tiers struct {
	mode  balance.Mode
	round time.Duration
	of    map[string]*volumeTiers // by volume; it does not change

	speeds speeds
}

// volumeTiers is that of one volume.
type volumeTiers struct {
	v    *store.BackingVolume
	fast [256]bool // by number of the place
	io   [2]tierIO // of Fast, and of Capacity

	mu     sync.Mutex
	policy *tiering.Policy
	ids    map[string]uint64 // of LUNs, for the policy; by uuid
	last   uint64            // of ids
	hints  map[string][]tiering.Count
	took   time.Duration // by a move, on average
	moves  []tierMove    // the last ones
	counts map[tierKind]uint64
	wait   time.Duration // for how long an extent has to be hot
	why    string        // why nothing moves
}

// tierIO counts what the disks of a tier did for hosts: reads that the page cache did not have, and
// writes.
type tierIO struct{ reads, readTime, writes atomic.Uint64 }

// tierKind is a kind of moves.
type tierKind struct {
	to     tiering.Tier
	reason tiering.Reason
}

// tierMove is a move that was made, or would have been.
type tierMove struct {
	at       time.Time
	lun      string
	observed bool
	tiering.Move
}

// tierMovesKept bounds the list of moves.
const tierMovesKept = 256

// newTiers are those of an open store.
func newTiers(c *Config, st *store.Store) *tiers {
	t := &tiers{round: time.Duration(c.TierRound), of: map[string]*volumeTiers{}, speeds: speeds{of: map[speedKey][]time.Duration{}}}
	t.mode, _ = balance.ParseMode(c.Tiering)
	if t.round == 0 {
		t.round = tierRound
	}
	for _, v := range st.Volumes() {
		if !v.Tiered() {
			continue
		}
		x := &volumeTiers{v: v, policy: tiering.New(tiering.Config{Round: t.round}), ids: map[string]uint64{}, hints: map[string][]tiering.Count{},
			took: firstMove, counts: map[tierKind]uint64{}}
		for _, p := range v.Places() {
			x.fast[p.Number] = p.Fast
		}
		t.of[v.Name()] = x
	}
	return t
}

// tierUse is how one LUN of such a volume is used. A nil one counts nothing.
type tierUse struct {
	of     *volumeTiers
	counts *tiering.Counters
}

// use is that of a LUN; nil: nothing is to be counted.
func (t *tiers) use(v *store.BackingVolume, size int64) *tierUse {
	of := t.of[v.Name()]
	if of == nil || t.mode == balance.Off {
		return nil
	}
	return &tierUse{of, tiering.NewCounters(size)}
}

// grow is that of a longer LUN. What was counted in this round is lost.
func (u *tierUse) grow(size int64) *tierUse {
	if u == nil {
		return nil
	}
	return &tierUse{u.of, tiering.NewCounters(size)}
}

func (t *volumeTiers) tierOf(place uint8) tiering.Tier {
	if t.fast[place] {
		return tiering.Fast
	}
	return tiering.Capacity
}

func (t *volumeTiers) ioOf(f *store.File, off int64) *tierIO {
	return &t.io[t.tierOf(f.Where(off/tiering.ExtentSize))-tiering.Fast]
}

// read counts a read of a host that the page cache did not have.
func (u *tierUse) read(off, n int64) {
	if u != nil {
		u.counts.Read(off, n)
	}
}

// didRead counts the time for which such a read was at the disk.
func (u *tierUse) didRead(f *store.File, off int64, took time.Duration) {
	if u != nil {
		io := u.of.ioOf(f, off)
		io.reads.Add(1)
		io.readTime.Add(uint64(max(took, 0)))
	}
}

// write counts a write of a host.
func (u *tierUse) write(f *store.File, off, n int64) {
	if u != nil {
		u.counts.Write(off, n)
		u.of.ioOf(f, off).writes.Add(1)
	}
}

// tierLoop decides and moves, and looks how fast places are.
func (n *Node) tierLoop() {
	if !slices.ContainsFunc(n.store.Volumes(), func(v *store.BackingVolume) bool { return len(v.Places()) > 1 }) {
		return
	}
	n.measure()
	t := time.NewTicker(n.tiers.round)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-n.run.ctx.Done():
			return
		}
		n.measure()
		if n.tiers.mode == balance.Off {
			continue
		}
		for _, v := range n.store.Volumes() {
			if t := n.tiers.of[v.Name()]; t != nil && n.store.Failed() == nil {
				n.tierRound(t)
			}
		}
	}
}

// tierRound is one round of one volume. It ends within the length of a round.
func (n *Node) tierRound(t *volumeTiers) {
	ends := time.Now().Add(n.tiers.round)
	units := n.unitsIn(t.v)
	view := tiering.View{Budget: t.budget(n.tiers.round)}
	if n.mover.busy(t.v.Name()) {
		view.Budget = 0
	}
	hints := map[string][]tiering.Count{}
	byID := map[uint64]*unitEntry{}
	t.mu.Lock()
	t.forget(units)
	for _, e := range units {
		id := t.idOf(e.lun.UUID)
		byID[id] = e
		l := tiering.LUN{ID: id, Pin: pinOf(e.lun.Tier), Place: t.places(e), Counts: e.tier.counts.Take(), Fixed: fixed(e.file)}
		if e.lun.Owner == n.self.String() {
			hints[e.lun.UUID] = l.Counts
		} else {
			l.Counts = append(l.Counts, t.hints[e.lun.UUID]...)
		}
		view.LUNs = append(view.LUNs, l)
	}
	clear(t.hints)
	view.Room = t.room(view.LUNs)
	saved, why := n.tiers.speeds.saved(t.v)
	t.policy.SetCost(saved, t.took)
	moves := t.policy.Decide(view)
	t.wait, t.why = time.Duration(t.policy.Wait())*n.tiers.round, why
	if view.Budget == 0 {
		t.why = "extents move between the members of a tier first, because a member is drained, new, or nearly full"
	}
	t.mu.Unlock()
	n.sendHints(hints)
	for _, m := range moves {
		e := byID[m.LUN]
		if n.tiers.mode == balance.Observe {
			t.note(tierMove{at: time.Now(), lun: e.lun.UUID, observed: true, Move: m})
			continue
		}
		if !time.Now().Before(ends) || !n.tierMove(t, e, m) {
			return
		}
	}
}

// unitsIn are the LUNs of a volume whose use is counted, in the order of their ids.
func (n *Node) unitsIn(v *store.BackingVolume) (list []*unitEntry) {
	for _, e := range n.md.tables.Load().units {
		if e.tier != nil && e.tier.of.v == v && e.file.Spread() {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *unitEntry) int { return strings.Compare(a.lun.UUID, b.lun.UUID) })
	return list
}

// idOf is the number of a LUN for the policy. mu is held.
func (t *volumeTiers) idOf(uuid string) uint64 {
	if id := t.ids[uuid]; id != 0 {
		return id
	}
	t.last++
	t.ids[uuid] = t.last
	return t.last
}

// forget LUNs that are gone. mu is held.
func (t *volumeTiers) forget(units []*unitEntry) {
	there := make(map[string]bool, len(units))
	for _, e := range units {
		there[e.lun.UUID] = true
	}
	for uuid := range t.ids {
		if !there[uuid] {
			delete(t.ids, uuid)
		}
	}
}

// places are the tiers of a LUN's extents. Of a LUN that is pinned to Fast, what was never written
// stays where the rule has it; of others it is of no interest, since nothing counts it.
func (t *volumeTiers) places(e *unitEntry) []tiering.Tier {
	list := make([]tiering.Tier, e.file.ExtentCount())
	for x := range list {
		list[x] = t.tierOf(e.file.Where(int64(x)))
		if list[x] == tiering.Capacity && pinOf(e.lun.Tier) == tiering.PinFast {
			if data, _, err := e.file.Extent(int64(x)); err == nil && !data {
				list[x] = tiering.Unwritten
			}
		}
	}
	return list
}

// fixed tells of extents that do not move for heat: a snapshot or a clone shares them, or they were
// never written.
func fixed(f *store.File) func(int) bool {
	return func(extent int) bool {
		data, shared, err := f.Extent(int64(extent))
		return err != nil || !data || shared
	}
}

// room is how many extents the fast places hold, all in all: those that lie there, and those for
// which there is space.
func (t *volumeTiers) room(luns []tiering.LUN) (extents int) {
	for i := range luns {
		for _, at := range luns[i].Place {
			if at == tiering.Fast {
				extents++
			}
		}
	}
	for _, p := range t.v.Places() {
		if _, free, err := p.Room(); err == nil && p.Fast && !p.Draining {
			extents += int(max(free-leastRoom, 0) / tiering.ExtentSize)
		}
	}
	return extents
}

// firstMove is how long a move is taken to last before there was one, and fewest is how many moves
// a round may begin where they last long.
const (
	firstMove = 500 * time.Millisecond
	fewest    = 2
)

// budget is how many moves fit into a round, with the rests after them.
func (t *volumeTiers) budget(round time.Duration) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	each := max((1+tierRests)*t.took, tiering.ExtentSize*time.Second/moveRate)
	return max(int(round/each), fewest)
}

// tierMove makes a move, and rests: hosts that keep the disks busy make moves longer, and so rests.
// It returns false when there is no use in going on.
func (n *Node) tierMove(t *volumeTiers, e *unitEntry, m tiering.Move) bool {
	to, ok := emptiest(t.v, func(p *store.Place) bool { return p.Fast == (m.To == tiering.Fast) })
	if !ok {
		t.say(fmt.Sprintf("no member of tier %s has room", m.To))
		return false
	}
	began := time.Now()
	err := e.file.MoveExtent(n.run.ctx, int64(m.Extent), to)
	took := time.Since(began)
	if err != nil {
		if !e.file.Open() {
			return true
		}
		if why := n.moveFailed(t.v, err); why != "" {
			t.say(why)
		}
		return n.run.ctx.Err() == nil && n.store.Failed() == nil
	}
	t.mu.Lock()
	t.took += (took - t.took) / 8
	t.counts[tierKind{m.To, m.Reason}]++
	t.mu.Unlock()
	t.note(tierMove{at: began, lun: e.lun.UUID, Move: m})
	return n.rest(max(tierRests*took, tiering.ExtentSize*time.Second/moveRate))
}

// note keeps a move in the list. What would move is in it once.
func (t *volumeTiers) note(m tierMove) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.observed && slices.ContainsFunc(t.moves, func(x tierMove) bool { return x.lun == m.lun && x.Extent == m.Extent && x.To == m.To }) {
		return
	}
	if t.moves = append(t.moves, m); len(t.moves) > tierMovesKept {
		t.moves = slices.Delete(t.moves, 0, len(t.moves)-tierMovesKept)
	}
}

func (t *volumeTiers) say(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
}
