package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gemel-storage/gemel/csi/attach"
)

// Hazard 1: the kernel shows another LUN, or what it read of an earlier one, under our number.
func TestHazard1StaleDevice(t *testing.T) {
	for _, c := range []struct {
		name  string
		shown string // what the targets really have
		fails bool
	}{{"the kernel is stale", wwid1, false}, {"the target has another LUN there", wwid2, true}} {
		t.Run(c.name, func(t *testing.T) {
			f, a, want := setup(t)
			other := attachment("other", 1, 4, wwid2)
			f.show(other, 1<<20)
			if _, err := a.Attach(t.Context(), other); err != nil { // so that there are sessions
				t.Fatal(err)
			}
			real, _ := parseNAA(c.shown)
			stale, _ := parseNAA(wwid2[:31] + "f")
			u := must(t, want)
			for _, s := range f.sessions {
				f.shown[s.portal][u.lun] = real
				f.disks = append(f.disks, disk{at: hctl{host: s.host, lun: u.lun}, name: fmt.Sprintf("sd%d-3", s.host), id: stale})
			}
			_, err := a.Attach(t.Context(), want)
			if c.fails != errors.Is(err, attach.ErrFailed) {
				t.Fatal(err)
			}
			for _, s := range f.steps {
				if s.do == doScan && s.at.lun != 3 && s.at.lun != 4 {
					t.Errorf("scanned %v", s.at)
				}
			}
			for _, x := range f.sessions {
				at := hctl{host: x.host, lun: u.lun}
				steps := slices.DeleteFunc(slices.Clone(f.steps), func(s step) bool { return s.do != doDelete && s.do != doScan || s.disk.at != at && s.at != at })
				// udev, and whatever else has looked at it, took it for the other one: it comes
				// again under a name of its own.
				if len(steps) < 2 || steps[0].do != doDelete || steps[1].do != doScan {
					t.Errorf("%v: %v", at, steps)
				}
			}
			if c.fails {
				if d := f.disk(hctl{host: f.sessions[0].host, lun: u.lun}); d != nil {
					t.Errorf("left %v", d)
				}
				if ids, _ := a.Attached(); !slices.Equal(ids, []string{"other"}) {
					t.Error(ids)
				}
			}
		})
	}
}

