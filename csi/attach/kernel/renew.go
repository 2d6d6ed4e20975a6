package kernel

import (
	"context"
	"fmt"
	"slices"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Refused implements attach.Attacher: attachments that miss a session because the last login over
// its portal was refused. Sessions that lost their connection are logged in again by iscsid, which
// does not tell why it fails.
func (a *Attacher) Refused(ctx context.Context) (out []attach.Refusal, err error) {
	a.mu.Lock()
	some := false
	for _, f := range a.logins {
		some = some || f.refused
	}
	a.mu.Unlock()
	if !some {
		return nil, nil
	}
	o, err := a.host.observe(ctx)
	if err != nil {
		return nil, err
	}
	read, _, err := a.entries()
	if err != nil {
		return nil, err
	}
	for _, e := range read {
		for i, t := range e.goal.byTarget() {
			if a.refused(t.unit, o) {
				at := e.record.Attachment
				out = append(out, attach.Refusal{VolumeID: at.VolumeID, Pair: at.Targets()[i].Pair})
			}
		}
	}
	return out, nil
}

func (a *Attacher) refused(u unit, o *observed) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, portal := range u.portals {
		if a.logins[portal].refused && u.lacks(portal, o) {
			return true
		}
	}
	return false
}

// Renew implements attach.Attacher: it writes the node records of the pair's target again and logs
// in where a session is missing. Sessions that are up go on; one without a connection is made
// again, because iscsid goes on with the secrets that it was given first.
func (a *Attacher) Renew(ctx context.Context, of attach.Refusal, auth, mutual *attach.CHAP) error {
	if _, err := a.path(of.VolumeID); err != nil {
		return err
	}
	defer a.volumes.Lock(of.VolumeID)()
	r, err := a.load(of.VolumeID)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%w: %s", attach.ErrNotAttached, of.VolumeID)
	}
	on := r.Attachment.OnPair(of.Pair)
	for _, i := range on {
		r.Attachment.SetCredentials(i, auth, mutual)
	}
	// The secrets of other targets are not known here. Whether these need some is not known either,
	// unless there are none.
	u, err := parse(r.Attachment)
	if err != nil {
		return err
	}
	chap := auth != nil || r.CHAP && len(on) < len(u.endpoints())
	if r.CHAP != chap {
		r.CHAP = chap
		if err := a.save(r); err != nil {
			return err
		}
	}
	u.chapKnown = slices.Contains(on, 0)
	for i := range u.further {
		u.further[i].chapKnown = slices.Contains(on, i+1)
	}
	g := goal{unit: u, noSecrets: chap}
	// Which node records are to be written again is part of the goal, so it cannot come from
	// converge.
	o, err := a.host.observe(ctx)
	if err != nil {
		return err
	}
	for _, i := range on {
		e := u.endpoints()[i]
		a.forgive(e)
		for _, portal := range e.portals {
			n := nodeRecord{initiator: u.initiator, target: e.target, portal: portal, auth: auth, mutual: mutual}
			have := o.node(e.target, portal)
			if have != nil {
				n.sessions = have.sessions // only the secrets matter
			}
			if have == nil || have.sum != sum(n.render()) {
				for _, s := range o.to(e.target, portal) {
					g.relog = append(g.relog, s.sid)
				}
			}
		}
	}
	_, err = a.converge(ctx, g)
	return err
}

// forgive forgets the failures of the portals of a target.
func (a *Attacher) forgive(e endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, portal := range e.portals {
		delete(a.logins, portal)
	}
}
