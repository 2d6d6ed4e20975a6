package balance

import (
	"fmt"
	"time"
)

// lossTime is how long a node has to be out of reach of a host before that counts: a login that is
// replaced takes less.
const lossTime = 5 * time.Second

// Balancer is what a chair remembers between two questions. It is not safe for concurrent use.
type Balancer struct {
	policy  Policy
	start   int64
	luns    map[string]*memory
	probes  int    // LUNs that go home, or went, to find out whether their hosts follow
	round   uint64 // counts the questions, to forget LUNs that are gone
	promise promise
	regret  regret
	text    string // why nothing is balanced
}

// New begins at the time now (ns): every delay and rest starts again with a new chair.
func New(now int64, p Policy) *Balancer {
	return &Balancer{policy: p.withDefaults(), start: now, luns: map[string]*memory{}}
}

// SetPolicy replaces the policy. What is remembered of LUNs stays.
func (b *Balancer) SetPolicy(p Policy) { b.policy = p.withDefaults() }

// Calm says why nothing is balanced at present; empty if work is what decides.
func (b *Balancer) Calm() string { return b.text }

// Decide returns the moves that are due. The caller makes those that are not Dry, and reports each
// that was made with Moved; one that was not made is decided again.
func (b *Balancer) Decide(v *View) []Move {
	b.observe(v)
	var moves []Move
	for i := range v.LUNs {
		l := &v.LUNs[i]
		if mv, ok := b.rule(v, l); ok {
			moves = append(moves, b.dry(mv))
		}
	}
	if len(moves) > 0 {
		// Work is evened once every LUN is where connectivity and home want it.
		b.text = fmt.Sprintf("%d LUNs move for other reasons first", len(moves))
		return moves
	}
	for _, mv := range b.even(v) {
		moves = append(moves, b.dry(mv))
	}
	return moves
}

func (b *Balancer) dry(m Move) Move {
	m.Dry = b.policy.Mode != Auto && m.Reason != ReasonPin && m.Reason != ReasonDrain
	return m
}

// rule applies the reasons before balance to one LUN.
func (b *Balancer) rule(v *View, l *LUN) (Move, bool) {
	to := l.Owner.Peer()
	if l.Owner == None || !eligible(v, to) {
		return Move{}, false
	}
	mv := Move{LUN: l.ID, From: l.Owner, To: to}
	m := b.luns[l.ID]
	switch {
	case v.Nodes[l.Owner].Drained:
		mv.Reason, mv.Text = ReasonDrain, fmt.Sprintf("node %s is drained", l.Owner)
		return mv, true
	case l.Pin == to && !v.Nodes[to].Crashed:
		mv.Reason, mv.Text, mv.SetsHome = ReasonPin, fmt.Sprintf("an administrator pinned the LUN to node %s", to), true
		return mv, true
	case l.Pin == l.Owner || b.policy.Mode == Off || m.spent(v.Now):
		return Move{}, false
	}
	if b.connectivity(v, l, m, &mv) {
		return mv, true
	}
	if m.resting(v.Now) || v.Now < l.Held || v.Nodes[to].Crashed {
		return Move{}, false
	}
	return mv, b.failBack(v, l, m, &mv)
}

// eligible reports whether LUNs may be moved to a node at all.
func eligible(v *View, n Node) bool { return n != None && v.Nodes[n].Member && !v.Nodes[n].Drained }

// failBack sends a LUN home. Home has to have been a member for a while, and the hosts have to have
// shown for as long that they can use it: what has just come back may go again. A LUN that is away
// because its consumer has moved does not wait for that: nothing has failed.
func (b *Balancer) failBack(v *View, l *LUN, m *memory, mv *Move) bool {
	delay := int64(b.policy.FailBackDelay)
	if l.Home == None || l.Home == l.Owner || v.Now-max(v.Nodes[l.Home].Since, b.start) < delay {
		return false
	}
	near := l.Near == l.Home && m.homeAt > m.ownerAt
	if near {
		delay = min(delay, int64(lossTime))
	}
	unseen := l.idle() && len(l.Hosts) == 0
	if unseen && !near && b.othersAway(v, l) {
		return false // it goes home last: nothing shows whether a host could follow
	}
	for i := range l.Hosts {
		h := &l.Hosts[i]
		if (h.Active || l.idle()) && !(m.usable(h, l.Home, v.Now) && v.Now-max(h.Since[l.Home], b.start) >= delay) {
			return b.probe(v, l, m, mv)
		}
	}
	mv.Reason = ReasonFailBack
	switch {
	case near:
		mv.Reason, mv.Text = ReasonNearness, fmt.Sprintf("the only host of the LUN has its %s in common with node %s", l.NearBy, l.Home)
	case unseen:
		mv.Text = fmt.Sprintf("node %s is back and every other LUN is at home", l.Home)
	default:
		mv.Text = fmt.Sprintf("node %s, where the LUN belongs, is back and the hosts of the LUN can use it", l.Home)
	}
	return true
}

// probeAfter is how long hosts may be logged in at the node of a LUN's home, and show nothing,
// before one idle LUN is sent home to find out.
const probeAfter = time.Hour

// probe sends one idle LUN home whose hosts are logged in there and have shown nothing for an hour.
func (b *Balancer) probe(v *View, l *LUN, m *memory, mv *Move) bool {
	if !l.idle() || v.Now-m.awayAt < int64(probeAfter) || v.Now-b.start < int64(probeAfter) {
		return false
	}
	for i := range l.Hosts {
		if !l.Hosts[i].Session[l.Home] {
			return false
		}
	}
	if b.probes > 0 {
		return false
	}
	b.probes++
	mv.Reason = ReasonProbe
	mv.Text = fmt.Sprintf("the hosts have been logged in at node %s for an hour and have shown no use of it: one idle LUN goes home to find out", l.Home)
	return true
}

// othersAway reports whether a LUN with hosts is still away from home.
func (b *Balancer) othersAway(v *View, l *LUN) bool {
	for i := range v.LUNs {
		o := &v.LUNs[i]
		if o.ID != l.ID && len(o.Hosts) > 0 && o.Home == l.Home && o.Owner != o.Home && o.Pin == None {
			return true
		}
	}
	return false
}

// idle reports whether no host uses the LUN at present.
func (l *LUN) idle() bool {
	for i := range l.Hosts {
		if l.Hosts[i].Active {
			return false
		}
	}
	return true
}
