package tiering

import (
	"maps"
	"slices"
)

// lessons are what moves have earned: an extent that was moved to Fast for heat has to save as much
// device time as its way there and back costs, within Horizon.
type lessons struct {
	cfg    Config
	loans  map[key]*loan
	failed float64 // share of those that were settled lately
	wait   int     // rounds
}

type loan struct {
	got    float64 // accesses since the move
	rounds int     // since the move
}

const (
	// Each loan that is settled counts for so much of the share.
	lessonWeight = 1.0 / 32
	// Where more have failed than tooMany, the wait doubles; where fewer have than few, it halves.
	tooMany, few = 0.5, 0.125
	// between is the share after either.
	between = 0.25
	// arrival is how many rounds a move may take.
	arrival = 10
)

func newLessons(cfg Config) lessons {
	return lessons{cfg: cfg, loans: map[key]*loan{}, failed: between}
}

// need is how many accesses pay for a move and the way back.
func (l *lessons) need() float64 { return 2 * l.cfg.Move.Seconds() / l.cfg.Saved.Seconds() }

// least is the rate that pays within Horizon; no rate is as much where nothing is to be saved.
func (l *lessons) least() float64 {
	if l.cfg.Saved <= 0 {
		return 1e300
	}
	return l.need() / Horizon.Seconds()
}

func (l *lessons) longest() int { return max(int(Horizon/l.cfg.Round), 1) }

func (l *lessons) began(k key) { l.loans[k] = &loan{} }

// left: an extent leaves Fast.
func (l *lessons) left(k key) {
	if _, ok := l.loans[k]; ok {
		delete(l.loans, k)
		l.settled(false)
	}
}

func (l *lessons) count(lun *LUN) {
	if len(l.loans) == 0 {
		return
	}
	for _, c := range lun.Counts {
		if x := l.loans[key{lun.ID, c.Extent}]; x != nil {
			x.got += weight(c)
		}
	}
}

// settle looks at what has been earned. One that cannot earn the rest any more has failed now. A
// move that did not take place teaches nothing.
func (l *lessons) settle(p *Policy, v View) {
	if len(l.loans) == 0 {
		return
	}
	place := make(map[uint64][]Tier, len(v.LUNs))
	for i := range v.LUNs {
		place[v.LUNs[i].ID] = v.LUNs[i].Place
	}
	for _, k := range slices.SortedFunc(maps.Keys(l.loans), compareKeys) {
		x, at := l.loans[k], place[k.lun]
		x.rounds++
		if k.extent >= len(at) || at[k.extent] != Fast {
			if k.extent >= len(at) || x.rounds >= arrival {
				delete(l.loans, k)
			}
			continue
		}
		rest := Horizon.Seconds() - float64(x.rounds)*l.cfg.Round.Seconds()
		_, high := p.of[k.lun].bounds(k.extent)
		switch {
		case x.got >= l.need():
			delete(l.loans, k)
			l.settled(true)
		case x.got+high*max(rest, 0) < l.need():
			delete(l.loans, k)
			l.settled(false)
		}
	}
}

func (l *lessons) settled(paid bool) {
	l.failed *= 1 - lessonWeight
	if !paid {
		l.failed += lessonWeight
	}
	switch {
	case l.failed > tooMany && l.wait < l.longest():
		l.wait, l.failed = min(max(2*l.wait, 1), l.longest()), between
	case l.failed < few && l.wait > 0:
		l.wait, l.failed = l.wait/2, between
	}
}
