package kernel

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// world is an observation in few words, of the attachment at LUN 3.
type world struct {
	u unit
	observed
}

func newWorld(t *testing.T) *world {
	w := &world{u: must(t, attachment("v1", 5, 3, wwid1))}
	w.iface, w.claimed = sum(renderIface(w.u.initiator)), map[naa]bool{}
	return w
}

// sessions to both portals, with their records.
func (w *world) sessionsUp() *world {
	for i, p := range w.u.portals {
		n := nodeRecord{initiator: w.u.initiator, target: w.u.target, portal: p}
		w.nodes = append(w.nodes, nodeFile{w.u.target, p, sum(n.render()), 1})
		w.sessions = append(w.sessions, session{sid: i + 1, host: i, iface: ifaceName, initiator: w.u.initiator, target: w.u.target, portal: p, connected: true})
	}
	return w
}

func (w *world) claim() *world { w.claimed[w.u.id] = true; return w }

func (w *world) path(host int, lun uint64, id naa) *world {
	w.disks = append(w.disks, disk{at: hctl{host: host, lun: lun}, name: string(rune('a'+len(w.disks))) + "disk", id: id, state: "running", size: 1 << 30})
	return w
}

func (w *world) paths() *world { return w.path(0, 3, w.u.id).path(1, 3, w.u.id) }

func (w *world) dm(slaves ...string) *world {
	w.maps = append(w.maps, dmMap{kernel: "dm-0", name: w.u.id.wwid(), id: w.u.id, size: 1 << 30, slaves: slaves})
	return w
}

func (w *world) all() *world { return w.sessionsUp().claim().paths().dm("adisk", "bdisk") }

