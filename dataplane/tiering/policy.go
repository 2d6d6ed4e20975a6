package tiering

import (
	"cmp"
	"time"
)

// Policy remembers what Decide has seen. It is not safe for concurrent use.
type Policy struct {
	cfg     Config
	of      map[uint64]*rates
	lessons lessons
	round   int32
}

type key struct {
	lun    uint64
	extent int
}

// candidate is an extent that may move; rate is the bound that speaks against it.
type candidate struct {
	lun  *LUN
	key  key
	rate float64
}

// New makes a policy that has seen nothing.
func New(cfg Config) *Policy {
	return &Policy{cfg: cfg, of: map[uint64]*rates{}, lessons: newLessons(cfg)}
}

// SetCost says what moves cost and save from now on, as Config does.
func (p *Policy) SetCost(saved, move time.Duration) {
	p.cfg.Saved, p.cfg.Move = saved, move
	p.lessons.cfg = p.cfg
}

// Wait is for how many rounds an extent has to be hot before it moves.
func (p *Policy) Wait() int { return p.lessons.wait }

// Rate is how often an extent is used at least, in accesses a second.
func (p *Policy) Rate(lun uint64, extent int) float64 {
	r := p.of[lun]
	if r == nil || extent < 0 || extent >= len(r.soon) {
		return 0
	}
	low, _ := r.bounds(extent)
	return low
}

// Decide takes what was counted in a round, and returns the moves that it is worth.
func (p *Policy) Decide(v View) []Move {
	p.round++
	p.learn(v)
	s := p.sort(v)
	d := decision{p: p, budget: v.Budget, free: v.Room - s.used, reserve: reserveOf(v.Room)}
	d.pins(s)
	for d.free < d.reserve && d.demote(s, ReasonReserve) {
	}
	d.heat(s)
	return d.moves
}

func reserveOf(room int) int {
	if room < 2 {
		return 0
	}
	return max(int(float64(room)*reserveShare), 1)
}

// learn counts, forgets LUNs that are gone, and sees what earlier moves have earned.
func (p *Policy) learn(v View) {
	seconds := p.cfg.Round.Seconds()
	seen := map[uint64]bool{}
	for i := range v.LUNs {
		l := &v.LUNs[i]
		seen[l.ID] = true
		r := p.of[l.ID]
		if r == nil {
			r = &rates{}
			p.of[l.ID] = r
		}
		r.grow(len(l.Place))
		r.pass(seconds, l.Counts)
		p.lessons.count(l)
	}
	for id := range p.of {
		if !seen[id] {
			delete(p.of, id)
		}
	}
	p.lessons.settle(p, v)
}

// sorted is all that may move, by the reason for which it may.
type sorted struct {
	used      int         // extents on Fast
	leave     []candidate // on Fast, and pinned to Capacity
	enter     []candidate // on Capacity, and pinned to Fast
	hot, cold []candidate // hot for long enough, the hottest first; on Fast, the coldest first
}

func (p *Policy) sort(v View) *sorted {
	s := &sorted{}
	most := 4*max(v.Budget, 0) + reserveOf(v.Room)
	hottest := func(x, y candidate) int { return cmp.Or(cmp.Compare(y.rate, x.rate), compareKeys(x.key, y.key)) }
	coldest := func(x, y candidate) int { return cmp.Or(cmp.Compare(x.rate, y.rate), compareKeys(x.key, y.key)) }
	hot, cold := NewTop(most, hottest), NewTop(most, coldest)
	least := p.lessons.least()
	for i := range v.LUNs {
		l := &v.LUNs[i]
		r := p.of[l.ID]
		for e, at := range l.Place {
			c := candidate{lun: l, key: key{l.ID, e}}
			switch {
			case at == Fast:
				s.used++
				r.hotFrom[e] = 0
				if l.Pin == PinCapacity {
					s.leave = append(s.leave, c)
				} else if l.Pin == Unpinned {
					_, c.rate = r.bounds(e)
					cold.Add(c)
				}
			case at == Capacity && l.Pin == PinFast:
				s.enter = append(s.enter, c)
			case at == Capacity && l.Pin == Unpinned && (r.soon[e] > 0 || r.later[e] > 0):
				if c.rate, _ = r.bounds(e); c.rate <= 0 || c.rate < least {
					r.hotFrom[e] = 0
					continue
				}
				if r.hotFrom[e] == 0 {
					r.hotFrom[e] = p.round
				}
				if int(p.round-r.hotFrom[e]) >= p.lessons.wait {
					hot.Add(c)
				}
			}
		}
	}
	s.hot, s.cold = hot.List(), cold.List()
	return s
}

func compareKeys(x, y key) int {
	return cmp.Or(cmp.Compare(x.lun, y.lun), cmp.Compare(x.extent, y.extent))
}

// decision collects the moves of a round.
type decision struct {
	p                     *Policy
	moves                 []Move
	budget, free, reserve int
}

func (d *decision) left() int { return d.budget - len(d.moves) }

func (d *decision) move(c candidate, to Tier, why Reason) {
	d.moves = append(d.moves, Move{c.key.lun, c.key.extent, to, why, c.rate})
	if to == Fast {
		d.free--
	} else {
		d.free++
		d.p.lessons.left(c.key)
	}
}

// pins moves what is pinned to the other tier; what is pinned to Fast may take the reserve, and the
// places of others.
func (d *decision) pins(s *sorted) {
	for _, c := range s.leave {
		if d.left() < 1 {
			return
		}
		d.move(c, Capacity, ReasonPin)
	}
	for _, c := range s.enter {
		if d.free < 1 && (d.left() < 2 || !d.demote(s, ReasonMakeRoom)) || d.left() < 1 {
			return
		}
		d.move(c, Fast, ReasonPin)
	}
}

// next is the coldest extent on Fast that may leave.
func (s *sorted) next() *candidate {
	for len(s.cold) > 0 {
		if c := &s.cold[0]; c.lun.Fixed == nil || !c.lun.Fixed(c.key.extent) {
			return c
		}
		s.cold = s.cold[1:]
	}
	return nil
}

func (d *decision) demote(s *sorted, why Reason) bool {
	c := s.next()
	if c == nil || d.left() < 1 {
		return false
	}
	s.cold = s.cold[1:]
	d.move(*c, Capacity, why)
	return true
}

// heat moves what is used most to Fast, while there is room or something much colder.
func (d *decision) heat(s *sorted) {
	for _, c := range s.hot {
		if d.left() < 1 {
			return
		}
		if c.lun.Fixed != nil && c.lun.Fixed(c.key.extent) {
			continue
		}
		why := ReasonHeat
		if d.free <= d.reserve {
			why = ReasonDisplace
			if cold := s.next(); cold == nil || c.rate < Gain*cold.rate || d.left() < 2 {
				return // what follows is colder
			}
			d.demote(s, ReasonMakeRoom)
		}
		d.move(c, Fast, why)
		d.p.lessons.began(c.key)
	}
}
