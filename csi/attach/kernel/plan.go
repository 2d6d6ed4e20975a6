package kernel

import (
	"fmt"
	"net/netip"
	"slices"
)

// goal is what a call wants of one attachment.
type goal struct {
	unit
	absent bool
	// force, with absent: users of the device are cut off instead of being respected. For an
	// attachment whose LUN was fenced off: nothing above it can be saved any more, and not one more
	// byte of it may be sent.
	force  bool
	keep   bool // with absent: the record stays
	fresh  bool // nothing that is found was made by this attachment: it is looked at again before it is believed
	resize bool // read the capacity again
	others []unit
	// heal: no call has requested it. What a call would force, wait for or refuse is left alone.
	heal bool
	// relog are the numbers of sessions that are made again if they have no connection: iscsid logs
	// in again with what it was given first.
	relog []int
	// regroup has multipathd group the paths of these maps again: paths of both nodes were in one
	// group for a while, or those of one node in two.
	regroup map[naa]bool
	// noSecrets: the sessions authenticate, and the secrets are not known here. Without its node
	// record, a portal is not logged in to.
	noSecrets bool
}

// each has a goal for each LUN of the attachment, in their order: the goal itself, unless it is
// striped.
func (g goal) each() []goal {
	units := g.unit.each()
	out := make([]goal, len(units))
	for i, u := range units {
		out[i] = g
		out[i].unit = u
	}
	return out
}

// byTarget has a goal for each target of the attachment: the goal itself, unless there are several.
// They are about sessions, and have no LUNs.
func (g goal) byTarget() []goal {
	if len(g.further) == 0 {
		return []goal{g}
	}
	var out []goal
	for _, e := range g.endpoints() {
		t := g
		t.endpoint, t.further, t.legs, t.stripe = e, nil, nil, 0
		out = append(out, t)
	}
	return out
}

// taken tells whether another attachment has the LUN's address by now.
func (g goal) taken() bool {
	return slices.ContainsFunc(g.others, func(u unit) bool { return u.target == g.target && u.lun == g.lun })
}

// verb is one step.
type verb string

const (
	doIface    verb = "write the iSCSI interface record"
	doNode     verb = "write the node record"
	doCount    verb = "set the number of sessions in the node record"
	doLogin    verb = "log in"
	doLogout   verb = "log out"
	doDropNode verb = "remove the node record"

	doAwaitSession verb = "wait until a session has its connection back"
	doClaim        verb = "let multipath claim the LUN"
	doScan         verb = "scan the LUN"
	doDelete       verb = "remove the path"
	doRescan       verb = "scan the path again"
	doIdentify     verb = "ask the path which LUN it is"
	doAwaitMap     verb = "wait for the multipath map"
	doMakeMap      verb = "have multipathd make the map"
	doAddPath      verb = "have multipathd add the path"
	doResume       verb = "resume the map"
	doResizeMap    verb = "resize the map"
	doRegroup      verb = "have multipathd group the paths again"
	doFlush        verb = "flush and remove the map"
	doFail         verb = "make the map fail I/O that no path can serve"
	doUnmount      verb = "unmount the filesystems on the map"
	doWipe         verb = "cut the map off"
	doRemove       verb = "remove the map"
	doUnclaim      verb = "let multipath forget the LUN"

	doMakeStripes verb = "make the striped map"
	doGrowStripes verb = "grow the striped map"
	doDropStripes verb = "remove the striped map"
)

// onSessions tells the steps that concern what attachments share. They are planned and taken under
// the target's lock.
func (v verb) onSessions() bool {
	switch v {
	case doIface, doNode, doCount, doLogin, doLogout, doDropNode:
		return true
	}
	return false
}

// step has the fields that its verb needs.
type step struct {
	do      verb
	node    nodeRecord // doIface, doNode, doCount, doLogin, doDropNode
	session session    // doLogout
	at      hctl       // doScan
	disk    disk       // doDelete, doRescan, doIdentify, doAddPath
	dm      dmMap      // doResume ... doRemove
	id      naa        // doClaim ... doUnclaim
	paths   int        // doAwaitMap: how many it should have

	volume   string    // doMakeStripes
	table    string    // doMakeStripes, doGrowStripes
	sessions []session // doAwaitSession: any of them; doLogin: those that are there
}

func (s step) String() string {
	switch s.do {
	case doCount:
		return fmt.Sprintf("%s: %d, %s", s.do, s.node.sessions, s.node)
	case doNode, doLogin, doDropNode:
		return fmt.Sprintf("%s: %s", s.do, s.node)
	case doLogout:
		return fmt.Sprintf("%s: session %d, %s at %s", s.do, s.session.sid, s.session.target, s.session.portal)
	case doScan:
		return fmt.Sprintf("%s %s", s.do, s.at)
	case doDelete, doRescan, doIdentify, doAddPath:
		return fmt.Sprintf("%s %s (%s)", s.do, s.disk.at, s.disk.name)
	case doMakeStripes:
		return fmt.Sprintf("%s of %s (%s)", s.do, s.volume, s.table)
	case doResume, doResizeMap, doRegroup, doFlush, doFail, doUnmount, doWipe, doRemove, doGrowStripes, doDropStripes:
		return fmt.Sprintf("%s %s (%s)", s.do, s.dm.kernel, s.dm.name)
	case doClaim, doUnclaim, doAwaitMap, doMakeMap, doAwaitSession:
		return fmt.Sprintf("%s %s", s.do, s.id)
	}
	return string(s.do)
}