func TestPlan(t *testing.T) {
	other, _ := parseNAA(wwid2)
	elsewhere := netip.MustParseAddrPort("10.0.9.9:3260")
	for _, c := range []struct {
		name string
		make func(*world) *world
		goal goal
		want []verb
		err  error
	}{
		{"from nothing", func(w *world) *world { w.iface = ""; return w }, goal{}, []verb{doIface, doNode, doLogin, doNode, doLogin}, nil},
		{"one session", func(w *world) *world { w.sessionsUp(); w.sessions = w.sessions[:1]; return w }, goal{}, []verb{doLogin}, nil},
		{"sessions", (*world).sessionsUp, goal{}, []verb{doClaim}, nil},
		{"claimed", func(w *world) *world { return w.sessionsUp().claim() }, goal{}, []verb{doScan, doScan}, nil},
		{"17: after a reboot, a record of the node database is there", func(w *world) *world { w.sessionsUp(); w.sessions = nil; return w }, goal{}, []verb{doLogin, doLogin}, nil},
		{"paths", func(w *world) *world { return w.sessionsUp().claim().paths() }, goal{}, []verb{doAwaitMap}, nil},
		{"all there", (*world).all, goal{}, nil, nil},
		{"all there, never looked at", (*world).all, goal{fresh: true}, []verb{doRescan, doRescan}, nil},
		{"1: another LUN's device at the address", func(w *world) *world { return w.sessionsUp().claim().path(0, 3, other).path(1, 3, w.u.id).dm("bdisk") }, goal{}, []verb{doIdentify}, nil},
		{"1: a device without an identity at the address", func(w *world) *world { return w.sessionsUp().claim().path(0, 3, naa{}).path(1, 3, w.u.id).dm("bdisk") }, goal{}, []verb{doIdentify}, nil},
		{"1: a path of ours in the map of another LUN", func(w *world) *world {
			w.sessionsUp().claim().paths()
			w.maps, w.disks[0].holders = []dmMap{{kernel: "dm-4", id: other, slaves: []string{"adisk"}}}, []string{"dm-4"}
			return w
		}, goal{}, []verb{doIdentify}, nil},
		{"1: an older LUN number of ours", func(w *world) *world { return w.all().path(0, 2, w.u.id) }, goal{}, []verb{doDelete}, nil},
		{"6: LUN 30 is not LUN 3", func(w *world) *world { return w.all().path(0, 30, other) }, goal{}, nil, nil},
		{"5: a path that the map lacks", func(w *world) *world { return w.sessionsUp().claim().paths().dm("adisk") }, goal{}, []verb{doAddPath}, nil},
		{"23: a path that has grown while it was away", func(w *world) *world {
			w.sessionsUp().claim().paths().dm("adisk")
			w.disks[1].size = 2 << 30
			return w
		}, goal{resize: true}, []verb{doRescan, doRescan}, nil},
		{"13: suspended", func(w *world) *world { w.all(); w.maps[0].suspended = true; return w }, goal{}, []verb{doResume}, nil},
		{"2: a stranger in the map", func(w *world) *world {
			return w.sessionsUp().claim().paths().path(0, 7, other).dm("adisk", "bdisk", "cdisk")
		}, goal{}, []verb{doDelete}, nil},
		{"18: a portal that nobody has", func(w *world) *world {
			w.all()
			w.sessions = append(w.sessions, session{sid: 9, host: 9, iface: ifaceName, initiator: w.u.initiator, target: w.u.target, portal: elsewhere})
			w.nodes = append(w.nodes, nodeFile{target: w.u.target, portal: elsewhere})
			return w
		}, goal{}, []verb{doLogout, doDropNode}, nil},
		{"18: a portal that another volume has", func(w *world) *world {
			w.all()
			w.sessions = append(w.sessions, session{sid: 9, host: 9, iface: ifaceName, initiator: w.u.initiator, target: w.u.target, portal: elsewhere})
			return w
		}, goal{others: []unit{{endpoint: endpoint{target: "iqn.2026-11.storage.gemel:demo.p0", portals: []netip.AddrPort{elsewhere}}}}}, nil, nil},
		{"27: a session that is not ours is no path of ours", func(w *world) *world {
			w.sessionsUp()
			w.sessions[1].iface = "default"
			return w
		}, goal{}, []verb{doLogin}, nil},
		{"27: an older name of ours", func(w *world) *world { w.sessionsUp(); w.sessions[0].initiator = "iqn.x:old"; return w }, goal{}, []verb{doLogout}, nil},
		{"27: an older name of ours that is in use", func(w *world) *world {
			w.all()
			w.sessions[0].initiator, w.disks[0].holders, w.maps[0].slaves = "iqn.x:old", []string{"dm-0"}, []string{"adisk"}
			return w
		}, goal{}, nil, attach.ErrBusy},
		{"29: new credentials", (*world).all, goal{unit: unit{endpoint: endpoint{auth: &attach.CHAP{User: "u", Secret: "s"}, chapKnown: true}}}, []verb{doNode, doNode}, nil},
		{"29: credentials that are not known here", (*world).all, goal{unit: unit{endpoint: endpoint{auth: &attach.CHAP{User: "u", Secret: "s"}}}}, nil, nil},

		{"23: resize", (*world).all, goal{resize: true}, []verb{doRescan, doRescan}, nil},

		{"detach", (*world).all, goal{absent: true}, []verb{doFlush}, nil},
		{"12: mounted", func(w *world) *world { w.all(); w.maps[0].mounts = []string{"/mnt"}; return w }, goal{absent: true}, nil, attach.ErrBusy},
		{"12: something on top", func(w *world) *world { w.all(); w.maps[0].holders = []string{"dm-3"}; return w }, goal{absent: true}, nil, attach.ErrBusy},
		{"13: suspended, detach", func(w *world) *world { w.all(); w.maps[0].suspended = true; return w }, goal{absent: true}, []verb{doResume}, nil},
		{"detach without a map", func(w *world) *world { return w.sessionsUp().claim().paths() }, goal{absent: true}, []verb{doDelete, doDelete}, nil},
		{"detach without paths", func(w *world) *world { return w.sessionsUp().claim() }, goal{absent: true}, []verb{doUnclaim}, nil},
		{"15: the last one", (*world).sessionsUp, goal{absent: true}, []verb{doLogout, doLogout, doDropNode, doDropNode}, nil},
		{"15: not the last one", (*world).sessionsUp, goal{absent: true, others: []unit{must(t, attachment("v2", 1, 4, wwid2))}}, nil, nil},
		{"15: a user that no record knows of", func(w *world) *world {
			w.sessionsUp().path(0, 8, other).path(1, 8, other)
			w.disks[0].holders, w.disks[1].holders = []string{"dm-4"}, []string{"dm-4"}
			w.maps = []dmMap{{kernel: "dm-4", id: other, slaves: []string{"adisk"}}}
			return w
		}, goal{absent: true}, []verb{doLogout, doDropNode, doDropNode}, nil},
		{"15: the last path of such a user", func(w *world) *world {
			w.sessionsUp().path(0, 8, other)
			w.sessions, w.disks[0].holders = w.sessions[:1], []string{"dm-4"}
			w.maps = []dmMap{{kernel: "dm-4", id: other, slaves: []string{"adisk"}}}
			return w
		}, goal{absent: true}, []verb{doDropNode, doDropNode}, nil},
		{"nothing there", func(w *world) *world { return w }, goal{absent: true}, nil, nil},
		{"26: forced, users and all", func(w *world) *world { w.all(); w.maps[0].mounts = []string{"/mnt"}; return w }, goal{absent: true, force: true},
			[]verb{doFail, doDelete, doDelete, doWipe, doUnmount}, nil},
		{"11: forced, no users", (*world).all, goal{absent: true, force: true}, []verb{doFail, doDelete, doDelete, doWipe}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.make(newWorld(t))
			g := c.goal
			auth, known := g.auth, g.chapKnown
			g.unit = w.u
			g.auth, g.chapKnown = auth, known
			steps, err := plan(g, &w.observed, newProgress())
			if !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			var got []verb
			for _, s := range steps {
				got = append(got, s.do)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %q\nwant %q", got, c.want)
			}
		})
	}
}

