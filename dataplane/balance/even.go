package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// moveWork is what every move costs beside its pause and its cold reads, in seconds of work.
	moveWork = 0.2
	// swing is how far the fast window may be from the slow one, as a share of the slow one, before
	// work counts as swinging: then nothing is known that is worth a move.
	swing = 0.5
	// searched is how many LUNs of each node are looked at, those with the most work first.
	searched = 24
	// steadyWork below which it does not matter how a LUN's work swings, as a share of a node.
	steadyWork = 0.02
)

// cost of a move, in seconds of work.
func (l *LUN) cost() float64 { return moveWork + l.Pause*l.Fast + l.Cold }

// candidate is a LUN that may be moved, and what that does to the difference of the nodes.
type candidate struct {
	l      *LUN
	m      *memory
	weight float64 // by how much a move lowers the load of the heavier node; negative from the lighter one
	group  [2]int  // members of its group at each node
}

// even returns the fewest moves that bring the difference of the nodes under the bound, if they
// pay.
func (b *Balancer) even(v *View) []Move {
	loads, ok := b.calm(v)
	if !ok {
		return nil
	}
	if b.regret.burnt {
		b.text = "following the work has cost more than it has brought: LUNs stay where they were before"
		return b.giveBack(v)
	}
	heavy := A
	if loads[B] > loads[A] {
		heavy = B
	}
	sum, diff := loads[A]+loads[B], loads[heavy]-loads[heavy.Peer()]
	bound := b.policy.Bound * sum
	if diff <= bound {
		b.text = fmt.Sprintf("the nodes differ by %.0f %% of what both use of %s", 100*diff/max(sum, 1e-9), v.their())
		return nil
	}
	best := b.search(v, b.candidates(v, heavy), diff, bound)
	if best == nil {
		b.text = fmt.Sprintf("no move pays: node %s uses %.2f, node %s %.2f of %s", heavy, loads[heavy], heavy.Peer(), loads[heavy.Peer()], v.its())
		return nil
	}
	b.text = ""
	moves := make([]Move, 0, len(best.set))
	for _, c := range best.set {
		to := c.l.Owner.Peer()
		moves = append(moves, Move{LUN: c.l.ID, From: c.l.Owner, To: to, Reason: ReasonBalance, SetsHome: true,
			Gain: best.gain / float64(len(best.set)), Cost: c.l.cost(),
			Text: fmt.Sprintf("node %s uses %.2f and node %s %.2f of %s; this LUN is %.2f of that, and has been for %s",
				heavy, loads[heavy], heavy.Peer(), loads[heavy.Peer()], v.its(), c.l.Slow, time.Duration(v.Now-c.m.levelAt).Round(time.Second))})
	}
	return moves
}

// its and their name the resource that work is measured in.
func (v *View) its() string {
	if v.Disk == "" {
		return "its CPUs"
	}
	return "its disk of volume " + v.Disk
}

func (v *View) their() string {
	if v.Disk == "" {
		return "their CPUs"
	}
	return "their disks of volume " + v.Disk
}

// giveBack returns the LUNs that balancing has moved to where they were, as far as their groups
// stay spread.
func (b *Balancer) giveBack(v *View) (moves []Move) {
	spread := groups(v)
	var set []candidate
	for i := range v.LUNs {
		l := &v.LUNs[i]
		m := b.luns[l.ID]
		to, ok := b.regret.ghost[l.ID]
		if !ok || to == l.Owner || l.Owner == None || l.Pin != None || l.Home != l.Owner || v.Now < l.Held || m.spent(v.Now) ||
			!m.reaches(l, to, v.Now) {
			continue
		}
		c := candidate{l: l, m: m, group: spread[l.Group]}
		if !spreads(append(set, c), c) {
			continue
		}
		set = append(set, c)
		moves = append(moves, Move{LUN: l.ID, From: l.Owner, To: to, Reason: ReasonBalance, SetsHome: true, Cost: l.cost(), Text: b.text})
	}
	return moves
}

// calm returns the load of each node, or says why nothing is to be balanced.
func (b *Balancer) calm(v *View) (loads [2]float64, ok bool) {
	var fast, slow float64
	for i := range v.LUNs {
		fast, slow = fast+v.LUNs[i].Fast, slow+v.LUNs[i].Slow
	}
	for n := range v.Nodes {
		loads[n] = v.Nodes[n].Use
	}
	p := &b.policy
	switch {
	case p.Mode == Off:
		b.text = "balancing is off"
	case !eligible(v, A) || !eligible(v, B):
		b.text = "only one node may own LUNs"
	case v.Nodes[A].Crashed || v.Nodes[B].Crashed:
		b.text = "the process of a node crashed less than a minute ago"
	case v.Now-max(b.start, v.Disturbed) < int64(SlowWindow):
		b.text = "work is counted again since the last change of the pair, or of what work is measured in"
	case loads[A] < p.Gate && loads[B] < p.Gate:
		b.text = fmt.Sprintf("both nodes use less than %.0f %% of %s", p.Gate*100, v.their())
	case loads[A] > p.Saturated && loads[B] > p.Saturated:
		b.text = fmt.Sprintf("both nodes are saturated: they use more than %.0f %% of %s", p.Saturated*100, v.their())
	case math.Abs(fast-slow) > swing*max(slow, fast):
		b.text = "the work of the pair swings faster than it can be followed"
	default:
		return loads, true
	}
	return loads, false
}

