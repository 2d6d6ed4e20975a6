package balancesim

import (
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
)

// gate and moveWork as balance has them: below the gate imbalance costs nothing.
const (
	gate     = 0.4
	moveWork = 0.2
)

// Result is how one policy did in one history.
type Result struct {
	Cost      float64 // seconds of work: of the busier node over time, and of moves
	Moves     int
	Balances  int     // of them to even work
	PerHour   int     // the most moves of one LUN in an hour
	Pins      int     // steps at which a LUN was not where its pin says
	Spread    int     // moves that left a group less spread than it may be
	Forwarded float64 // share of the work that hosts could not bring to the owner
}

// policy decides on moves of a view.
type policy interface {
	decide(v *balance.View) []balance.Move
	moved(now int64, m balance.Move)
	chair(now int64)
}

// play runs a policy through a history.
func play(h *History, p policy) Result {
	n := len(h.luns)
	owner, home := append([]balance.Node(nil), h.start...), make([]balance.Node, n)
	for i := range home {
		home[i] = h.luns[i].home
	}
	var res Result
	var when = make([][]int64, n)
	fast, slow := newWindows(n, fastLen), newWindows(n, slowLen)
	disturbed, chair := int64(0), 0
	var all, forwarded float64
	v := &balance.View{LUNs: make([]balance.LUN, n)}
	p.chair(0)
	for t := range steps {
		now := int64(t+1) * int64(Step)
		if chair < len(h.chairs) && h.chairs[chair] == t {
			chair++
			disturbed = now
			p.chair(now)
		}
		var node [2]float64
		node[0], node[1] = h.base[0], h.base[1]
		for i := range n {
			x := float64(h.load[i][t])
			fast.add(i, x)
			slow.add(i, x)
			node[owner[i]] += x
			all += x
			for _, o := range h.luns[i].hosts {
				if ok, _ := o.link(owner[i], now); !ok {
					forwarded += x * o.share
				}
			}
		}
		res.Cost += busier(node) * Step.Seconds()
		h.view(v, now, owner, home, fast, slow, disturbed)
		decided := p.decide(v)
		before := h.spread(owner)
		for _, m := range decided {
			i := index(h, m.LUN)
			if m.Dry || i < 0 || owner[i] == m.To {
				continue
			}
			owner[i] = m.To
			if m.SetsHome {
				home[i] = m.To
			}
			p.moved(now, m)
			res.Moves++
			if m.Reason == balance.ReasonBalance {
				res.Balances++
			}
			res.Cost += h.moveCost(i, t)
			when[i] = append(when[i], now)
			res.PerHour = max(res.PerHour, lastHour(when[i]))
		}
		// Two members of a group may change places: the group is judged once both have moved.
		for group, d := range h.spread(owner) {
			if d > 1 && d > before[group] {
				res.Spread++
			}
		}
		for i := range n {
			if pin := h.luns[i].pin; pin != balance.None && owner[i] != pin {
				res.Pins++
			}
		}
	}
	res.Forwarded = forwarded / max(all, 1e-9)
	return res
}

// busier is the load of the busier node; below the gate, what it would be if work were even.
func busier(node [2]float64) float64 {
	if top := max(node[0], node[1]); top > gate {
		return top
	}
	return (node[0] + node[1]) / 2
}

func (h *History) moveCost(i, t int) float64 {
	return moveWork + h.luns[i].pause*float64(h.load[i][t]) + h.luns[i].cold
}

func index(h *History, id string) int {
	for i := range h.luns {
		if h.luns[i].id == id {
			return i
		}
	}
	return -1
}

// apart is by how many members the nodes differ in a group.
func (h *History) apart(owner []balance.Node, group string) int {
	d := 0
	if group == "" {
		return 0
	}
	for i := range h.luns {
		if h.luns[i].group == group {
			d += 1 - 2*int(owner[i])
		}
	}
	return max(d, -d)
}

// spread is apart of every group.
func (h *History) spread(owner []balance.Node) map[string]int {
	out := map[string]int{}
	for i := range h.luns {
		if g := h.luns[i].group; g != "" {
			out[g] = h.apart(owner, g)
		}
	}
	return out
}

func lastHour(when []int64) int {
	n := 0
	for i := len(when) - 1; i >= 0 && when[len(when)-1]-when[i] < int64(time.Hour); i-- {
		n++
	}
	return n
}

func (h *History) view(v *balance.View, now int64, owner, home []balance.Node, fast, slow *windows, disturbed int64) {
	v.Now, v.Disturbed = now, disturbed
	use := h.base
	for i := range h.luns {
		use[owner[i]] += slow.mean(i)
	}
	for k := range v.Nodes {
		v.Nodes[k] = balance.NodeView{Member: true, Use: use[k]}
	}
	for i := range h.luns {
		l := &h.luns[i]
		hosts := v.LUNs[i].Hosts[:0]
		for _, o := range l.hosts {
			x := balance.Host{Name: o.name, Active: o.active, Work: slow.mean(i) * o.share}
			for k := range 2 {
				x.CanUse[k], x.Since[k] = o.link(balance.Node(k), now)
				x.Session[k] = x.CanUse[k]
			}
			hosts = append(hosts, x)
		}
		v.LUNs[i] = balance.LUN{ID: l.id, Owner: owner[i], Home: home[i], Pin: l.pin, Near: balance.None, Group: l.group,
			Fast: fast.mean(i), Slow: slow.mean(i), Pause: l.pause, Cold: l.cold, Hosts: hosts}
	}
}

// windows are moving averages.
type windows struct {
	ring [][]float64
	sum  []float64
	at   []int
	n    []int
}

func newWindows(n, length int) *windows {
	w := &windows{sum: make([]float64, n), at: make([]int, n), n: make([]int, n)}
	for range n {
		w.ring = append(w.ring, make([]float64, length))
	}
	return w
}

func (w *windows) add(i int, x float64) {
	r := w.ring[i]
	w.sum[i] += x - r[w.at[i]]
	r[w.at[i]] = x
	w.at[i] = (w.at[i] + 1) % len(r)
	w.n[i] = min(w.n[i]+1, len(r))
}

func (w *windows) mean(i int) float64 { return max(w.sum[i], 0) / float64(max(w.n[i], 1)) }
