package kernel

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Hazard 36: volumes need different numbers of the sessions that they share.
func TestHazard36SharedSessions(t *testing.T) {
	f, a, many := setup(t)
	many.Sessions = 4
	one := attachment("v2", 6, 4, wwid2)
	f.show(one, 1<<30)
	attachAll(t, a, one)
	first := f.sids(one)
	attachAll(t, a, many)
	whole := func(n int, all ...attach.Attachment) {
		t.Helper()
		for _, x := range all {
			if err := f.exactly(x); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.recorded(n); err != nil || len(f.sessions) != 2*n {
			t.Fatal(err, f.sessions)
		}
	}
	whole(4, one, many)
	n := len(f.steps)
	if attachAll(t, a, one, many); len(f.steps) != n {
		t.Error("the number changes to and fro", f.steps[n:])
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	whole(1, one)
	if got := f.sids(one); !slices.Equal(got, first) {
		t.Errorf("sessions %v, not %v", got, first)
	}
	attachAll(t, a, many)
	if err := a.Detach(t.Context(), "v2"); err != nil {
		t.Fatal(err)
	}
	whole(4, many)
	// What no record knows of keeps the session that it uses.
	last := f.to(must(t, many).target, must(t, many).portals[1])[3]
	f.disks = append(f.disks, disk{at: hctl{host: last.host, lun: 99}, name: "foreign", holders: []string{"dm-99"}})
	attachAll(t, a, withSessions(many, 1))
	if len(f.sessions) != 3 || count(f.steps, doLogout) != 6+5 {
		t.Fatal(f.sessions)
	}
}

// Hazard 36: the paths that are to stay do not work, those that are too many do.
func TestHazard36LastPath(t *testing.T) {
	f, a, want := setup(t)
	want.Sessions = 3
	attachAll(t, a, want)
	one := withSessions(want, 1)
	for _, p := range must(t, want).portals {
		first := f.to(must(t, want).target, p)[0]
		f.sessions[slices.Index(f.sessions, first)].connected = false
	}
	attachAll(t, a, one)
	healOnce(t, a)
	if m := f.mapOf(must(t, want).id); len(m.slaves) != 6 || len(f.sessions) != 6 {
		t.Fatal(m, f.sessions)
	}
	for i := range f.sessions {
		f.sessions[i].connected = true
	}
	healOnce(t, a)
	if err := f.healthy(one); err != nil {
		t.Error(err)
	}
}

// Hazard 36: SCSI hosts are numbered again, sessions are not.
func TestHazard36Oldest(t *testing.T) {
	w := newWorld(t).all()
	next := w.sessions[0]
	next.sid, next.host = 7, 5
	w.sessions[0].host, w.disks[0].at.host = 9, 9
	w.sessions = append([]session{next}, w.sessions...)
	steps, err := plan(goal{unit: w.u, others: []unit{{endpoint: w.u.endpoint, perPortal: 2}}}, &w.observed, newProgress())
	if err != nil || slices.ContainsFunc(steps, func(s step) bool { return s.do == doDelete || s.do == doScan || s.do == doLogout }) {
		t.Error(steps, err)
	}
	if got := w.u.sessions(&w.observed); len(got) != 2 || got[0].sid != 1 {
		t.Error(got)
	}
}

// Hazard 36: no attachment needs a portal, and its two sessions have the last two paths of a map.
func TestHazard36OneAtATime(t *testing.T) {
	w := newWorld(t)
	other, _ := parseNAA(wwid2)
	for i := range 2 {
		w.sessions = append(w.sessions, session{sid: i + 1, host: i, iface: ifaceName, initiator: w.u.initiator, target: w.u.target, portal: w.u.portals[0], connected: true})
		w.path(i, 8, other).disks[i].holders = []string{"dm-4"}
	}
	w.maps = []dmMap{{kernel: "dm-4", id: other, slaves: []string{"adisk", "bdisk"}}}
	steps, err := plan(goal{unit: w.u, absent: true}, &w.observed, newProgress())
	if err != nil || count(steps, doLogout) != 1 {
		t.Error(steps, err)
	}
}

// Hazard 36: who detaches or heals does not know the secrets of the record whose number it changes.
func TestHazard36Record(t *testing.T) {
	l := &linux{worker: worker{root: t.TempDir()}, db: "/etc/iscsi"}
	if err := os.MkdirAll(l.path(l.db), 0o700); err != nil {
		t.Fatal(err)
	}
	u := must(t, attachment("v", 1, 1, wwid1))
	n := nodeRecord{initiator: u.initiator, target: u.target, portal: u.portals[0], auth: &attach.CHAP{User: "u", Secret: "swordfish1234"}, sessions: 4}
	do := func(s step) *observed {
		t.Helper()
		o := &observed{}
		if err := errors.Join(l.do(t.Context(), s), l.readDB(o)); err != nil {
			t.Fatal(err)
		}
		return o
	}
	bare := nodeRecord{target: n.target, portal: n.portal, sessions: 2}
	if o := do(step{do: doCount, node: bare}); len(o.nodes) > 0 {
		t.Fatal("a record without secrets was made", o.nodes)
	}
	if o := do(step{do: doNode, node: n}); o.nodes[0].sessions != 4 {
		t.Fatal(o.nodes)
	}
	o := do(step{do: doCount, node: bare})
	n.sessions = 2
	if o.nodes[0].sessions != 2 || o.nodes[0].sum != sum(n.render()) {
		t.Error(o.nodes)
	}
	path := l.nodePath(n.target, n.portal)
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Error(st, err)
	}
	// One without the number is for one session.
	old := strings.ReplaceAll(string(n.render()), keyCount+" = 2\n", "")
	if got := withCount([]byte(old), 3); countOf([]byte(old)) != 1 || countOf(got) != 3 || !strings.HasSuffix(string(got), keyCount+" = 3\n# END RECORD\n") {
		t.Errorf("%s", got)
	}
	foreign := "node.name = x\niface.iscsi_ifacename = default\n"
	if err := os.WriteFile(path, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	do(step{do: doCount, node: bare})
	if raw, err := os.ReadFile(path); err != nil || string(raw) != foreign {
		t.Error("somebody else's record was changed")
	}
}

func TestSessionNumbersAreChecked(t *testing.T) {
	for _, n := range []int{-1, attach.MaxSessions + 1} {
		if _, err := parse(withSessions(attachment("v", 1, 1, wwid1), n)); !errors.Is(err, attach.ErrInvalid) || !strings.Contains(err.Error(), attach.KeySessions) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// Hazard 19: paths to one node are in two groups, of which one carries no I/O.
func TestHazard19SplitGroups(t *testing.T) {
	w := newWorld(t).all()
	w.u.perPortal = 2
	next := w.sessions[0]
	next.sid, next.host = 7, 7
	w.sessions = append(w.sessions, next)
	w.path(7, 3, w.u.id)
	for name, c := range map[string]struct {
		a, b, c pathState // of the first portal, the second, the first again
		want    bool
	}{
		"together":                  {pathState{usable: true, prio: 50, group: 1}, pathState{usable: true, prio: 10, group: 2}, pathState{usable: true, prio: 50, group: 1}, false},
		"split":                     {pathState{usable: true, prio: 50, group: 1}, pathState{usable: true, prio: 10, group: 2}, pathState{usable: true, prio: 50, group: 3}, true},
		"one is about to change":    {pathState{usable: true, prio: 50, group: 1}, pathState{usable: true, prio: 10, group: 2}, pathState{usable: true, prio: 10, group: 2}, false},
		"one does not work":         {pathState{usable: true, prio: 50, group: 1}, pathState{usable: true, prio: 10, group: 2}, pathState{prio: 50, group: 3}, false},
		"no node is the better one": {pathState{usable: true, prio: 10, group: 1}, pathState{usable: true, prio: 10, group: 2}, pathState{usable: true, prio: 10, group: 1}, false},
	} {
		if got := split(w.u, &w.observed, map[string]pathState{"adisk": c.a, "bdisk": c.b, "cdisk": c.c}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