// candidates are the LUNs that may be moved, those of the heavier node first.
func (b *Balancer) candidates(v *View, heavy Node) (out [2][]candidate) {
	spread := groups(v)
	for i := range v.LUNs {
		l := &v.LUNs[i]
		m := b.luns[l.ID]
		if l.Owner == None || l.Pin != None || l.Home != None && l.Home != l.Owner || l.Slow <= 0 || v.Now < l.Held || l.Crowds ||
			m.spent(v.Now) || m.restingFrom(v.Now, SlowWindow) || !m.reaches(l, l.Owner.Peer(), v.Now) {
			continue
		}
		if l.Slow > steadyWork && math.Abs(l.Fast-l.Slow) > swing*max(l.Fast, l.Slow) {
			continue
		}
		side, w := 0, l.Slow
		if l.Owner != heavy {
			side, w = 1, -l.Slow
		}
		out[side] = append(out[side], candidate{l, m, w, spread[l.Group]})
	}
	for i := range out {
		slices.SortFunc(out[i], func(x, y candidate) int {
			return cmp.Or(cmp.Compare(y.l.Slow, x.l.Slow), cmp.Compare(x.l.ID, y.l.ID))
		})
		out[i] = out[i][:min(len(out[i]), searched)]
	}
	return out
}

// groups counts the members of each group at each node.
func groups(v *View) map[string][2]int {
	out := map[string][2]int{}
	for i := range v.LUNs {
		if l := &v.LUNs[i]; l.Group != "" && l.Owner != None {
			g := out[l.Group]
			g[l.Owner]++
			out[l.Group] = g
		}
	}
	return out
}

// spreads reports whether the group of c is spread no less once all LUNs of the set have moved.
func spreads(set []candidate, c candidate) bool {
	if c.l.Group == "" {
		return true
	}
	apart, change := c.group[A]-c.group[B], 0
	for _, o := range set {
		if o.l.Group != c.l.Group {
			continue
		}
		if o.l.Owner == A {
			change -= 2
		} else {
			change += 2
		}
	}
	after := apart + change
	return max(after, -after) <= max(1, apart, -apart)
}

// choice is a set of moves.
type choice struct {
	set   []candidate
	left  float64 // the difference afterwards
	gain  float64
	value float64 // gain less cost
}

// search tries one move, then two, then three. The first number of moves that gets under the bound
// wins, with the set that is worth most; if none does, the set that is worth most.
func (b *Balancer) search(v *View, cs [2][]candidate, diff, bound float64) *choice {
	var best *choice
	try := func(set ...candidate) {
		c := b.judge(v, set, diff)
		if c == nil || best != nil && (best.left <= bound) != (c.left <= bound) && c.left > bound {
			return
		}
		if best == nil || best.left > bound && c.left <= bound || c.value > best.value {
			c.set = slices.Clone(set)
			best = c
		}
	}
	one := cs[0]
	all := append(slices.Clone(cs[0]), cs[1]...)
	for _, x := range one {
		try(x)
	}
	if best != nil && best.left <= bound {
		return best
	}
	for i, x := range one {
		for _, y := range all[i+1:] {
			try(x, y)
		}
	}
	if best != nil && best.left <= bound {
		return best
	}
	for i, x := range one[:min(len(one), searched/2)] {
		for j, y := range all[i+1:] {
			for _, z := range all[i+1+j+1:] {
				try(x, y, z)
			}
		}
	}
	return best
}

// judge weighs a set of moves; nil if it does not pay.
func (b *Balancer) judge(v *View, set []candidate, diff float64) *choice {
	moved, persist, cost, near := 0.0, math.Inf(1), 0.0, 0.0
	for _, c := range set {
		moved += c.weight
		persist = min(persist, c.m.persistence(v.Now))
		cost += c.l.cost()
		if c.l.Near != None && c.l.Group == "" {
			if c.l.Near == c.l.Owner {
				near -= c.l.NearGain
			} else {
				near += c.l.NearGain
			}
		}
		if !spreads(set, c) {
			return nil
		}
	}
	left := math.Abs(diff - 2*moved)
	c := &choice{left: left, gain: ((diff-left)/2 + near) * persist}
	if left >= diff || c.gain < b.policy.ROI*cost {
		return nil
	}
	c.value = c.gain - cost
	return c
}