// key tells steps apart for progress.
type key struct {
	do     verb
	portal netip.AddrPort
	at     hctl
	id     naa // of a map; none: of the striped one
	sid    int // of the session; of a login: of the newest one that is there
}

func (s step) key() key {
	k := key{do: s.do, portal: s.node.portal, at: s.at, id: s.id}
	switch s.do {
	case doResume, doResizeMap, doRegroup, doFlush, doFail, doUnmount, doWipe, doRemove:
		k.id = s.dm.id
	case doDelete, doRescan, doIdentify, doAddPath:
		k.at = s.disk.at
	case doLogout:
		k.portal, k.sid = s.session.portal, s.session.sid
	case doLogin:
		for _, have := range s.sessions {
			k.sid = max(k.sid, have.sid)
		}
	case doAwaitSession: // which all LUNs of a target wait for
		k.id = naa{}
		if len(s.sessions) > 0 {
			k.portal = s.sessions[0].portal
		}
	}
	return k
}

// progress is what a call has done already: how often, and with which error in the end. It is what
// keeps a plan that does not work from being made for ever.
type progress struct {
	times  map[key]int
	failed map[netip.AddrPort]error // logins
}

func newProgress() progress {
	return progress{times: map[key]int{}, failed: map[netip.AddrPort]error{}}
}

func (p progress) done(s step) int { return p.times[s.key()] }
func (p progress) note(s step)     { p.times[s.key()]++ }

// plan says what to do next: the steps that can be taken on what is there now. When they have been
// taken, it is asked again with what is there then; no steps means that the goal is reached, an
// error that it cannot be.
func plan(g goal, o *observed, p progress) ([]step, error) {
	if g.absent {
		return planAbsent(g, o, p)
	}
	if steps, err := planAll(g.byTarget(), "target", o, p, planSessions); err != nil || len(steps) > 0 {
		return steps, err
	}
	for _, f := range []func(goal, *observed, progress) ([]step, error){planPaths, planMap, planSize} {
		if steps, err := planEach(g, o, p, f); err != nil || len(steps) > 0 {
			return steps, err
		}
	}
	if g.striped() {
		return planStripes(g, o, p)
	}
	return nil, nil
}

// planEach plans a layer for all LUNs of the attachment. The next layer needs all of them.
func planEach(g goal, o *observed, p progress, f func(goal, *observed, progress) ([]step, error)) ([]step, error) {
	return planAll(g.each(), "leg", o, p, f)
}

// planAll plans a layer for all parts of an attachment. What one of them lacks is an error when
// nothing is left to do for the others: a repair brings back what can be repaired, and a detach
// leaves no more than it must.
func planAll(parts []goal, what string, o *observed, p progress, f func(goal, *observed, progress) ([]step, error)) (steps []step, err error) {
	for i, l := range parts {
		more, lerr := f(l, o, p)
		if lerr != nil && len(parts) > 1 {
			lerr = fmt.Errorf("%s %d: %w", what, i, lerr)
		}
		if err == nil {
			err = lerr
		}
		for _, s := range more {
			if !slices.ContainsFunc(steps, func(o step) bool { return o.key() == s.key() }) {
				steps = append(steps, s)
			}
		}
	}
	if len(steps) > 0 {
		return steps, nil
	}
	return nil, err
}

// address is where the kernel shows the LUN behind a session.
func (g goal) address(s session) hctl { return hctl{host: s.host, target: s.targetID, lun: g.lun} }

// anyAway is away for any LUN of the attachment.
func (g goal) anyAway(o *observed) bool {
	return slices.ContainsFunc(g.each(), func(l goal) bool { return l.away(o) })
}

// away tells of a path whose session is without a connection.
func (g goal) away(o *observed) bool {
	return slices.ContainsFunc(g.sessions(o), func(s session) bool { return !s.connected && o.disk(g.address(s)) != nil })
}

// up lists the sessions over which the LUN can be reached now.
func (g goal) up(o *observed) (out []session) {
	return slices.DeleteFunc(g.sessions(o), func(s session) bool { return !s.connected })
}

// paths lists the disks that are what they should be: behind a session to one of the portals, at
// the LUN's address, with its WWID.
func (g goal) paths(o *observed) (out []disk) {
	for _, s := range g.sessions(o) {
		if d := o.disk(g.address(s)); d != nil && d.id == g.id {
			out = append(out, *d)
		}
	}
	return out
}
