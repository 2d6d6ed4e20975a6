package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// errDead: the process was killed at this point.
var errDead = errors.New("killed")

// fake is a worker in memory, with targets that it can log in to. It follows the rules of the real
// one as far as plans depend on them, and reports steps that would do harm there.
type fake struct {
	t  *testing.T
	mu sync.Mutex
	observed
	nextHost int
	// shown is what a scan finds: for a portal, the LUNs by number, and their sizes by WWID.
	shown map[netip.AddrPort]map[uint64]naa
	sizes map[naa]int64
	down  map[netip.AddrPort]bool
	wants map[netip.AddrPort]string // the CHAP secret that a portal asks for
	most  map[netip.AddrPort]int    // how many sessions a portal accepts; 0: any number
	files map[nodeFile][]byte       // the node records, by target and portal
	lazy  bool                      // multipathd makes no map by itself
	deaf  bool                      // nor when it is asked
	open  bool                      // a process keeps maps open
	hung  bool                      // a flush does not end
	torn  bool                      // the next dmsetup of a striped map is killed in the middle

	lastDM int
	steps  []step
	known  map[string]map[string]pathState // what multipathd says of maps, by WWID; a regroup ends it
	stays  bool                            // it does not
	// died is the number of the step at which the process is killed, before it or after it.
	dieAt     int
	dieBefore bool
	dead      bool

	before func(step)  // called with every step, before it
	tells  chan change // what the kernel tells; nil: there is no subscription
	ends   bool        // a step takes as long as its context
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, observed: observed{boot: "boot-1", claimed: map[naa]bool{}}, shown: map[netip.AddrPort]map[uint64]naa{},
		sizes: map[naa]int64{}, down: map[netip.AddrPort]bool{}, files: map[nodeFile][]byte{}, dieAt: -1}
}

// show makes portals show a LUN, or all LUNs of a striped volume.
func (f *fake) show(a attach.Attachment, size int64) {
	for _, u := range must(f.t, a).each() {
		for _, p := range u.portals {
			if f.shown[p] == nil {
				f.shown[p] = map[uint64]naa{}
			}
			f.shown[p][u.lun] = u.id
		}
		f.sizes[u.id] = size
	}
}

func must(t *testing.T, a attach.Attachment) unit {
	t.Helper()
	u, err := parse(a)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (f *fake) observe(context.Context) (*observed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return nil, errDead
	}
	o := f.observed
	o.stripes = slices.Clone(o.stripes)
	o.sessions, o.disks, o.maps, o.nodes = slices.Clone(o.sessions), slices.Clone(o.disks), slices.Clone(o.maps), slices.Clone(o.nodes)
	o.claimed = map[naa]bool{}
	for k, v := range f.claimed {
		o.claimed[k] = v
	}
	return &o, nil
}

func (f *fake) allStates(context.Context) map[string]map[string]pathState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.known)
}

func (f *fake) states(context.Context, dmMap) map[string]pathState { return nil }

func (f *fake) device(_ context.Context, m dmMap) (string, error) { return "/dev/" + m.kernel, nil }

