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

// silent is called by the session of a path that does not answer while commands wait.
func (p *path) silent() {
	d := p.d
	sess := p.sess.Load()
	if sess == nil {
		return
	}
	heard := sess.lastHeard.Load()
	var replaced bool
	d.mu.Lock()
	for _, q := range d.paths {
		if q.view.portal == p.view.portal || !q.view.up {
			continue
		}
		if q.view.state == alua.Optimized && q.rose > heard {
			replaced = true
		}
		q.want(wantALUA)
	}
	d.mu.Unlock()
	if replaced {
		silence := time.Duration(sess.now() - heard).Round(time.Millisecond)
		sess.fail(fmt.Errorf("%w (silent for %v)", ErrTakenOver, silence))
	}
}
