package balance

import "time"

// memory is what is remembered of one LUN.
type memory struct {
	owner   Node
	ownerAt int64 // when the owner last changed, for whatever reason
	home    Node
	homeAt  int64 // when the home last changed, as far as this chair has seen it
	awayAt  int64 // since when it is away from home
	probing bool  // it went home as a probe, and no host has used it since

	moves    []int64       // the last ones, at most MovesPerHour
	rest     time.Duration // the length of the last rest
	restTill int64
	back     Node // a move to this node is a relapse

	level   float64 // work per second that the LUN is taken to have
	levelAt int64   // since when
	rising  bool    // that level is higher than the one before
	spans   []int64 // for how long the last levels lasted (ns)

	unused map[string]*[2]int64 // by host: until when a node counts as unusable for it
	seen   uint64               // the last question that had the LUN
}

// Limits of rests and of what is taken to persist.
const (
	restMax    = time.Hour
	relapseFor = time.Hour // a move back after that is none
	persistMax = time.Hour
)

// levelFactor is by how much the work of a LUN has to change to be another level.
const levelFactor = 1.5

// observe brings the memory up to date with what is there.
func (b *Balancer) observe(v *View) {
	b.round++
	b.probes = 0
	for i := range v.LUNs {
		l := &v.LUNs[i]
		m := b.luns[l.ID]
		if m == nil {
			m = &memory{owner: l.Owner, ownerAt: b.start, home: l.Home, homeAt: b.start, awayAt: v.Now, level: l.Slow, levelAt: v.Now, back: None}
			b.luns[l.ID] = m
		}
		m.seen = b.round
		if m.owner != l.Owner {
			m.owner, m.ownerAt = l.Owner, v.Now
			b.regret.belongs(l.ID, l.Owner) // a person or a failure moved it
		}
		if m.home != l.Home {
			m.home, m.homeAt = l.Home, v.Now
		}
		if l.Owner == l.Home {
			m.awayAt = v.Now
		}
		if m.probing && (!l.idle() || l.Owner != l.Home) {
			m.probing = false
		}
		if m.probing {
			b.probes++
		}
		if low := 0.02; max(l.Slow, low) > levelFactor*max(m.level, low) || max(m.level, low) > levelFactor*max(l.Slow, low) {
			m.newLevel(v.Now, l.Slow)
		}
		b.observeHosts(v, l, m)
	}
	for id, m := range b.luns {
		if m.seen != b.round {
			delete(b.luns, id)
		}
	}
	b.keepPromise(v)
	b.regret.count(v, b.policy.Gate)
}

// spansKept is how many levels are remembered.
const spansKept = 4

// settling is how long the slow window takes to show a change: little by little, so that one change
// passes several levels.
const settling = 2 * SlowWindow

// newLevel begins a level of work, unless the last one is still being reached: then the work has
// been what it is now since that one began.
func (m *memory) newLevel(now int64, work float64) {
	up := work > m.level
	if len(m.spans) > 0 && up == m.rising && now-m.levelAt < int64(settling) {
		m.level = work
		return
	}
	m.rising = up
	if len(m.spans) == spansKept {
		m.spans = append(m.spans[:0], m.spans[1:]...)
	}
	m.spans = append(m.spans, now-m.levelAt)
	m.level, m.levelAt = work, now
}

// persistence is for how many seconds the work of a LUN is expected to stay what it is: for as long
// as it has been so, but not for longer than such levels have lasted recently. A level is seen half
// a window late.
func (m *memory) persistence(now int64) float64 {
	expected := now - m.levelAt
	if len(m.spans) > 1 {
		sum := int64(0)
		for _, x := range m.spans[1:] { // the first one was under way when it was first seen
			sum += x
		}
		expected = min(expected, sum/int64(len(m.spans)-1)-int64(SlowWindow)/2)
	}
	return min(max(time.Duration(expected), 0), persistMax).Seconds()
}

func (m *memory) resting(now int64) bool { return now < m.restTill }

// restingFrom reports whether less than d has passed since the last move, or the LUN rests.
func (m *memory) restingFrom(now int64, d time.Duration) bool {
	return m.resting(now) || len(m.moves) > 0 && now-m.moves[len(m.moves)-1] < int64(d)
}

// spent reports whether the LUN has moved as often as it may in an hour.
func (m *memory) spent(now int64) bool {
	return len(m.moves) == MovesPerHour && now-m.moves[0] < int64(time.Hour)
}

// Moved reports that a move was made at the time now (ns).
func (b *Balancer) Moved(now int64, mv Move) {
	m := b.luns[mv.LUN]
	if m == nil {
		return
	}
	if len(m.moves) == MovesPerHour {
		m.moves = append(m.moves[:0], m.moves[1:]...)
	}
	relapse := len(m.moves) > 0 && mv.To == m.back && now-m.moves[len(m.moves)-1] < int64(relapseFor)
	m.moves = append(m.moves, now)
	m.owner, m.ownerAt, m.back = mv.To, now, mv.From
	m.probing = mv.Reason == ReasonProbe
	m.takeRest(now, b.policy.Rest, relapse)
	if mv.Reason == ReasonBalance {
		b.promise.add(now, mv)
		b.regret.paid += mv.Cost
	} else {
		b.regret.belongs(mv.LUN, mv.To)
	}
}

// takeRest makes the LUN rest: twice as long as last time after a relapse.
func (m *memory) takeRest(now int64, base time.Duration, relapse bool) {
	if relapse && m.rest > 0 {
		m.rest = min(2*m.rest, restMax)
	} else {
		m.rest = max(base, m.rest/2)
	}
	m.restTill = now + int64(m.rest)
}
