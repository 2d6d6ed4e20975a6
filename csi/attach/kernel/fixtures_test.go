package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/alua"
)

// openFixture makes a tree of what e2e/kernel recorded of a real worker (fixtures_test.go there
// says how), and a host that reads it.
func openFixture(t *testing.T, name string) *linux {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	var path string
	var content strings.Builder
	flush := func() {
		if path != "" {
			if err := os.WriteFile(path, []byte(content.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		path = ""
		content.Reset()
	}
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, " "); ok {
			content.WriteString(text)
			continue
		}
		flush()
		f := strings.Fields(line)
		at := filepath.Join(root, f[1])
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if f[0] == "F" {
			path = at
		} else if err := os.Symlink(f[2], at); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	l := &linux{worker: worker{root: root}, tables: []string{filepath.Join(root, "out/mountinfo")}}
	l.db = l.findDB()
	return l
}

// unitOf reads the attachment back from what is there.
func unitsOf(t *testing.T, o *observed) (out []unit) {
	for id := range o.claimed {
		u := unit{endpoint: endpoint{target: o.sessions[0].target}, initiator: o.sessions[0].initiator, leg: leg{lun: o.disksOf(id)[0].at.lun, id: id}}
		for _, s := range o.sessions {
			u.portals = append(u.portals, s.portal)
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b unit) int { return int(a.lun) - int(b.lun) })
	return out
}

func TestFixtureEmpty(t *testing.T) {
	o, err := openFixture(t, "empty").observe(t.Context())
	if err != nil || len(o.sessions)+len(o.disks)+len(o.maps)+len(o.nodes)+len(o.claimed) > 0 || o.boot == "" {
		t.Fatalf("%+v %v", o, err)
	}
}

func TestFixtureTwoVolumes(t *testing.T) {
	l := openFixture(t, "two-volumes")
	o, err := l.observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(o.sessions) != 2 || len(o.disks) != 4 || len(o.maps) != 2 || len(o.nodes) != 2 || len(o.claimed) != 2 {
		t.Fatalf("%+v", o)
	}
	for _, s := range o.sessions {
		if !s.ours() || !s.connected || s.targetID != 0 || o.node(s.target, s.portal) == nil || !o.oursOn(s.host) {
			t.Errorf("%+v", s)
		}
		n := nodeRecord{initiator: s.initiator, target: s.target, portal: s.portal}
		if o.node(s.target, s.portal).sum != sum(n.render()) {
			t.Error("the record is not as it was written")
		}
	}
	if o.iface != sum(renderIface(o.sessions[0].initiator)) {
		t.Error("nor is the interface's")
	}
	for _, d := range o.disks {
		if d.vendor != vendor || d.product != product || d.state != "running" || d.handler != "alua" || !strings.HasPrefix(d.name, "sd") || len(d.holders) != 1 || !d.id.known() {
			t.Errorf("%+v", d)
		}
	}
	units := unitsOf(t, o)
	for i, u := range units {
		m := o.mapOf(u.id)
		if m == nil || m.suspended || len(m.slaves) != 2 || m.size != []int64{512 << 20, 64 << 20}[i] || m.name != u.id.wwid() || m.rdev == 0 {
			t.Fatalf("%+v", m)
		}
		if i == 0 && len(m.mounts) != 2 || i == 1 && len(m.mounts) != 0 {
			t.Errorf("mounted at %v", m.mounts)
		}
		// What is as it should be needs nothing.
		if steps, err := plan(goal{unit: u, others: []unit{units[1-i]}}, o, newProgress()); err != nil || len(steps) > 0 {
			t.Error(steps, err)
		}
		raw, err := os.ReadFile(l.path("/out/map-" + m.name))
		if err != nil {
			t.Fatal(err)
		}
		states, err := parseTopology(string(raw), u.id)
		if err != nil || len(states) != 2 {
			t.Fatal(states, err)
		}
		if _, err := parseTopology(string(raw), units[1-i].id); err == nil {
			t.Error("another map's topology was taken")
		}
		ps := paths(u, o, m, func(dmMap) map[string]pathState { return states }, noFailure)
		current := slices.IndexFunc(ps, func(p attach.Path) bool { return p.Current })
		if current < 0 || ps[current].State != alua.Optimized || ps[1-current].Current || !ps[1-current].Connected || ps[1-current].State != alua.NonOptimized {
			t.Errorf("%+v", ps)
		}
		if quiet := paths(u, o, m, func(dmMap) map[string]pathState { return nil }, noFailure); !slices.Equal(quiet, ps) {
			t.Errorf("without multipathd %+v", quiet)
		}
	}
}

func TestFixtureSilentPortal(t *testing.T) {
	l := openFixture(t, "silent-portal")
	o, err := l.observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range unitsOf(t, o) {
		ps := paths(u, o, o.mapOf(u.id), func(dmMap) map[string]pathState { return nil }, noFailure)
		lost := slices.IndexFunc(ps, func(p attach.Path) bool { return !p.Connected })
		if lost < 0 || ps[lost].Portal != "10.98.2.1:3260" || ps[lost].LastError == "" || !ps[1-lost].Current {
			t.Errorf("%+v", ps)
		}
		if steps, err := plan(goal{unit: u}, o, newProgress()); err != nil {
			t.Error(steps, err)
		}
	}
}

// Hazard 7: what multipathd of a real worker says it has is understood, and is as we want it.
func TestFixtureConfig(t *testing.T) {
	l := openFixture(t, "two-volumes")
	raw, err := os.ReadFile(l.path("/out/config"))
	if err != nil {
		t.Fatal(err)
	}
	root := parseConfig(string(raw))
	if lacks := verifyConfig(root, settings(30)); len(lacks) > 0 {
		t.Error(lacks)
	}
	if lacks := verifyConfig(root, settings(31)); len(lacks) != 1 {
		t.Error(lacks)
	}
	if v, _ := root.all("defaults")[0].get("polling_interval"); v != "1" {
		t.Error(v)
	}
}

// The database's files are written whole, with a mode that keeps secrets, and those of others are
// left alone.
func TestHazard29Database(t *testing.T) {
	l := &linux{worker: worker{root: t.TempDir()}, db: "/etc/iscsi"}
	if err := os.MkdirAll(l.path(l.db), 0o700); err != nil {
		t.Fatal(err)
	}
	u := must(t, attachment("v", 1, 1, wwid1))
	u.auth = &attach.CHAP{User: "u", Secret: "swordfish1234"}
	n := nodeRecord{initiator: u.initiator, target: u.target, portal: u.portals[0], auth: u.auth}
	for range 2 {
		if err := l.do(t.Context(), step{do: doNode, node: n}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.do(t.Context(), step{do: doIface, node: n}); err != nil {
		t.Fatal(err)
	}
	path := l.nodePath(u.target, u.portals[0])
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Fatal(st, err)
	}
	o := &observed{}
	if err := l.readDB(o); err != nil || len(o.nodes) != 1 || o.nodes[0].sum != sum(n.render()) || o.iface != sum(renderIface(u.initiator)) {
		t.Fatal(o, err)
	}
	foreign := l.nodePath(u.target, u.portals[1])
	if err := os.WriteFile(foreign, []byte("node.name = x\niface.iscsi_ifacename = default\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := n
	other.portal = u.portals[1]
	if err := l.do(t.Context(), step{do: doNode, node: other}); err == nil {
		t.Fatal("somebody else's record was replaced")
	}
	for _, p := range u.portals {
		if err := l.do(t.Context(), step{do: doDropNode, node: nodeRecord{target: u.target, portal: p}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(l.path(l.db), ".gemel-123")
	if err := os.WriteFile(left, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.removeTemp(); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(l.path(l.db)); len(entries) != 2 {
		t.Fatal(entries)
	}
}

// The answer about all maps has each as the answer about one has it.
func TestTopologies(t *testing.T) {
	one := `{"uuid": "3%s", "path_groups": [{"dm_st": "active", "paths": [{"dev": "sdb", "dm_st": "active", "chk_st": "ready", "pri": 50}]}]}`
	a, b := fmt.Sprintf(one, wwid1), fmt.Sprintf(one, wwid2)
	all, err := parseTopologies(`{"major_version": 0, "maps": [` + a + "," + b + "]}")
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	id, _ := parseNAA(wwid1)
	want, err := parseTopology(`{"map": `+a+"}", id)
	if err != nil || len(want) != 1 || !maps.Equal(all["3"+wwid1], want) || !all["3"+wwid2]["sdb"].current || want["sdb"].prio != 50 {
		t.Error(all, want, err)
	}
	if _, err := parseTopologies("timeout"); err == nil {
		t.Error("no error")
	}
}

func noFailure(netip.AddrPort) error { return nil }
