package balance

import (
	"fmt"
	"time"
)

const (
	// unusedShare of a host's bytes over the other node, for a slow window, shows that the host
	// does not use the owner's path although it could: an MTU black hole, or a wrong
	// multipath.conf.
	unusedShare = 0.9
	// unusedFor is how long such a path counts as unusable before it is tried again.
	unusedFor = time.Hour
	// forwardCost is the work of forwarding a command, as a share of the work of the command.
	forwardCost = 0.5
)

// usable reports whether a host can use a node, as far as is known.
func (m *memory) usable(h *Host, n Node, now int64) bool {
	if u := m.unused[h.Name]; u != nil && now < u[n] {
		return false
	}
	return h.CanUse[n]
}

// observeHosts notes hosts that do not use a path that they can use.
func (b *Balancer) observeHosts(v *View, l *LUN, m *memory) {
	for i := range l.Hosts {
		h := &l.Hosts[i]
		if l.Owner == None || !h.Active || !h.CanUse[l.Owner] || !h.CanUse[l.Owner.Peer()] || h.Other <= unusedShare {
			continue
		}
		// The window has to lie behind everything that hosts may take to follow.
		if v.Now-max(m.ownerAt, h.Since[l.Owner], h.Since[l.Owner.Peer()], b.start) < int64(SlowWindow+FollowTime) {
			continue
		}
		if m.unused == nil {
			m.unused = map[string]*[2]int64{}
		}
		if m.unused[h.Name] == nil {
			m.unused[h.Name] = new([2]int64)
		}
		if u := m.unused[h.Name]; u[l.Owner] <= v.Now {
			u[l.Owner] = v.Now + int64(unusedFor)
		}
	}
}

// connectivity follows hosts that can use only the other node.
func (b *Balancer) connectivity(v *View, l *LUN, m *memory, mv *Move) bool {
	voters, lost, unused := 0, 0, ""
	here, there := 0.0, 0.0 // work that is forwarded with the LUN at its owner, and at the other node
	since := b.start
	for i := range l.Hosts {
		h := &l.Hosts[i]
		if !h.Active {
			continue
		}
		voters++
		useHere, useThere := m.usable(h, l.Owner, v.Now), m.usable(h, mv.To, v.Now)
		if !useHere {
			here += h.Work
			since = max(since, h.Since[l.Owner])
		}
		if !useThere {
			there += h.Work
		}
		if !useHere && useThere {
			if h.CanUse[l.Owner] {
				unused = h.Name
				lost++
			} else if v.Now-h.Since[l.Owner] >= int64(lossTime) && v.Now-h.Since[mv.To] >= int64(lossTime) {
				lost++
			}
		}
	}
	switch {
	case voters == 0:
		return false
	case lost == voters && unused != "":
		if m.resting(v.Now) {
			return false
		}
		mv.Reason = ReasonUnusedPath
		mv.Text = fmt.Sprintf("host %s can use node %s but sends more than %.0f %% of its bytes over node %s: check its multipath.conf and the MTU of its path", unused, l.Owner, unusedShare*100, mv.To)
		return true
	case lost == voters:
		mv.Reason = ReasonConnectivity
		mv.Text = fmt.Sprintf("all %d active hosts can use only node %s", voters, mv.To)
		return true
	case m.resting(v.Now) || v.Now < l.Held || v.Now-m.ownerAt < int64(SlowWindow) || here == 0 || there > here/2:
		return false // what is forwarded is judged over a whole slow window
	}
	held := time.Duration(v.Now - since)
	mv.Gain = (here - there) * forwardCost * min(held, persistMax).Seconds()
	mv.Cost = l.cost()
	if held < FollowTime || mv.Gain < b.policy.ROI*mv.Cost {
		return false
	}
	mv.Reason = ReasonConnectivity
	mv.Text = fmt.Sprintf("hosts disagree: forwarded work falls from %.3f to %.3f of a node", here, there)
	return true
}

// reaches reports whether a move to a node leaves no active host worse off; of an idle LUN, no host
// that is logged in.
func (m *memory) reaches(l *LUN, to Node, now int64) bool {
	for i := range l.Hosts {
		h := &l.Hosts[i]
		if (h.Active || l.idle()) && !m.usable(h, to, now) && m.usable(h, to.Peer(), now) {
			return false
		}
	}
	return true
}
