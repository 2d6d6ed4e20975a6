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
func (a *Attacher) Refused(ctx context.Context) (out []attach.Attachment, err error) {
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
		if a.refused(e.goal.unit, o) {
			out = append(out, e.record.Attachment)
		}
	}
	return out, nil
}

func (a *Attacher) refused(u unit, o *observed) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, portal := range u.portals {
		if a.logins[portal].refused && o.session(u.target, portal) == nil {
			return true
		}
	}
	return false
}

// Renew implements attach.Attacher: it writes the node records again and logs in where a session is
// missing. Sessions that are up go on; one without a connection is made again, because iscsid goes
// on with the secrets that it was given first.
func (a *Attacher) Renew(ctx context.Context, volumeID string, auth, mutual *attach.CHAP) error {
	if _, err := a.path(volumeID); err != nil {
		return err
	}
	defer a.volumes.Lock(volumeID)()
	r, err := a.load(volumeID)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%w: %s", attach.ErrNotAttached, volumeID)
	}
	r.Attachment.Auth, r.Attachment.MutualAuth = auth, mutual
	u, err := parse(r.Attachment)
	if err != nil {
		return err
	}
	u.chapKnown = true
	if chap := auth != nil; r.CHAP != chap {
		r.CHAP = chap
		if err := a.save(r); err != nil {
			return err
		}
	}
	a.mu.Lock()
	for portal := range a.logins {
		if slices.Contains(u.portals, portal) {
			delete(a.logins, portal)
		}
	}
	a.mu.Unlock()
	g := goal{unit: u}
	// Which node records are to be written again is part of the goal, so it cannot come from
	// converge.
	o, err := a.host.observe(ctx)
	if err != nil {
		return err
	}
	for _, portal := range u.portals {
		n := nodeRecord{initiator: u.initiator, target: u.target, portal: portal, auth: auth, mutual: mutual}
		if have := o.node(u.target, portal); have == nil || have.sum != sum(n.render()) {
			g.relog = append(g.relog, portal)
		}
	}
	_, err = a.converge(ctx, g)
	return err
}
