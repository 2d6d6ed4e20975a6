package node

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/work"
)

// looker makes the view of package balance out of what both nodes report.
type looker struct {
	since   int64 // both nodes have been members since then, as this chair knows
	at      int64 // of the last look
	hosts   map[string]*[2]hostSeen
	traffic map[string]map[string]*traffic // by LUN and host
	process [2]uint64                      // of each node, at the last look

	pause     float64 // seconds for which a move holds commands, as it was lately
	disturbed int64   // when work was last not what it usually is
	drained   bool    // at the last look

	choice    work.Choice
	resources []work.Resource // at the last look
}

type hostSeen struct {
	session, uses bool
	since         int64 // when uses last changed
}

// traffic of a host and a LUN, decaying over the slow window, by the node at which it came in.
type traffic struct {
	owner      string
	bytes, ops [2]uint64 // at the last look
	known      [2]bool   // the last look had them
	avg, avgOp [2]float64
}

// What a command is taken to cost, in seconds of a node: only how much of a LUN's work is forwarded
// is judged by it.
const (
	opWork   = 25e-6
	byteWork = 0.3e-9
)

// nearGain is the part of a LUN's work that is taken to be saved while its owner is near its
// consumer: less of it crosses the network. It decides between moves that even work alike, and
// does not move a LUN alone.
var nearGain = map[string]float64{meta.NearWorker: 0.1, meta.NearZone: 0.05, meta.NearRegion: 0.02}

// look takes the state of the metadata and both reports. seqs are the numbers of the ownership that
// the view has.
func (k *looker) look(now int64, luns []*meta.LUN, drain *meta.Drain, reports [2]useReport) (v *balance.View, seqs map[string]uint64) {
	stands := drain.Stands(time.Now())
	if stands != k.drained || reports[0].Work.Background || reports[1].Work.Background {
		k.disturbed, k.drained = now, stands
	}
	k.resources = work.Resources([2]work.Report{reports[0].Work, reports[1].Work}, places(luns))
	chosen, other := k.choice.Choose(now, k.resources)
	if other { // what is remembered of the work of LUNs is of another resource
		k.disturbed = now
	}
	v, seqs = &balance.View{Now: now, Disturbed: k.disturbed, Disk: k.resources[chosen].Volume}, make(map[string]uint64, len(luns))
	use, shares := k.resources[chosen].Use, k.resources[chosen].LUNs
	for i := range v.Nodes {
		node := &v.Nodes[i]
		node.Member, node.Since, node.Use, node.Crashed = true, k.since, use[i], reports[i].Crashed
		node.Drained = stands && drain.Node == balance.Node(i).String()
	}
	k.seeHosts(now, reports)
	k.seeTraffic(now, luns, reports)
	for _, l := range luns {
		if l.Stage != meta.Ready {
			continue
		}
		seqs[l.UUID] = l.Seq
		consumer := l.Consumer()
		u := balance.LUN{ID: l.UUID, Owner: nodeOf(l.Owner), Home: nodeOf(l.Preferred), Pin: nodeOf(l.Pin), Near: nodeOf(consumer.Node), NearBy: consumer.By,
			Group: l.Group, Volume: l.Volume, Pause: k.pause}
		s := shares[l.UUID]
		u.Fast, u.Slow, u.Cold = s.Fast, s.Slow, min(k.resources[0].LUNs[l.UUID].Cold, float64(l.Size)/work.ColdRate)
		if v.Disk == "" { // being near saves the time of no disk
			u.NearGain = s.Slow * nearGain[consumer.By]
		}
		if to := u.Owner.Peer(); to != balance.None {
			u.Crowds = work.Crowds(k.resources, chosen, l.UUID, int(to))
		}
		if h := l.Held(time.Now()); h != nil {
			u.Held = now + int64(time.Until(h.Until))
		}
		for host := range l.Maps {
			if s := k.hosts[host]; s != nil {
				u.Hosts = append(u.Hosts, k.host(l, host, s))
			}
		}
		slices.SortFunc(u.Hosts, func(x, y balance.Host) int { return cmp.Compare(x.Name, y.Name) })
		v.LUNs = append(v.LUNs, u)
	}
	k.at = now
	return v, seqs
}

func nodeOf(name string) balance.Node {
	switch name {
	case "a":
		return balance.A
	case "b":
		return balance.B
	}
	return balance.None
}

// places finds the owner and the backing volume of a LUN by its uuid.
func places(luns []*meta.LUN) work.Place {
	at := make(map[string]*meta.LUN, len(luns))
	for _, l := range luns {
		at[l.UUID] = l
	}
	return func(id string) (owner int, volume string, ok bool) {
		l := at[id]
		if l == nil || nodeOf(l.Owner) == balance.None {
			return 0, "", false
		}
		return int(nodeOf(l.Owner)), meta.VolumeName(l.Volume), true
	}
}

func (k *looker) host(l *meta.LUN, name string, s *[2]hostSeen) balance.Host {
	h := balance.Host{Name: name}
	for i := range s {
		h.Session[i], h.CanUse[i], h.Since[i] = s[i].session, s[i].uses, s[i].since
	}
	t := k.traffic[l.UUID][name]
	if t == nil {
		return h
	}
	h.Active = true
	all := t.avg[0] + t.avg[1]
	if other := nodeOf(l.Owner).Peer(); other != balance.None && all > 0 {
		h.Other = t.avg[other] / all
	}
	h.Work = (all*byteWork + (t.avgOp[0]+t.avgOp[1])*opWork) / balance.SlowWindow.Seconds()
	return h
}