// Whatever is there: an orderly detach takes no path from under a map, wipes and unmounts nothing,
// and a forced one takes the paths before anything else of the map.
func TestPlanOrder(t *testing.T) {
	for bits := range 256 {
		has := func(i int) bool { return bits&(1<<i) > 0 }
		w := newWorld(t)
		if has(0) {
			w.sessionsUp()
		}
		if has(1) {
			w.claim()
		}
		if has(2) {
			w.path(0, 3, w.u.id)
		}
		if has(3) {
			w.path(1, 3, w.u.id)
		}
		if has(4) {
			w.dm("adisk")
			if has(5) {
				w.maps[0].mounts = []string{"/mnt"}
			}
			w.maps[0].suspended = has(6)
		}
		g := goal{unit: w.u, absent: true, force: has(7)}
		steps, err := plan(g, &w.observed, newProgress())
		if err != nil {
			if g.force || !has(5) || !has(4) {
				t.Errorf("%b: %v", bits, err)
			}
			continue
		}
		at := func(v verb) int { return slices.IndexFunc(steps, func(s step) bool { return s.do == v }) }
		if !g.force && has(4) && (at(doDelete) >= 0 || at(doWipe) >= 0 || at(doUnmount) >= 0 || at(doLogout) >= 0) {
			t.Errorf("%b: %v", bits, steps)
		}
		if g.force && has(4) && has(2) && (at(doDelete) > at(doWipe) || at(doFail) != 0 || at(doUnmount) >= 0 && at(doUnmount) < at(doWipe)) {
			t.Errorf("%b: %v", bits, steps)
		}
		if at(doLogout) >= 0 && (has(1) || has(2) || has(3) || has(4)) {
			t.Errorf("%b: logs out too early: %v", bits, steps)
		}
	}
}

// A plan that does not work ends in an error, not in being made for ever.
func TestPlanEnds(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*world) *world
		goal goal
	}{
		"no map comes":            {func(w *world) *world { return w.sessionsUp().claim().paths() }, goal{}},
		"the LUN does not come":   {func(w *world) *world { return w.sessionsUp().claim() }, goal{}},
		"a stranger stays":        {func(w *world) *world { return w.sessionsUp().claim().path(0, 3, naa{}) }, goal{}},
		"suspended for ever":      {func(w *world) *world { w.all(); w.maps[0].suspended = true; return w }, goal{}},
		"the map does not go":     {(*world).all, goal{absent: true}},
		"nor by force":            {(*world).all, goal{absent: true, force: true}},
		"the paths do not go":     {func(w *world) *world { return w.sessionsUp().claim().paths() }, goal{absent: true}},
		"the map does not grow":   {func(w *world) *world { w.all(); w.maps[0].size = 5; return w }, goal{resize: true}},
		"the paths do not agree":  {func(w *world) *world { w.all(); w.disks[0].size = 5; return w }, goal{resize: true}},
		"the paths are not taken": {func(w *world) *world { return w.sessionsUp().claim().paths().dm() }, goal{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := c.make(newWorld(t))
			g := c.goal
			g.unit = w.u
			p := newProgress()
			for range rounds {
				steps, err := plan(g, &w.observed, p)
				if err != nil {
					return
				}
				if len(steps) == 0 {
					t.Fatal("it is said to be reached")
				}
				for _, s := range steps {
					p.note(s)
				}
			}
			t.Fatal("no end")
		})
	}
}
