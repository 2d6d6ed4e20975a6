package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/alua"
)

// What can be wrong with a path, and how it is reported. The second portal's path is sound
// throughout.
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		name      string
		spoil     func(*world)
		known     map[string]pathState
		connected bool
		current   bool
		state     alua.State
		says      string
		failed    error // the last login
	}{
		{name: "sound", connected: true, current: true, state: alua.Optimized},
		{name: "not the owner's", spoil: func(w *world) { w.disks[0].access = "active/non-optimized" }, connected: true, state: alua.NonOptimized},
		{name: "no session", spoil: func(w *world) { w.sessions = w.sessions[1:] }, state: alua.Unavailable, says: "no session"},
		{name: "no connection", spoil: func(w *world) { w.sessions[0].connected, w.sessions[0].state = false, "FAILED" }, state: alua.Unavailable, says: "FAILED"},
		{name: "no LUN", spoil: func(w *world) { w.disks[0].at.lun = 30 }, state: alua.Unavailable, says: "does not show up"},
		{name: "another LUN", spoil: func(w *world) { w.disks[0].id, _ = parseNAA(wwid2) }, state: alua.Unavailable, says: "another device"},
		{name: "not in the map", spoil: func(w *world) { w.maps[0].slaves = w.maps[0].slaves[1:] }, state: alua.Unavailable, says: "not in the multipath map"},
		{name: "offline", spoil: func(w *world) { w.disks[0].state = "transport-offline" }, state: alua.Unavailable, says: "transport-offline"},
		{name: "9: no ALUA handler", spoil: func(w *world) { w.disks[0].handler = "detached" }, connected: true, current: true, state: alua.Optimized, says: "ALUA handler"},
		{name: "9: emergency fallback of multipathd", known: map[string]pathState{"adisk": {usable: true, current: true, prio: constPrio}, "bdisk": {usable: true, prio: 10}},
			connected: true, current: true, state: alua.Optimized, says: "emergency fallback"},
		{name: "refused", spoil: func(w *world) { w.sessions = w.sessions[1:] }, state: alua.Unavailable, says: "no session: refused",
			failed: attach.ErrCredentials},
		{name: "failed for multipathd", known: map[string]pathState{"adisk": {text: "failed, checker: faulty"}}, state: alua.Optimized, says: "faulty"},
		{name: "multipathd uses the other", known: map[string]pathState{"adisk": {usable: true}, "bdisk": {usable: true, current: true}}, connected: true, state: alua.Optimized},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t).all()
			for i := range w.disks {
				w.disks[i].handler, w.disks[i].access = "alua", []string{"active/optimized", "active/non-optimized"}[i]
			}
			if c.name == "not the owner's" {
				w.disks[1].access = "active/optimized"
			}
			if c.spoil != nil {
				c.spoil(w)
			}
			ps := paths(w.u, &w.observed, w.mapOf(w.u.id), func(dmMap) map[string]pathState { return c.known }, func(netip.AddrPort) error {
				if c.failed != nil {
					return fmt.Errorf("refused: %w", c.failed)
				}
				return nil
			})
			p := ps[0]
			if p.Connected != c.connected || p.Current != c.current || p.State != c.state || !strings.Contains(p.LastError, c.says) || (c.says == "") != (p.LastError == "") {
				t.Errorf("%+v", p)
			}
			if p.NoALUA != strings.HasPrefix(c.name, "9:") || p.Refused != (c.failed != nil) {
				t.Errorf("%+v", p)
			}
			if !ps[1].Connected || ps[1].LastError != "" || ps[1].Current == c.current {
				t.Errorf("the other: %+v", ps[1])
			}
		})
	}
}

// What an attachment cannot serve in.
func TestStatusFailed(t *testing.T) {
	for name, spoil := range map[string]func(*fake){
		"no map":    func(f *fake) { f.maps = nil },
		"suspended": func(f *fake) { f.maps[0].suspended = true },
		"no paths":  func(f *fake) { f.maps[0].slaves = nil },
		"reboot":    func(f *fake) { f.boot = "boot-2" },
	} {
		t.Run(name, func(t *testing.T) {
			f, a, want := setup(t)
			if _, err := a.Attach(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			spoil(f)
			st, err := a.Status(t.Context(), "v1")
			if !errors.Is(err, attach.ErrFailed) || !st.Attachment.Same(want) || len(st.Paths) != 2 {
				t.Fatalf("%+v %v", st, err)
			}
		})
	}
}

// The paths of all attachments are those that each one's status tells, without what is being made
// or taken down.
func TestPathsOfAll(t *testing.T) {
	x := newIll(t)
	second := attachment("v2", 6, 4, wwid2)
	x.show(second, 1<<30)
	if _, err := x.a.Attach(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	x.remove(x.disks[1])
	all, err := x.a.Paths(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	for _, st := range all {
		one, err := x.a.Status(t.Context(), st.Attachment.VolumeID)
		if err != nil || !slices.Equal(one.Paths, st.Paths) || !one.Attachment.Same(st.Attachment) {
			t.Errorf("%+v, alone %+v, %v", st, one, err)
		}
	}
	x.open = true
	if err := x.a.Detach(t.Context(), "v2"); !errors.Is(err, attach.ErrBusy) {
		t.Fatal(err)
	}
	if all, err := x.a.Paths(t.Context()); err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
}