// seeHosts notes since when each host can use each node.
func (k *looker) seeHosts(now int64, reports [2]useReport) {
	if k.hosts == nil {
		k.hosts = map[string]*[2]hostSeen{}
	}
	for i := range reports {
		for name := range reports[i].Hosts {
			if k.hosts[name] == nil {
				k.hosts[name] = &[2]hostSeen{{since: now}, {since: now}}
			}
		}
	}
	for name, s := range k.hosts {
		for i := range s {
			u, session := reports[i].Hosts[name]
			switch {
			case u.Uses: // a session that was replaced between two looks has shown it again since
				s[i].since = max(now-int64(u.For), 0)
			case s[i].uses:
				s[i].since = now
			}
			s[i].session, s[i].uses = session, u.Uses
		}
		if !s[0].session && !s[1].session {
			delete(k.hosts, name)
		}
	}
}

// seeTraffic brings the averages up to date. Those of a LUN that has moved begin again: what came
// to the other node before says nothing about the present owner.
func (k *looker) seeTraffic(now int64, luns []*meta.LUN, reports [2]useReport) {
	decay := math.Exp(-float64(now-k.at) / float64(balance.SlowWindow))
	next := map[string]map[string]*traffic{}
	for _, l := range luns {
		hosts := map[string]*traffic{}
		for i := range reports {
			for host := range reports[i].LUNs[l.UUID] {
				if hosts[host] != nil {
					continue // both nodes know of it
				}
				t := k.traffic[l.UUID][host]
				if t == nil || t.owner != l.Owner {
					t = &traffic{owner: l.Owner}
				}
				for j := range reports {
					u, ok := reports[j].LUNs[l.UUID][host]
					t.add(j, u, ok, ok && t.known[j] && reports[j].Process == k.process[j], decay)
				}
				hosts[host] = t
			}
		}
		if len(hosts) > 0 {
			next[l.UUID] = hosts
		}
	}
	k.traffic = next
	for i := range reports {
		k.process[i] = reports[i].Process
	}
}

// add takes what a node has counted. What it counted before this chair first heard of it is not
// known to be recent.
func (t *traffic) add(node int, u lunUse, known, counts bool, decay float64) {
	t.avg[node] *= decay
	t.avgOp[node] *= decay
	if counts && u.Bytes >= t.bytes[node] && u.Ops >= t.ops[node] {
		t.avg[node] += float64(u.Bytes - t.bytes[node])
		t.avgOp[node] += float64(u.Ops - t.ops[node])
	}
	t.bytes[node], t.ops[node], t.known[node] = u.Bytes, u.Ops, known
}

// belongs is the node that a LUN is to be owned by: where it is pinned, else its home.
func belongs(l *balance.LUN) balance.Node {
	if l.Pin != balance.None {
		return l.Pin
	}
	return l.Home
}

// whyAway counts the LUNs that are not where they belong, and says what the first of them waits
// for. The text is the same for as long as that is the same: what shows it does not change every
// second.
func whyAway(v *balance.View, p balance.Policy, d *meta.Drain) (away int, why string) {
	for i := range v.LUNs {
		l := &v.LUNs[i]
		if at := belongs(l); at == balance.None || at == l.Owner {
			continue
		}
		if away++; away == 1 {
			why = waitsFor(v, l, p, d)
		}
	}
	return away, why
}

func waitsFor(v *balance.View, l *balance.LUN, p balance.Policy, d *meta.Drain) string {
	delay := p.Delay()
	switch home := belongs(l); {
	case v.Nodes[home].Drained:
		return fmt.Sprintf("node %s is drained until %s: %s", home, d.Until.UTC().Format(time.RFC3339), d.Reason)
	case l.Pin != balance.None:
		return fmt.Sprintf("LUN %s is pinned to node %s and about to move there", l.ID, home)
	case p.Mode == balance.Off:
		return "balancing is off: no LUN moves by itself"
	case p.Mode == balance.Observe:
		return "balancing only observes: no LUN moves by itself"
	case v.Now < l.Held:
		until := time.Now().Add(time.Duration(l.Held - v.Now)).Round(time.Second) // that of the hold, which has whole seconds
		return fmt.Sprintf("LUN %s is held until %s by a person's transfer", l.ID, until.UTC().Format(time.RFC3339))
	case time.Duration(v.Now-v.Nodes[home].Since) < delay:
		return fmt.Sprintf("node %s is in sync again, and has to be for %v", home, delay)
	default:
		for i := range l.Hosts {
			switch h := &l.Hosts[i]; {
			case !h.Session[home]:
				return fmt.Sprintf("LUN %s: host %s is not logged in at node %s", l.ID, h.Name, home)
			case !h.CanUse[home]:
				return fmt.Sprintf("LUN %s: host %s is logged in at node %s, and has not used that path since", l.ID, h.Name, home)
			case time.Duration(v.Now-h.Since[home]) < delay:
				return fmt.Sprintf("LUN %s: host %s can use node %s again, and has to for %v", l.ID, h.Name, home, delay)
			}
		}
		return fmt.Sprintf("LUN %s rests after its last move, or is about to move", l.ID)
	}
}
