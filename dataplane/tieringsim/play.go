package tieringsim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gemel-storage/gemel/dataplane/tiering"
)

// accesses of a round.
type accesses struct {
	reads   []uint32 // random ones, by extent
	touched []int32  // extents with random reads
	scanned []int32  // extents that a scan read
}

// player decides what is on Fast.
type player interface {
	fast(extent int32) bool
	// decide takes what was read, and returns how many extents it has moved.
	decide(t time.Duration, a *accesses) int
}

// Outcome of one load under one policy, of the second half of its time unless said.
type Outcome struct {
	Hits     float64 `json:"hit_share"` // random reads that Fast served
	Moves    int     `json:"moves"`
	MovesAll int     `json:"moves_from_the_beginning"`
	// MostMoves is the most moves that one extent made, from the beginning.
	MostMoves int `json:"most_moves_of_an_extent"`
	// MinutesToHot is when 95 % of what the one who knows reads from Fast was served by Fast for
	// the first time, in minutes from the beginning; -1: never.
	MinutesToHot float64 `json:"minutes_to_hot"`
	Wait         int     `json:"wait_rounds"` // what the policy has learned at the end
}

// Policies are the names of the players: Gemel's, those that it is compared with, and one that
// knows the chances of every extent and moves for nothing.
const (
	Gemel  = "gemel"
	LRU    = "lru"
	LFU    = "lfu"
	Static = "static"
	Oracle = "oracle"
)

// Play plays one load under every policy.
func Play(family string, s Size, seed uint64) (map[string]Outcome, error) {
	make := Families[family]
	if make == nil {
		return nil, fmt.Errorf("no family of loads is named %q", family)
	}
	load := make(s, rand.New(rand.NewPCG(seed, 1)))
	ours := newGemel(s, load.filled)
	players := map[string]player{Gemel: ours, LRU: newRival(s, load.filled, true), LFU: newRival(s, load.filled, false),
		Static: &still{start(s, load.filled)}, Oracle: &oracle{load: load}}
	return play(load, s, rand.New(rand.NewPCG(seed, 2)), players, ours), nil
}

func play(load *Load, s Size, r *rand.Rand, players map[string]player, ours *gemel) map[string]Outcome {
	out, hits, all := map[string]Outcome{}, map[string]int{}, 0
	hot := map[string]bool{}
	a := &accesses{reads: make([]uint32, s.Extents)}
	end := time.Duration(s.Hours) * time.Hour
	next := 0 // of a scan
	for t := time.Duration(0); t < end; t += round {
		judged := t >= end/2
		for _, e := range a.touched {
			a.reads[e] = 0
		}
		a.touched, a.scanned = a.touched[:0], a.scanned[:0]
		share := 1.0
		if load.reads != nil {
			share = load.reads(t)
		}
		p := load.phase(t)
		n := int(s.IOPS * share * round.Seconds())
		for range n {
			e := p.draw(r)
			if a.reads[e]++; a.reads[e] == 1 {
				a.touched = append(a.touched, e)
			}
		}
		if load.scan != nil && load.scan(t) {
			for range scanned {
				a.scanned = append(a.scanned, int32(next))
				next = (next + 1) % s.Extents
			}
		}
		best := 0
		for _, e := range a.touched {
			if p.best[e] {
				best += int(a.reads[e])
			}
		}
		if judged {
			all += n
		}
		for name, pl := range players {
			h := 0
			for _, e := range a.touched {
				if pl.fast(e) {
					h += int(a.reads[e])
				}
			}
			o := out[name]
			if !hot[name] && 20*h >= 19*best {
				hot[name], o.MinutesToHot = true, t.Minutes()
			}
			moves := pl.decide(t, a)
			o.MovesAll += moves
			if judged {
				hits[name] += h
				o.Moves += moves
			}
			out[name] = o
		}
	}
	for name, o := range out {
		if o.Hits = float64(hits[name]) / float64(all); !hot[name] {
			o.MinutesToHot = -1
		}
		if name == Gemel {
			o.MostMoves, o.Wait = ours.most(), ours.policy.Wait()
		}
		out[name] = o
	}
	return out
}

// start is the place of every extent at the beginning.
func start(s Size, filled []int) []tiering.Tier {
	place := make([]tiering.Tier, s.Extents)
	for e := range place {
		place[e] = tiering.Capacity
	}
	for _, e := range filled {
		place[e] = tiering.Fast
	}
	return place
}

// gemel is the policy under test, whose moves are carried out within the round.
type gemel struct {
	s      Size
	place  []tiering.Tier
	policy *tiering.Policy
	moved  map[int]int
	counts []tiering.Count
}

// Times of devices: a read of a hard disk takes 8 ms longer than one of an SSD, and a move of
// 4 MiB takes both 60 ms.
const (
	saved = 8 * time.Millisecond
	move  = 60 * time.Millisecond
)

func newGemel(s Size, filled []int) *gemel {
	return &gemel{s: s, place: start(s, filled), moved: map[int]int{},
		policy: tiering.New(tiering.Config{Round: round, Saved: saved, Move: move})}
}

func (g *gemel) fast(e int32) bool { return g.place[e] == tiering.Fast }

func (g *gemel) decide(_ time.Duration, a *accesses) int {
	g.counts = g.counts[:0]
	for _, e := range a.touched {
		g.counts = append(g.counts, tiering.Count{Extent: int(e), Reads: a.reads[e]})
	}
	moves := g.policy.Decide(tiering.View{
		LUNs:   []tiering.LUN{{ID: 1, Place: g.place, Counts: g.counts}},
		Room:   g.s.Fast,
		Budget: g.s.Budget,
	})
	for _, m := range moves {
		g.place[m.Extent] = m.To
		g.moved[m.Extent]++
	}
	return len(moves)
}

func (g *gemel) most() (n int) {
	for _, m := range g.moved {
		n = max(n, m)
	}
	return n
}
