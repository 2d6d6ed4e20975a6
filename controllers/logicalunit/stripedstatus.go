package logicalunit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// setStripedStatus sums up the legs. Size, hosts and generation are what the CSI driver relies on.
func (p *pass) setStripedStatus(s *v1alpha1.LogicalUnitStatus) {
	if len(p.legs) == 0 || slices.Contains(p.legs, nil) {
		return // as it was: nothing can be said of hosts either
	}
	s.Hosts = p.stripedHosts()
	if p.legs.current() {
		s.ObservedGeneration = p.lu.Generation
	}
	least, allocated, known, owners := int64(-1), int64(0), true, map[string]int{}
	s.InSync, s.WriteCache, s.Tier = true, p.legs[0].Status.WriteCache, p.lu.Spec.Tier
	for _, l := range p.legs {
		if l.Status.Size == nil {
			known = false
			continue
		}
		if size := l.Status.Size.Value(); least < 0 || size < least {
			least = size
		}
		if l.Status.Allocated != nil {
			allocated += l.Status.Allocated.Value()
		}
		owners[l.Status.Owner]++
		s.InSync = s.InSync && l.Status.InSync
		if l.Status.WriteCache != s.WriteCache {
			s.WriteCache = "" // it is being changed
		}
		if l.Status.Tier != p.lu.Spec.Tier {
			s.Tier = l.Status.Tier // it is being changed
		}
	}
	if !known {
		return
	}
	s.Size = resource.NewQuantity(layoutOf(p.lu.Spec.Striped).Volume(least), resource.BinarySI)
	s.Allocated = resource.NewQuantity(allocated, resource.BinarySI)
	p.exists = fmt.Sprintf("the %d LUNs exist; owners: a: %d, b: %d", len(p.legs), owners["a"], owners["b"])
}

// current reports whether each leg has said what it is mapped to since its spec changed last.
func (l legs) current() bool {
	return !slices.ContainsFunc(l, func(l *v1alpha1.LogicalUnit) bool { return l.Status.ObservedGeneration != l.Generation })
}

// stripedHosts are the hosts of the volume: those that any leg has in its spec or is mapped to,
// because a host is fenced when no leg can be reached by it. While a leg has not said anything of
// its spec, what it is mapped to is not known, and hosts stay that were there. A host has legs when
// it can reach all of them.
func (p *pass) stripedHosts() (out []v1alpha1.HostMapping) {
	current, names := p.legs.current(), map[string]bool{}
	for _, l := range p.legs {
		for _, h := range l.Spec.Hosts {
			names[strings.ToLower(h.IQN)] = true
		}
		for _, h := range l.Status.Hosts {
			names[h.IQN] = true
		}
	}
	if !current {
		for _, h := range p.lu.Status.Hosts {
			names[h.IQN] = true
		}
	}
	for iqn := range names {
		if m, ok := p.stripedHost(iqn, current); ok {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.HostMapping) int { return strings.Compare(a.IQN, b.IQN) })
	return out
}

// stripedHost is the mapping of one host; not ok: no leg has ever been mapped to it.
func (p *pass) stripedHost(iqn string, current bool) (v1alpha1.HostMapping, bool) {
	var out v1alpha1.HostMapping
	var all []v1alpha1.LegMapping
	whole, any := current && p.lu.Spec.Host(iqn) != nil, false
	generations := map[string]int64{} // the highest, by target
	for _, l := range p.legs {
		m := l.Status.Host(iqn)
		if m == nil {
			whole = false
			continue
		}
		if !any {
			out, any = *m.DeepCopy(), true
		}
		whole = whole && m.ReadOnly == out.ReadOnly
		generations[m.TargetIQN] = max(generations[m.TargetIQN], m.Generation)
		out.ReadOnly = out.ReadOnly && m.ReadOnly // it may write as long as it may write to one leg
		out.CHAPUser = cmp.Or(out.CHAPUser, m.CHAPUser)
		leg := v1alpha1.LegMapping{LUN: m.LUN, WWID: l.Status.WWID}
		if m.TargetIQN != out.TargetIQN && l.Spec.Placement != nil {
			leg.Pair, leg.TargetIQN, leg.Portals = l.Spec.Placement.Pair, m.TargetIQN, slices.Clone(m.Portals)
		}
		all = append(all, leg)
	}
	// Each pair counts by itself. With the sum, whichever leg is published again, the volume has a
	// higher generation.
	out.Generation = 0
	for _, g := range generations {
		out.Generation += g
	}
	if old := p.lu.Status.Host(iqn); !any && old != nil && !current {
		out, any = *old.DeepCopy(), true
	}
	out.Legs = nil
	if whole && !slices.ContainsFunc(all, func(m v1alpha1.LegMapping) bool { return m.WWID == "" }) {
		out.Legs = all
	}
	return out, any
}
