package initiator

import (
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// A target that went silent, and whose partner has taken over. Nothing shows a host that the first
// has happened: its connections stay up until a ping is not answered for 2 x AgeLimit. The second
// one shows: over another path the target reports that its own target port group is the optimized
// one now. So a host whose commands wait asks there.
//
// A session is given up sooner than after 2 x AgeLimit only for that report, which came after the
// last byte of the silent node. Then that node is no member of its pair any more and executes
// nothing, and if the ownership was moved in a planned way, the first command over the new path
// waits until the old owner has let go (R11a in docs/pair.md).

// silentTurns is how many times in Suspect a silent target's session is looked at: every 5 ms. The
// partner is asked as often only while it answers quickly: a host with a thousand sessions to the
// silent node would keep the node busy that is about to take over. A rest of askRest times what the
// last answer took, and of at most Suspect/leastTurns, is between two questions over a path.
const (
	silentTurns = 40
	leastTurns  = 8
	askRest     = 4
)

// silent is called by the session of a path that does not answer while commands wait.
func (p *path) silent() {
	d := p.d
	sess := p.sess.Load()
	if sess == nil {
		return
	}
	heard, now := sess.lastHeard.Load(), sess.now()
	var replaced bool
	d.mu.Lock()
	for _, q := range d.paths {
		if q.view.portal == p.view.portal || !q.view.up {
			continue
		}
		if q.view.state == alua.Optimized && q.rose > heard {
			replaced = true
		}
		if now >= q.askAt {
			q.askAt = now + min(askRest*q.asking, int64(sess.cfg.Timers.Suspect)/leastTurns)
			q.want(wantALUA)
		}
	}
	d.mu.Unlock()
	if replaced {
		silence := time.Duration(now - heard).Round(time.Millisecond)
		sess.fail(fmt.Errorf("%w (silent for %v)", ErrTakenOver, silence))
	}
}

// tookOver has the sessions to other portals looked at, for this path has become the optimized one:
// one that is silent is given up now, and not at its next turn.
func (p *path) tookOver() {
	for _, q := range p.d.paths {
		if q.view.portal == p.view.portal {
			continue
		}
		if sess := q.sess.Load(); sess != nil {
			sess.look()
		}
	}
}

// look has keepalive look at the session now.
func (s *Session) look() {
	select {
	case s.busy <- struct{}{}:
	default:
	}
}