func (f *fake) events(ctx context.Context, tell func(change)) error {
	if f.tells == nil {
		return errors.New("not permitted")
	}
	for {
		select {
		case c := <-f.tells:
			tell(c)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) answers(_ context.Context, portal netip.AddrPort) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.down[portal]
}

func (f *fake) do(ctx context.Context, s step) error {
	if f.before != nil {
		f.before(s)
	}
	if f.ends {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return errDead
	}
	n := len(f.steps)
	f.steps = append(f.steps, s)
	if n == f.dieAt && f.dieBefore {
		f.dead = true
		return errDead
	}
	err := f.act(s)
	if n == f.dieAt {
		f.dead = true
		return errDead
	}
	return err
}

func (f *fake) harm(format string, args ...any) {
	f.t.Helper()
	f.t.Errorf("harm: "+format, args...)
}

func (f *fake) act(s step) error {
	switch s.do {
	case doIface:
		f.iface = sum(renderIface(s.node.initiator))
	case doNode:
		f.write(s.node, s.node.render())
	case doCount:
		if f.node(s.node.target, s.node.portal) != nil {
			f.write(s.node, withCount(f.files[nodeFile{target: s.node.target, portal: s.node.portal}], s.node.sessions))
		}
	case doDropNode:
		f.nodes = slices.DeleteFunc(f.nodes, func(n nodeFile) bool { return n.target == s.node.target && n.portal == s.node.portal })
	case doLogin:
		return f.login(s.node)
	case doLogout:
		if f.carries(s.session) {
			f.harm("session %d is in use", s.session.sid)
		}
		f.keepsServing("logout", func(d disk) bool { return d.at.host == s.session.host })
		f.sessions = slices.DeleteFunc(f.sessions, func(x session) bool { return x.sid == s.session.sid })
		for _, d := range slices.Clone(f.disks) {
			if d.at.host == s.session.host {
				f.remove(d)
			}
		}
	case doAwaitSession:
	case doClaim:
		f.claimed[s.id] = true
	case doUnclaim:
		delete(f.claimed, s.id)
	case doScan:
		f.scan(s.at)
	case doDelete:
		if d := f.disk(s.disk.at); d != nil {
			if d.id != s.disk.id {
				f.harm("%s is %s by now", d.at, d.id)
			}
			f.remove(*d)
		}
	case doRescan, doIdentify:
		if d := f.disk(s.disk.at); d != nil {
			f.refresh(d)
		}
	case doAwaitMap:
		if !f.lazy {
			f.makeMaps()
		}
	case doMakeMap, doAddPath:
		if !f.deaf {
			f.makeMaps()
		}
	case doMakeStripes:
		f.makeStripes(s.volume, s.table)
	default:
		if s.dm.striped() {
			return f.actStripes(s)
		}
		return f.actMap(s)
	}
	return nil
}

func (f *fake) login(n nodeRecord) error {
	if f.down[n.portal] {
		return errors.New("no answer")
	}
	if want := f.wants[n.portal]; want != "" && (n.auth == nil || n.auth.Secret != want) {
		return fmt.Errorf("refused: %w", attach.ErrCredentials)
	}
	file := f.node(n.target, n.portal)
	if file == nil {
		f.harm("login without a node record at %s", n.portal)
		return errors.New("no record")
	}
	for have := len(f.to(n.target, n.portal)); have < file.sessions; have++ {
		if f.most[n.portal] > 0 && have >= f.most[n.portal] {
			return errors.New("no more sessions")
		}
		f.nextHost++
		f.sessions = append(f.sessions, session{sid: f.nextHost, host: f.nextHost, iface: ifaceName, initiator: n.initiator, target: n.target,
			portal: n.portal, connected: true})
	}
	return nil
}

func (f *fake) write(n nodeRecord, content []byte) {
	f.nodes = slices.DeleteFunc(f.nodes, func(x nodeFile) bool { return x.target == n.target && x.portal == n.portal })
	f.nodes = append(f.nodes, nodeFile{n.target, n.portal, sum(content), countOf(content)})
	f.files[nodeFile{target: n.target, portal: n.portal}] = content
}

// keepsServing reports the removal of disks that takes the last path that works of a map.
func (f *fake) keepsServing(what string, gone func(disk) bool) {
	for _, m := range f.maps {
		before, after := 0, 0
		for _, name := range m.slaves {
			d := f.named(name)
			if d == nil || !slices.ContainsFunc(f.sessions, func(s session) bool { return s.host == d.at.host && s.connected }) {
				continue
			}
			before++
			if !gone(*d) {
				after++
			}
		}
		if before > 0 && after == 0 {
			f.harm("%s takes the last path of %s", what, m.kernel)
		}
	}
}

func (f *fake) portalOf(host int) (p netip.AddrPort) {
	for _, s := range f.sessions {
		if s.host == host {
			return s.portal
		}
	}
	return p
}

func (f *fake) scan(at hctl) {
	id := f.shown[f.portalOf(at.host)][at.lun]
	if !id.known() || f.disk(at) != nil {
		return
	}
	f.disks = append(f.disks, disk{at: at, name: fmt.Sprintf("sd%d-%d", at.host, at.lun), id: id, state: "running", handler: "alua", access: "active/optimized", size: f.sizes[id]})
}

// refresh is what the kernel does when it is asked to look again.
func (f *fake) refresh(d *disk) {
	if id := f.shown[f.portalOf(d.at.host)][d.at.lun]; id.known() {
		d.id, d.size = id, f.sizes[id]
	}
}

func (f *fake) remove(d disk) {
	f.disks = slices.DeleteFunc(f.disks, func(x disk) bool { return x.at == d.at })
	for i := range f.maps {
		f.maps[i].slaves = slices.DeleteFunc(slices.Clone(f.maps[i].slaves), func(n string) bool { return n == d.name })
	}
}

// makeMaps is multipathd.
func (f *fake) makeMaps() {
	for i, d := range f.disks {
		if !f.claimed[d.id] {
			continue
		}
		m := f.mapOf(d.id)
		if m == nil {
			f.maps = append(f.maps, dmMap{kernel: "dm-" + d.id.String()[28:], name: d.id.wwid(), id: d.id, size: d.size, uuid: uuidPrefix + d.id.wwid(),
				dev: fmt.Sprintf("253:%d", f.numbers())})
			m = &f.maps[len(f.maps)-1]
		}
		if !slices.Contains(m.slaves, d.name) {
			m.slaves = append(slices.Clone(m.slaves), d.name)
			f.disks[i].holders = []string{m.kernel}
		}
	}
}

func (f *fake) actMap(s step) error {
	m := f.mapOf(s.dm.id)
	if m == nil {
		return nil
	}
	drop := func() {
		f.maps = slices.DeleteFunc(f.maps, func(x dmMap) bool { return x.id == s.dm.id })
		for i := range f.disks {
			if f.disks[i].id == s.dm.id {
				f.disks[i].holders = nil
			}
		}
	}
	switch s.do {
	case doResume:
		m.suspended = false
	case doResizeMap:
		for _, d := range f.disksOf(m.id) {
			m.size = d.size
		}
	case doRegroup:
		if !f.stays {
			f.known = nil
		}
	case doFlush:
		switch {
		case len(m.users()) > 0:
			f.harm("flush of %s, used by %v", m.kernel, m.users())
		case f.hung:
			return context.DeadlineExceeded
		case f.open:
			return attach.ErrBusy
		}
		drop()
	case doFail, doWipe:
		if s.do == doWipe && len(f.disksOf(m.id)) > 0 {
			f.harm("%s is wiped while it has paths", m.kernel)
		}
	case doUnmount:
		m.mounts = nil
	case doRemove:
		if len(m.mounts) == 0 && !f.open {
			drop()
		}
	default:
		return fmt.Errorf("unknown step %q", s.do)
	}
	return nil
}

// clean says what is left.
func (f *fake) clean() error {
	if len(f.sessions)+len(f.disks)+len(f.maps)+len(f.stripes)+len(f.nodes)+len(f.claimed) > 0 {
		return fmt.Errorf("left: sessions %v, disks %v, maps %v, striped %v, nodes %v, claims %v", f.sessions, f.disks, f.maps, f.stripes, f.nodes, f.claimed)
	}
	return nil
}
