package balance

import (
	"math"
	"time"
)

// promise is what the balancing moves of the last slow window were to bring.
type promise struct {
	at    int64
	luns  []string
	diff  float64 // of the nodes before
	stats Stats
}

// Stats count what balancing moves brought.
type Stats struct {
	Kept   uint64 // the difference of the nodes was smaller a slow window later
	Broken uint64 // it was not: the LUNs rest for longer
}

// Stats of this chair.
func (b *Balancer) Stats() Stats { return b.promise.stats }

func (p *promise) add(now int64, mv Move) {
	if p.at != now {
		p.luns = p.luns[:0]
	}
	p.at = now
	p.luns = append(p.luns, mv.LUN)
}

// keepPromise compares, once, what the last balancing moves brought with what the nodes were like
// before.
func (b *Balancer) keepPromise(v *View) {
	p := &b.promise
	diff := math.Abs(v.Nodes[A].Use - v.Nodes[B].Use)
	if p.at == 0 {
		p.diff = diff
		return
	}
	if time.Duration(v.Now-p.at) < SlowWindow+FastWindow {
		return
	}
	if diff < p.diff {
		p.stats.Kept++
	} else {
		p.stats.Broken++
		for _, id := range p.luns {
			if m := b.luns[id]; m != nil {
				m.takeRest(v.Now, b.policy.Rest, true)
			}
		}
	}
	p.at, p.diff = 0, diff
}

// regret compares what balancing has cost with what it would have cost to leave every LUN where it
// was when the pair was last disturbed, or where another reason has put it since. Bursts that come
// and go as fast as they can be followed make every move come too late; this notices it.
type regret struct {
	disturbed int64
	at        int64
	ghost     map[string]Node
	paid      float64 // seconds of work beyond what leaving the LUNs would have cost, over the last hours
	whole     float64 // what leaving them would have cost
	burnt     bool    // following has cost more than it has brought
}

const (
	regretFor  = 2 * time.Hour // older gains and losses fade
	regretMax  = 0.015         // of the whole: more than that, and LUNs return to where they were
	regretOver = 0.005         // less than that, and work is followed again
)

// belongs notes where a LUN would be if nothing were balanced.
func (r *regret) belongs(lun string, n Node) {
	if r.ghost != nil {
		r.ghost[lun] = n
	}
}

// count brings the regret up to date.
func (r *regret) count(v *View, gate float64) {
	if r.ghost == nil || r.disturbed != v.Disturbed {
		*r = regret{disturbed: v.Disturbed, at: v.Now, ghost: map[string]Node{}}
	}
	var is, would [2]float64
	for n := range v.Nodes {
		is[n], would[n] = v.Nodes[n].Use, v.Nodes[n].Use
	}
	for i := range v.LUNs {
		l := &v.LUNs[i]
		if l.Owner == None {
			continue
		}
		g, ok := r.ghost[l.ID]
		if !ok {
			g = l.Owner
			r.ghost[l.ID] = g
		}
		is[l.Owner] += l.Fast - l.Slow
		would[l.Owner] -= l.Slow
		would[g] += l.Fast
	}
	dt := time.Duration(v.Now - r.at).Seconds()
	fade := math.Exp(-dt / regretFor.Seconds())
	r.paid = r.paid*fade + (busier(is, gate)-busier(would, gate))*dt
	r.whole = r.whole*fade + busier(would, gate)*dt
	r.at = v.Now
	// A chair that has just begun has seen little of the whole: it is taken for as much as it will
	// be.
	whole := max(r.whole, busier(would, gate)*regretFor.Seconds())
	r.burnt = r.paid > regretMax*whole || r.burnt && r.paid > regretOver*whole
}

// busier is the load of the busier node; below the gate, what it would be if work were even.
func busier(load [2]float64, gate float64) float64 {
	if top := max(load[A], load[B]); top > gate {
		return top
	}
	return (load[A] + load[B]) / 2
}
