package kernel

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// ill is a worker whose attachment is whole, and who heals it.
type ill struct {
	*fake
	t    *testing.T
	a    *Attacher
	h    *healer
	want attach.Attachment
	u    unit
	from int // steps that were taken before
}

func newIll(t *testing.T) *ill {
	t.Helper()
	f, a, want := setup(t)
	if _, err := a.Attach(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	x := &ill{fake: f, t: t, a: a, h: newHealer(a), want: want, u: must(t, want), from: len(f.steps)}
	// In the order of the portals, whichever login was faster.
	if f.sessions[0].portal != x.u.portals[0] {
		slices.Reverse(f.sessions)
	}
	if f.disks[0].at.host != f.sessions[0].host {
		slices.Reverse(f.disks)
		slices.Reverse(f.maps[0].slaves)
	}
	x.h.take()
	return x
}

// pass looks once, and checks that nothing was done that only a call may do.
func (x *ill) pass() time.Time {
	x.t.Helper()
	next, _ := x.h.pass(x.t.Context(), time.Now())
	x.gentle()
	return next
}

func (x *ill) gentle() {
	x.t.Helper()
	for _, s := range x.taken() {
		switch s.do {
		case doFlush, doFail, doUnmount, doWipe, doRemove, doUnclaim, doResume, doAwaitSession:
			x.t.Errorf("healed by %q", s)
		}
	}
}

func (x *ill) taken() []step {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.steps[x.from:])
}

func (x *ill) loseSession(i int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sessions[i]
	x.sessions = slices.Delete(x.sessions, i, i+1)
	for _, d := range slices.Clone(x.disks) {
		if d.at.host == s.host {
			x.remove(d)
		}
	}
}

// Hazard 19: what a call would fix is fixed without one.
func TestHazard19Heals(t *testing.T) {
	other, _ := parseNAA(wwid2)
	elsewhere := netip.MustParseAddrPort("10.0.9.9:3260")
	for _, c := range []struct {
		name  string
		spoil func(*ill)
		check func(*ill) bool // beyond being whole
	}{
		{"a session", func(x *ill) { x.loseSession(0) }, nil},
		{"both sessions", func(x *ill) { x.loseSession(0); x.loseSession(0) }, nil},
		{"a disk", func(x *ill) { x.remove(x.disks[1]) }, nil},
		{"a path that the map lacks", func(x *ill) { x.maps[0].slaves, x.disks[1].holders = x.maps[0].slaves[:1], nil }, nil},
		{"1: a wrong WWID at our address", func(x *ill) {
			x.remove(x.disks[1])
			x.disks = append(x.disks, disk{at: hctl{host: x.sessions[1].host, lun: x.u.lun}, name: "stale", id: other})
		}, func(x *ill) bool { return count(x.taken(), doDelete) == 1 }},
		{"1: a wrong WWID in our own map", func(x *ill) {
			x.shown[x.u.portals[1]][x.u.lun] = other
			x.disks[1].id = other
			x.before = func(s step) {
				if s.do == doDelete {
					x.shown[x.u.portals[1]][x.u.lun] = x.u.id
				}
			}
		}, func(x *ill) bool { return count(x.taken(), doDelete) == 1 }},
		{"1: the target says that it is another one by now", func(x *ill) {
			x.disks[1].id = naa{}
		}, func(x *ill) bool { return count(x.taken(), doDelete) == 1 }},
		{"1: an older LUN number of ours", func(x *ill) {
			x.disks = append(x.disks, disk{at: hctl{host: x.sessions[0].host, lun: 77}, name: "old", id: x.u.id})
		}, nil},
		{"18: a portal that nobody has", func(x *ill) {
			x.sessions = append(x.sessions, session{sid: 9, host: 9, iface: ifaceName, initiator: x.u.initiator, target: x.u.target, portal: elsewhere})
			x.nodes = append(x.nodes, nodeFile{target: x.u.target, portal: elsewhere})
		}, func(x *ill) bool { return len(x.nodes) == 2 }},
		{"23: the LUN has grown", func(x *ill) {
			x.sizes[x.u.id] = 2 << 30
			x.h.keep(change{sized: []hctl{x.disks[0].at}})
		}, func(x *ill) bool { return x.maps[0].size == 2<<30 }},
		{"23: a disk that came back larger", func(x *ill) { x.sizes[x.u.id] = 2 << 30; x.remove(x.disks[1]) },
			func(x *ill) bool { return x.maps[0].size == 2<<30 }},
		{"a disk whose size could not be read", func(x *ill) { x.disks[1].size = 0 }, func(x *ill) bool { return x.disks[1].size == 1<<30 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIll(t)
			c.spoil(x)
			x.pass()
			if err := x.healthy(x.want); err != nil {
				t.Fatal(err, x.taken())
			}
			if c.check != nil && !c.check(x) {
				t.Fatalf("%+v, after %v", x.observed, x.taken())
			}
			n := len(x.taken())
			x.h.volumes["v1"].rest = 0
			if x.pass(); len(x.taken()) != n {
				t.Errorf("and then %v", x.taken()[n:])
			}
		})
	}
}

