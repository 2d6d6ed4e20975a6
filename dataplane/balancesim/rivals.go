package balancesim

import (
	"math"

	"github.com/gemel-storage/gemel/dataplane/balance"
)

// ours is the package that pairs run.
type ours struct {
	b      *balance.Balancer
	policy balance.Policy
}

func (o *ours) chair(now int64)                       { o.b = balance.New(now, o.policy) }
func (o *ours) decide(v *balance.View) []balance.Move { return o.b.Decide(v) }
func (o *ours) moved(now int64, m balance.Move)       { o.b.Moved(now, m) }

// static leaves every LUN where it was made.
type static struct{}

func (static) chair(int64)                         {}
func (static) decide(*balance.View) []balance.Move { return nil }
func (static) moved(int64, balance.Move)           {}

// byCount keeps the numbers of LUNs even.
type byCount struct{ static }

func (byCount) decide(v *balance.View) []balance.Move {
	var n [2]int
	for i := range v.LUNs {
		n[v.LUNs[i].Owner]++
	}
	for i := range v.LUNs {
		if l := &v.LUNs[i]; n[l.Owner]-n[l.Owner.Peer()] > 1 && l.Pin == balance.None {
			return []balance.Move{{LUN: l.ID, From: l.Owner, To: l.Owner.Peer()}}
		}
	}
	return nil
}

// greedy makes, at each question, the move that evens the latest loads best, whatever it costs.
type greedy struct{ static }

func (greedy) decide(v *balance.View) []balance.Move {
	var load [2]float64
	for i := range v.LUNs {
		load[v.LUNs[i].Owner] += v.LUNs[i].Fast
	}
	diff := math.Abs(load[0] - load[1])
	best, left := -1, diff*0.9
	for i := range v.LUNs {
		l := &v.LUNs[i]
		if load[l.Owner] < load[l.Owner.Peer()] || l.Pin != balance.None {
			continue
		}
		if d := math.Abs(diff - 2*l.Fast); d < left {
			best, left = i, d
		}
	}
	if best < 0 {
		return nil
	}
	l := &v.LUNs[best]
	return []balance.Move{{LUN: l.ID, From: l.Owner, To: l.Owner.Peer()}}
}

// oracle is the least cost of any sequence of assignments, with the whole future known, that
// changes only once in a slow window, keeps pins, and keeps groups as spread as they have to be.
func oracle(h *History) float64 {
	n, slot := len(h.luns), slowLen
	states := 1 << n
	allowed := make([]bool, states)
	owner := make([]balance.Node, n)
	for s := range states {
		allowed[s] = true
		for i := range n {
			if owner[i] = balance.Node(s >> i & 1); h.luns[i].pin != balance.None && owner[i] != h.luns[i].pin {
				allowed[s] = false
			}
		}
		for i := range n {
			if h.apart(owner, h.luns[i].group) > 1 {
				allowed[s] = false
			}
		}
	}
	cost := make([]float64, states)
	for s := range cost {
		cost[s] = math.Inf(1)
	}
	first := 0
	for i := range n {
		first |= int(h.start[i]) << i
	}
	cost[first] = 0
	node := make([]float64, states) // load of node b by assignment, at one step
	for t := 0; t < steps; t += slot {
		for i := range n { // one LUN at a time: the cost of a set is the sum of its moves
			c := h.moveCost(i, t)
			for s := range states {
				if s>>i&1 == 0 {
					x, y := cost[s], cost[s|1<<i]
					cost[s], cost[s|1<<i] = min(x, y+c), min(y, x+c)
				}
			}
		}
		for s := range cost {
			if !allowed[s] {
				cost[s] = math.Inf(1)
			}
		}
		for k := t; k < min(t+slot, steps); k++ {
			sum := 0.0
			for i := range n {
				sum += float64(h.load[i][k])
			}
			node[0] = 0
			for s := 1; s < states; s++ {
				low := s & (s - 1)
				bit := trailing(s ^ low)
				node[s] = node[low] + float64(h.load[bit][k])
			}
			for s := range states {
				if !math.IsInf(cost[s], 1) {
					cost[s] += busier([2]float64{h.base[0] + sum - node[s], h.base[1] + node[s]}) * Step.Seconds()
				}
			}
		}
	}
	best := math.Inf(1)
	for _, c := range cost {
		best = min(best, c)
	}
	return best
}

func trailing(x int) (n int) {
	for x&1 == 0 {
		x, n = x>>1, n+1
	}
	return n
}
