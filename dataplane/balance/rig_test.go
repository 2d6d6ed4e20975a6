package balance

import (
	"testing"
	"time"
)

const sec = int64(time.Second)

// rig is a pair of members with LUNs that test functions change.
type rig struct {
	t *testing.T
	b *Balancer
	v View
}

// newRig has n LUNs, at their homes a and b in turn, each with one active host that can use both
// nodes.
func newRig(t *testing.T, p Policy, n int) *rig {
	t.Helper()
	r := &rig{t: t, b: New(0, p)}
	for k := range r.v.Nodes {
		r.v.Nodes[k] = NodeView{Member: true, Use: 0.1}
	}
	for i := range n {
		at := Node(i % 2)
		r.v.LUNs = append(r.v.LUNs, LUN{ID: string(rune('p' + i)), Owner: at, Home: at, Pin: None, Near: None,
			Hosts: []Host{{Name: "h" + string(rune('p'+i)), Active: true, Session: [2]bool{true, true}, CanUse: [2]bool{true, true}}}})
	}
	return r
}

// load sets the work of a LUN in both windows, and what the nodes use.
func (r *rig) load(i int, work float64) {
	r.v.LUNs[i].Fast, r.v.LUNs[i].Slow = work, work
	for k := range r.v.Nodes {
		r.v.Nodes[k].Use = 0.05
	}
	for i := range r.v.LUNs {
		r.v.Nodes[r.v.LUNs[i].Owner].Use += r.v.LUNs[i].Slow
	}
}

// reach sets whether a host of a LUN can use a node, from now on.
func (r *rig) reach(lun, host int, n Node, can bool) {
	h := &r.v.LUNs[lun].Hosts[host]
	h.CanUse[n], h.Session[n], h.Since[n] = can, can, r.v.Now
}

// pass lets time go by in steps of five seconds, makes the moves that come up, and returns them.
func (r *rig) pass(d time.Duration) (made []Move) {
	r.t.Helper()
	for end := r.v.Now + int64(d); r.v.Now < end; {
		r.v.Now += 5 * sec
		for _, m := range r.b.Decide(&r.v) {
			made = append(made, m)
			if !m.Dry {
				r.make(m)
			}
		}
	}
	return made
}

func (r *rig) make(m Move) {
	for i := range r.v.LUNs {
		l := &r.v.LUNs[i]
		if l.ID != m.LUN {
			continue
		}
		if l.Owner != m.From || !eligible(&r.v, m.To) {
			r.t.Fatalf("%+v of %+v", m, l)
		}
		if l.Owner = m.To; m.SetsHome {
			l.Home = m.To
		}
		r.load(i, l.Slow)
	}
	r.b.Moved(r.v.Now, m)
}

// one checks that exactly one move was made, for a reason.
func (r *rig) one(made []Move, lun string, to Node, reason Reason) {
	r.t.Helper()
	if len(made) != 1 || made[0].LUN != lun || made[0].To != to || made[0].Reason != reason || made[0].Text == "" {
		r.t.Fatalf("want %s to %s for %s: %+v", lun, to, reason, made)
	}
}

func (r *rig) none(made []Move) {
	r.t.Helper()
	if len(made) > 0 {
		r.t.Fatalf("%+v", made)
	}
}