// What is whole, what is not understood and what is a call's business stays as it is.
func TestHazard19LeftAlone(t *testing.T) {
	other, _ := parseNAA(wwid2)
	for name, spoil := range map[string]func(*ill){
		"whole": func(*ill) {},
		"13: suspended": func(x *ill) {
			x.maps[0].suspended = true
			x.remove(x.disks[1])
		},
		"another boot": func(x *ill) { x.boot, x.sessions, x.disks, x.maps = "boot-2", nil, nil, nil },
		"being detached": func(x *ill) {
			x.maps[0].mounts = []string{"/mnt"}
			if err := x.a.Detach(context.Background(), "v1"); !errors.Is(err, attach.ErrBusy) {
				x.t.Fatal(err)
			}
			x.loseSession(1)
		},
		"cut off, and still held by somebody": func(x *ill) {
			x.open = true
			if err := x.a.Purge(context.Background(), "v1"); !errors.Is(err, attach.ErrBusy) {
				x.t.Fatal(err)
			}
			x.from = len(x.steps)
		},
		"15: a record that cannot be read": func(x *ill) {
			x.loseSession(1)
			if err := os.WriteFile(filepath.Join(x.a.cfg.Dir, "v2.json"), []byte("{"), 0o600); err != nil {
				x.t.Fatal(err)
			}
		},
		"a worker that lacks something": func(x *ill) {
			x.loseSession(1)
			x.h.ready = func(context.Context) error { return ErrLacks }
		},
		"10: a connection that iscsid brings back": func(x *ill) { x.sessions[1].connected = false },
		"10: connections that iscsid brings back, and no path": func(x *ill) {
			x.loseSession(1)
			x.down = map[netip.AddrPort]bool{x.u.portals[0]: true, x.u.portals[1]: true}
			x.a.outcome(x.u.portals[1], errors.New("no answer"))
			x.sessions[0].connected = false
			x.remove(x.disks[0])
		},
		"23: grown, but one path cannot tell": func(x *ill) {
			x.sizes[x.u.id], x.sessions[1].connected = 2<<30, false
			x.h.keep(change{all: true})
		},
		"23: nobody told of the growth": func(x *ill) { x.sizes[x.u.id] = 2 << 30 },
		"29: the node record is gone, and the secrets with it": func(x *ill) {
			if err := x.a.Renew(context.Background(), attach.Refusal{VolumeID: "v1"}, &attach.CHAP{User: "u", Secret: "s"}, nil); err != nil {
				x.t.Fatal(err)
			}
			x.loseSession(1)
			x.nodes, x.from = nil, len(x.steps)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newIll(t)
			spoil(x)
			x.pass()
			if taken := x.taken(); len(taken) > 0 {
				t.Error(taken)
			}
		})
	}
	t.Run("1: a device of another volume that is in use", func(t *testing.T) {
		x := newIll(t)
		x.remove(x.disks[1])
		x.shown[x.u.portals[1]][x.u.lun] = other
		foreign := disk{at: hctl{host: x.sessions[1].host, lun: x.u.lun}, name: "foreign", id: other, holders: []string{"dm-9"}}
		x.disks = append(x.disks, foreign)
		x.maps = append(x.maps, dmMap{kernel: "dm-9", id: other, slaves: []string{"foreign"}})
		x.remove(x.disks[0]) // which is not kept from being healed
		x.pass()
		if len(x.mapOf(x.u.id).slaves) != 1 {
			t.Error(x.maps)
		}
		if d := x.disk(foreign.at); d == nil || count(x.taken(), doDelete)+count(x.taken(), doLogout) > 0 || len(x.mapOf(other).slaves) != 1 {
			t.Error(x.taken())
		}
	})
	t.Run("1: a LUN number that another attachment has by now", func(t *testing.T) {
		x := newIll(t)
		next := attachment("v2", 9, x.want.LUN, wwid2)
		if err := x.a.save(&record{Version: 1, BootID: x.boot, Attachment: next, Partial: true}); err != nil {
			t.Fatal(err)
		}
		x.disks[0].id, x.disks[0].holders, x.maps[0].slaves = other, nil, x.maps[0].slaves[1:]
		if x.pass(); len(x.taken()) > 0 {
			t.Error("a call that attaches it is disturbed", x.taken())
		}
	})
	t.Run("1: a LUN number that is another LUN's", func(t *testing.T) {
		x := newIll(t)
		x.shown[x.u.portals[1]][x.u.lun] = other
		x.remove(x.disks[1])
		x.pass()
		if d := x.disk(hctl{host: x.sessions[1].host, lun: x.u.lun}); d != nil || len(x.maps) != 1 || len(x.maps[0].slaves) != 1 {
			t.Error(d, x.maps, x.taken())
		}
	})
	t.Run("23: a LUN that shows less than its map", func(t *testing.T) {
		x := newIll(t)
		x.sizes[x.u.id] = 1 << 20
		x.h.keep(change{all: true})
		if x.pass(); x.maps[0].size != 1<<30 {
			t.Error(x.maps)
		}
	})
}

