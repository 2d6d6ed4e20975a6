package kernel

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gemel-storage/gemel/csi/attach"
)

// The volumes of a target share the sessions to its portals. There are as many as the volume needs
// that needs most, and each volume uses the oldest ones: its paths do not multiply because another
// volume needs more.

// needed is how many sessions to a portal the attachments need; 0: none of them has the portal.
func (g goal) needed(portal netip.AddrPort) (n int) {
	if !g.absent && slices.Contains(g.portals, portal) {
		n = g.count()
	}
	for _, o := range g.others {
		if o.target == g.target && slices.Contains(o.portals, portal) {
			n = max(n, o.count())
		}
	}
	return n
}

// sessionsTo are those to a portal that the LUN uses, connected or not.
func (u unit) sessionsTo(portal netip.AddrPort, o *observed) []session {
	all := o.to(u.target, portal)
	return all[:min(len(all), u.count())]
}

// sessions that the LUN uses, connected or not.
func (u unit) sessions(o *observed) (out []session) {
	for _, portal := range u.portals {
		out = append(out, u.sessionsTo(portal, o)...)
	}
	return out
}

// lacks tells whether there are fewer sessions to a portal than the LUN is to use.
func (u unit) lacks(portal netip.AddrPort, o *observed) bool {
	return len(u.sessionsTo(portal, o)) < u.count()
}

// planSessions: to every portal as many sessions of ours as are needed, none to any other portal.
// One that has lost its connection is there: iscsid gets it back.
func planSessions(g goal, o *observed, p progress) (steps []step, err error) {
	for _, portal := range g.portals {
		have, need := o.to(g.target, portal), g.needed(portal)
		for _, s := range have {
			if s.initiator == g.initiator {
				continue
			}
			// Under another name, from before this one was made: no LUN is mapped to that any more.
			if o.carries(s) {
				return nil, fmt.Errorf("%w: session %d to %s has the initiator name %s and is in use", attach.ErrBusy, s.sid, portal, s.initiator)
			}
			return []step{{do: doLogout, session: s}}, nil
		}
		for _, s := range have {
			// One at a time: the next may be the last path by then, and if this one is refused, the
			// next would be as well.
			if out := (step{do: doLogout, session: s}); g.relogs(s) && len(have) >= need && !o.carries(s) && p.done(out) == 0 {
				return append(steps, out), nil
			}
		}
		n := nodeRecord{initiator: g.initiator, target: g.target, portal: portal, auth: g.auth, mutual: g.mutual, sessions: need}
		file := o.node(g.target, portal)
		lost := file == nil && g.noSecrets && !g.chapKnown
		write, set := step{do: doNode, node: n}, step{do: doCount, node: n}
		switch {
		case lost:
		case file == nil || g.chapKnown && file.sum != sum(n.render()):
			if p.done(write) == 0 {
				steps = append(steps, write)
			}
		case file.sessions != need && p.done(set) == 0:
			steps = append(steps, set)
		}
		if len(have) < need && p.failed[portal] == nil && !lost {
			steps = append(steps, step{do: doLogin, node: n, sessions: have})
		}
	}
	if i := (step{do: doIface, node: nodeRecord{initiator: g.initiator}}); o.iface != sum(renderIface(g.initiator)) && p.done(i) == 0 {
		steps = append([]step{i}, steps...)
	}
	return append(steps, strays(g, o, p)...), nil
}

// relogs tells whether a session is to be made again.
func (g goal) relogs(s session) bool { return !s.connected && slices.Contains(g.relog, s.sid) }

// strays are sessions and records of the target that no attachment needs: those for portals that
// none has, and sessions beyond what the attachments need of a portal.
func strays(g goal, o *observed, p progress) (steps []step) {
	one := false
	for _, s := range o.sessions {
		if !s.ours() || s.target != g.target {
			continue
		}
		need := g.needed(s.portal)
		before := slices.IndexFunc(o.to(s.target, s.portal), func(x session) bool { return x.sid == s.sid })
		switch {
		case before < need:
		case o.idle(s):
			steps = append(steps, step{do: doLogout, session: s})
		// Its paths go first where the portal is used. Else one at a time: two sessions can have
		// the last two paths of a map.
		case need == 0 && !one && !o.carries(s):
			steps, one = append(steps, step{do: doLogout, session: s}), true
		}
	}
	for _, n := range o.nodes {
		if n.target != g.target {
			continue
		}
		record := nodeRecord{target: n.target, portal: n.portal, sessions: g.needed(n.portal)}
		set := step{do: doCount, node: record}
		switch {
		case record.sessions == 0:
			steps = append(steps, step{do: doDropNode, node: record})
		case !g.absent && slices.Contains(g.portals, n.portal): // planSessions
		case n.sessions != record.sessions && p.done(set) == 0:
			steps = append(steps, set)
		}
	}
	return steps
}