// Hazard 1: a wrong publish does not cut another volume off that has the number rightly.
func TestHazard1InUse(t *testing.T) {
	f, a, right := setup(t)
	if _, err := a.Attach(t.Context(), right); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Attach(t.Context(), attachment("v2", 9, right.LUN, wwid2)); !errors.Is(err, attach.ErrFailed) {
		t.Fatal(err)
	}
	if err := f.healthy(right); err != nil || count(f.steps, doDelete) > 0 {
		t.Fatal(err, f.steps)
	}
	// The target has given the number to another LUN: the old volume has lost its publish.
	f.show(attachment("v2", 9, right.LUN, wwid2), 1<<20)
	next := attachment("v2", 9, right.LUN, wwid2)
	if _, err := a.Attach(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if m := f.mapOf(must(t, next).id); m == nil || len(m.slaves) != 2 || len(f.mapOf(must(t, right).id).slaves) > 0 {
		t.Fatal(f.maps)
	}
	for _, id := range []string{"v1", "v2"} {
		if err := a.Detach(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazard 5: a missing path is tolerated, and comes with the next call; no path at all and no map
// are errors.
func TestHazard5MissingPath(t *testing.T) {
	f, a, want := setup(t)
	u := must(t, want)
	f.down[u.portals[1]] = true
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	st, err := a.Status(t.Context(), "v1")
	if err != nil || !st.Paths[0].Current || st.Paths[1].Connected || st.Paths[1].LastError == "" {
		t.Fatalf("%+v %v", st, err)
	}
	f.down[u.portals[1]] = false
	n := len(f.steps)
	if _, err := a.Attach(t.Context(), want); err != nil || len(f.steps) != n {
		t.Fatal("a portal that did not answer moments ago is waited for", err, f.steps[n:])
	}
	if _, err := attacherOn(t, f, a.cfg.Dir).Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}

	f, a, want = setup(t)
	f.down = map[netip.AddrPort]bool{u.portals[0]: true, u.portals[1]: true}
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrFailed) {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}

	f, a, want = setup(t)
	f.lazy = true
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	f, a, want = setup(t)
	f.lazy, f.deaf = true, true
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrFailed) {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazards 11 and 12: no process is cut off but by force, and what hangs stays whole.
func TestHazard12Busy(t *testing.T) {
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	m := f.mapOf(must(t, want).id)
	m.mounts = []string{"/mnt/x"}
	if err := a.Detach(t.Context(), "v1"); !errors.Is(err, attach.ErrBusy) {
		t.Fatal(err)
	}
	m.mounts, m.holders = nil, []string{"dm-7"}
	if err := a.Detach(t.Context(), "v1"); !errors.Is(err, attach.ErrBusy) {
		t.Fatal(err)
	}
	m.holders = nil
	f.hung = true
	if err := a.Detach(t.Context(), "v1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	if err := a.Purge(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazard 14: a detach needs nothing but the record.
func TestHazard14NothingLeft(t *testing.T) {
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	f.sessions, f.disks, f.maps = nil, nil, nil
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazard 15: sessions go with the last user of the target, and never while a record cannot be read.
func TestHazard15SharedSessions(t *testing.T) {
	f, a, want := setup(t)
	second := attachment("v2", 6, 4, wwid2)
	f.show(second, 1<<30)
	for _, w := range []attach.Attachment{want, second} {
		if _, err := a.Attach(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(f.steps, doLogin); n != 2 {
		t.Fatalf("%d logins", n)
	}
	bad := filepath.Join(a.cfg.Dir, "v3.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context(), "v1"); err == nil || count(f.steps, doLogout) > 0 {
		t.Fatal("a record that cannot be read may use the target", err)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil || len(f.sessions) != 2 {
		t.Fatal(err, f.sessions)
	}
	if err := a.Detach(t.Context(), "v2"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Two that leave at once: the second is the last.
func TestHazard15Together(t *testing.T) {
	for range 50 {
		f, a, want := setup(t)
		second := attachment("v2", 6, 4, wwid2)
		f.show(second, 1<<30)
		errs := make(chan error, 2)
		for _, w := range []attach.Attachment{want, second} {
			go func() { _, err := a.Attach(context.Background(), w); errs <- err }()
		}
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"v1", "v2"} {
			go func() { errs <- a.Detach(context.Background(), id) }()
		}
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Fatal(err)
		}
		if err := f.clean(); err != nil {
			t.Fatal(err)
		}
	}
}

// Hazard 17: after a reboot nothing is there but records; they and the node database are put in
// order.
func TestHazard17Reboot(t *testing.T) {
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	reboot := func() { f.boot, f.sessions, f.disks, f.maps = f.boot+"x", nil, nil, nil }
	reboot()
	if _, err := a.Status(t.Context(), "v1"); !errors.Is(err, attach.ErrFailed) {
		t.Fatal(err)
	}
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Status(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	reboot()
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if err := f.clean(); err != nil {
		t.Fatal(err)
	}
}

// Hazard 18: a session to a portal that is no longer one goes.
func TestHazard18LostPortal(t *testing.T) {
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	second := attachment("v2", 6, 4, wwid2)
	second.Portals = []string{"10.0.1.1:3260", "10.0.3.1:3260"}
	f.show(second, 1<<30)
	if _, err := a.Attach(t.Context(), second); err != nil || len(f.sessions) != 3 {
		t.Fatal(err, f.sessions)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	if len(f.sessions) != 2 || len(f.to(must(t, second).target, must(t, want).portals[1])) > 0 {
		t.Fatal(f.sessions)
	}
}

// Hazard 23: every path shows the new size, then the map has it.
func TestHazard23Resize(t *testing.T) {
	f, a, want := setup(t)
	u := must(t, want)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	f.sizes[u.id] = 2 << 30
	if size, err := a.Resize(t.Context(), "v1"); err != nil || size != 2<<30 {
		t.Fatal(size, err)
	}
	if n := count(f.steps, doRescan); n != 2 {
		t.Errorf("%d paths looked at", n)
	}
	// A path without a session cannot be asked and would keep the map from growing.
	f.sizes[u.id] = 3 << 30
	f.sessions[1].connected = false
	if size, err := a.Resize(t.Context(), "v1"); err != nil || size != 3<<30 || len(f.disksOf(u.id)) != 1 {
		t.Fatal(size, err, f.disks)
	}
	f.sessions[1].connected = true
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Resize(t.Context(), "none"); !errors.Is(err, attach.ErrNotAttached) {
		t.Fatal(err)
	}
}

// Hazard 26: what an earlier publish left is cut off first, its users too; while somebody keeps the
// map open nothing new is made of it.
func TestHazard26Generations(t *testing.T) {
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	next := attachment("v1", 7, 8, wwid1)
	f.show(next, 1<<30)
	f.mapOf(must(t, want).id).mounts = []string{"/staging", "/pod"}
	f.open = true
	if _, err := a.Attach(t.Context(), next); !errors.Is(err, attach.ErrBusy) {
		t.Fatal(err)
	}
	if len(f.disks) > 0 {
		t.Fatal("the old user has paths", f.disks)
	}
	f.open = false
	if _, err := a.Attach(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(next); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Attach(t.Context(), want); !errors.Is(err, attach.ErrInvalid) {
		t.Fatal("an older publish was taken", err)
	}
	// The record was lost, the map was not.
	if err := a.forget("v1"); err != nil {
		t.Fatal(err)
	}
	f.mapOf(must(t, want).id).mounts = []string{"/staging"}
	if _, err := a.Attach(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if err := f.healthy(next); err != nil {
		t.Fatal(err)
	}
	if m := f.mapOf(must(t, next).id); len(m.mounts) > 0 {
		t.Fatal("a map with an old user was taken over", m)
	}
	if ids, _ := a.Attached(); !slices.Equal(ids, []string{"v1"}) {
		t.Fatal(ids)
	}
}

// Hazard 27: sessions under a name that is no longer ours are made again.
func TestHazard27Name(t *testing.T) {
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context(), "v1"); err != nil {
		t.Fatal(err)
	}
	u := must(t, want)
	f.sessions = []session{{sid: 70, host: 70, iface: ifaceName, initiator: "iqn.2026-11.storage.gemel:node.old", target: u.target, portal: u.portals[0], connected: true},
		{sid: 71, host: 71, iface: "default", initiator: "iqn.2026-11.storage.gemel:node.old", target: u.target, portal: u.portals[1], connected: true}}
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if f.sessions[0].sid != 71 {
		t.Fatal("somebody else's session was ended")
	}
	f.sessions = f.sessions[1:]
	if err := f.healthy(want); err != nil {
		t.Fatal(err)
	}
}