// The credentials of a session that lost its connection were changed: it is made again, one at a
// time, and only where its portal answers.
func TestHazard19Credentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIll(t)
		old, fresh := &attach.CHAP{User: "u", Secret: "old"}, &attach.CHAP{User: "u", Secret: "new"}
		if err := x.a.Renew(t.Context(), attach.Refusal{VolumeID: "v1"}, old, nil); err != nil {
			t.Fatal(err)
		}
		x.wants = map[netip.AddrPort]string{x.u.portals[0]: "new", x.u.portals[1]: "new"}
		x.sessions[0].connected, x.sessions[1].connected = false, false
		x.down[x.u.portals[0]], x.down[x.u.portals[1]] = true, true
		x.from = len(x.steps)
		wait := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				next := x.pass()
				time.Sleep(min(time.Until(next), time.Until(end)))
			}
		}
		if wait(time.Hour); len(x.taken()) > 0 {
			t.Fatal("a silent portal's session was touched", x.taken())
		}
		x.down = nil
		if wait(10 * time.Second); len(x.taken()) > 0 {
			t.Fatal("iscsid was given no time", x.taken())
		}
		wait(time.Minute)
		if len(x.sessions) != 1 || count(x.taken(), doLogout) != 1 || len(x.mapOf(x.u.id).slaves) != 1 {
			t.Fatal("one session may go, the other holds the map's last path", x.sessions, x.taken())
		}
		refused, err := x.a.Refused(t.Context())
		if err != nil || len(refused) != 1 {
			t.Fatal(refused, err)
		}
		if err := x.a.Renew(t.Context(), attach.Refusal{VolumeID: "v1"}, fresh, nil); err != nil {
			t.Fatal(err)
		}
		if err := x.healthy(x.want); err != nil {
			t.Fatal(err)
		}
		for _, s := range x.sessions {
			if !s.connected {
				t.Errorf("%+v", s)
			}
		}
	})
}

// A call that wants the volume, or another volume of the same target, does not wait for what is
// healed.
func TestHazard19Yields(t *testing.T) {
	for name, want := range map[string]func(*Attacher) func(){
		"the volume": func(a *Attacher) func() { return a.volumes.Lock("v1") },
		"the target": func(a *Attacher) func() { return a.targets.Lock("iqn.2026-11.storage.gemel:demo.p0") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newIll(t)
				x.loseSession(1)
				x.ends = true // the step would take for ever
				called := make(chan time.Time, 1)
				go func() {
					time.Sleep(time.Millisecond)
					defer want(x.a)()
					called <- time.Now()
				}()
				begin := time.Now()
				next := x.pass()
				if took := (<-called).Sub(begin); took > 10*time.Millisecond {
					t.Errorf("a call waited %v", took)
				}
				if next.Sub(begin) > settleMost+time.Second {
					t.Errorf("looks again after %v", next.Sub(begin))
				}
				x.ends = false
				unlock := want(x.a)
				if x.pass(); len(x.sessions) != 1 {
					t.Error("healed while a call has it")
				}
				unlock()
				x.pass()
				if err := x.healthy(x.want); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
