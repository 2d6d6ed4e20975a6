package kernel

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gemel-storage/gemel/csi/attach"
)

// running heals in a bubble of made-up time; changed is how often the paths were said to have
// changed.
func (x *ill) running(t *testing.T) (changed func() int) {
	var mu sync.Mutex
	n := 0
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { x.a.Run(ctx, func() { mu.Lock(); defer mu.Unlock(); n++ }) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func() int { mu.Lock(); defer mu.Unlock(); return n }
}

func (x *ill) lock(f func()) { x.mu.Lock(); defer x.mu.Unlock(); f() }

func (x *ill) now() error { x.mu.Lock(); defer x.mu.Unlock(); return x.healthy(x.want) }

// An event is served in seconds, one that was lost in a minute or so; without events, growth is
// found too.
func TestHazard19Events(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIll(t)
		x.tells = make(chan change)
		changed := x.running(t)
		time.Sleep(2 * sweep)
		x.loseSession(1)
		before := changed()
		x.tells <- change{}
		time.Sleep(2 * settle)
		if err := x.now(); err != nil {
			t.Error("event:", err)
		}
		if changed() <= before {
			t.Error("the change was not reported")
		}
		time.Sleep(2 * sweep)
		x.lock(func() { x.remove(x.disks[0]) })
		time.Sleep(2 * settle)
		time.Sleep(sweep + sweep/5)
		if err := x.now(); err != nil {
			t.Error("lost event:", err)
		}
		x.lock(func() { x.sizes[x.u.id] = 2 << 30 })
		at := x.disks[0].at
		x.tells <- change{sized: []hctl{at}}
		time.Sleep(2*settle + restMost)
		x.lock(func() {
			if x.maps[0].size != 2<<30 {
				t.Error(x.maps)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		x := newIll(t)
		x.running(t) // there are no events
		time.Sleep(2 * sweep)
		x.lock(func() { x.sizes[x.u.id] = 2 << 30 })
		time.Sleep(sweep + sweep/5)
		x.lock(func() {
			if x.maps[0].size != 2<<30 {
				t.Error(x.maps)
			}
		})
	})
}

// A group with paths of both nodes is made again once it has stayed: while the owner changes,
// multipathd reads one priority after the other.
func TestHazard19MixedGroups(t *testing.T) {
	groups := func(prios ...int) map[string]pathState {
		out := map[string]pathState{}
		for i, p := range prios {
			out["sd"+string(rune('a'+i))] = pathState{usable: true, prio: p, group: i / 2}
		}
		return out
	}
	for name, c := range map[string]struct {
		states map[string]pathState
		ends   bool // by itself, before it counts
		want   int
	}{
		"groups of one node":         {states: groups(50, 50, 10, 10)},
		"a group of both":            {states: groups(50, 10, 50, 10), want: 1},
		"a group of both for 5 s":    {states: groups(50, 10, 50, 10), ends: true},
		"the other path is not used": {states: map[string]pathState{"sda": {usable: true, prio: 50}, "sdb": {prio: 10}}},
		"multipathd says nothing":    {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newIll(t)
				x.tells = make(chan change)
				x.running(t)
				time.Sleep(time.Second)
				x.lock(func() { x.known = map[string]map[string]pathState{x.u.id.wwid(): c.states} })
				x.tells <- change{}
				time.Sleep(mixedAfter / 2)
				if c.ends {
					x.lock(func() { x.known = nil })
				}
				time.Sleep(mixedAfter)
				n := 0
				x.lock(func() {
					for _, s := range x.steps {
						if s.do == doRegroup {
							n++
						}
					}
				})
				if n != c.want {
					t.Errorf("%d times, want %d", n, c.want)
				}
			})
		})
	}
}

// However loud the kernel is, and no matter who undoes what is healed: an hour has a bounded number
// of attempts.
func TestHazard19Bounded(t *testing.T) {
	storm := func(x *ill) {
		go func() {
			for range int(time.Hour / (100 * time.Millisecond)) {
				select {
				case x.tells <- change{}:
				default:
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
		time.Sleep(time.Hour + time.Second)
	}
	for name, c := range map[string]struct {
		spoil func(*ill)
		verb  verb
		most  int
	}{
		"paths of both nodes that stay in one group": {func(x *ill) {
			x.known = map[string]map[string]pathState{x.u.id.wwid(): {"sda": {usable: true, prio: 50}, "sdb": {usable: true, prio: 10}}}
			x.stays = true
		}, doRegroup, 100},
		"a portal that is down": {func(x *ill) { x.loseSession(1); x.down = map[netip.AddrPort]bool{x.u.portals[1]: true} }, doLogin, 100},
		"a LUN that is not shown": {func(x *ill) {
			x.remove(x.disks[1])
			delete(x.shown[x.u.portals[1]], x.u.lun)
		}, doScan, 2 * 80},
		"somebody takes a path out again and again": {func(x *ill) {
			x.before = func(s step) {
				if s.do == doScan {
					go func() { time.Sleep(time.Second); x.lock(func() { x.remove(x.disks[1]) }) }()
				}
			}
			x.remove(x.disks[1])
		}, doScan, 2 * 80},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newIll(t)
				x.tells = make(chan change)
				c.spoil(x)
				x.running(t)
				storm(x)
				if n := count(x.taken(), c.verb); n > c.most || n < 10 {
					t.Errorf("%q %d times", c.verb, n)
				}
			})
		})
	}
	t.Run("a step that does not end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newIll(t)
			x.loseSession(1)
			x.ends = true
			begin := time.Now()
			if x.pass(); time.Since(begin) != healLimit {
				t.Error(time.Since(begin))
			}
		})
	})
}

// Healing that is ended at any step, or the process with it, is taken up by the next one, and a
// call finds its way from there.
func TestHazard19EndsAtEveryStep(t *testing.T) {
	spoil := func(x *ill) {
		x.loseSession(1)
		x.sizes[x.u.id] = 2 << 30
		x.h.keep(change{all: true})
	}
	for at := 0; ; at++ {
		ended := false
		for _, how := range []string{"killed before", "killed after", "context"} {
			for _, then := range []string{"heal", "attach", "detach"} {
				x := newIll(t)
				spoil(x)
				ctx, cancel := context.WithCancel(t.Context())
				if how == "context" {
					x.before = func(step) {
						if len(x.steps) == x.from+at {
							cancel()
							ended = true
						}
					}
				} else {
					x.dieAt, x.dieBefore = len(x.steps)+at, how == "killed before"
				}
				x.h.pass(ctx, time.Now())
				cancel()
				ended = ended || x.dead
				x.dead, x.dieAt, x.before = false, -1, nil
				x.gentle()
				x.a = attacherOn(t, x.fake, x.a.cfg.Dir)
				x.h = newHealer(x.a)
				var err error
				switch then {
				case "heal":
					x.pass()
				case "attach":
					if _, err = x.a.Attach(t.Context(), x.want); err == nil {
						_, err = x.a.Resize(t.Context(), "v1")
					}
					if err == nil { // the path whose size was not the map's
						_, err = x.a.Attach(t.Context(), x.want)
					}
				case "detach":
					if err = x.a.Detach(t.Context(), "v1"); err == nil {
						err = x.clean()
					}
				}
				if err == nil && then != "detach" {
					err = x.healthy(x.want)
				}
				if err != nil {
					t.Fatalf("step %d %s, then %s: %v", at, how, then, err)
				}
			}
		}
		if !ended {
			if at < 5 {
				t.Fatalf("only %d steps", at)
			}
			return
		}
	}
}

func TestParseEvent(t *testing.T) {
	zero := func(lines ...string) (out []byte) {
		for _, l := range lines {
			out = append(append(out, l...), 0)
		}
		return out
	}
	device := "DEVPATH=/devices/platform/host2/session1/target2:0:0/2:0:0:3"
	for _, c := range []struct {
		name  string
		raw   []byte
		ok    bool
		sized int
	}{
		{"capacity", zero("change@/devices/platform/host2", "ACTION=change", device, "SUBSYSTEM=scsi", "SDEV_UA=CAPACITY_DATA_HAS_CHANGED", "DEVTYPE=scsi_device"), true, 1},
		{"identity", zero("change@/x", device, "SUBSYSTEM=scsi", "SDEV_UA=INQUIRY_DATA_HAS_CHANGED", "DEVTYPE=scsi_device"), true, 1},
		{"other attention", zero("change@/x", device, "SUBSYSTEM=scsi", "SDEV_UA=REPORTED_LUNS_DATA_HAS_CHANGED", "DEVTYPE=scsi_device"), true, 0},
		{"device", zero("remove@/x", "ACTION=remove", device, "SUBSYSTEM=scsi", "DEVTYPE=scsi_device"), true, 0},
		{"target", zero("add@/x", "DEVPATH=/devices/platform/host2/session1/target2:0:0", "SUBSYSTEM=scsi", "DEVTYPE=scsi_target"), false, 0},
		{"disk", zero("remove@/x", device+"/block/sdb", "SUBSYSTEM=block", "DEVTYPE=disk"), true, 0},
		{"map", zero("change@/x", "DEVPATH=/devices/virtual/block/dm-0", "SUBSYSTEM=block", "DEVTYPE=disk", "DM_ACTION=PATH_FAILED"), true, 0},
		{"partition", zero("add@/x", device+"/block/sdb/sdb1", "SUBSYSTEM=block", "DEVTYPE=partition"), false, 0},
		{"loop device", zero("change@/x", "DEVPATH=/devices/virtual/block/loop3", "SUBSYSTEM=block", "DEVTYPE=disk"), false, 0},
		{"session", zero("add@/x", "DEVPATH=/devices/platform/host2/session1/iscsi_session/session1", "SUBSYSTEM=iscsi_session"), true, 0},
		{"network", zero("add@/x", "DEVPATH=/devices/virtual/net/eth0", "SUBSYSTEM=net"), false, 0},
		{"empty", nil, false, 0},
		{"noise", []byte("libudev\x00\xfe\xed\xca\xfe=\x00="), false, 0},
		{"bad address", zero("change@/x", "DEVPATH=/devices/x:y", "SUBSYSTEM=scsi", "SDEV_UA=CAPACITY_DATA_HAS_CHANGED", "DEVTYPE=scsi_device"), true, 0},
	} {
		got, ok := parseEvent(c.raw)
		if ok != c.ok || len(got.sized) != c.sized || c.sized == 1 && got.sized[0] != (hctl{2, 0, 0, 3}) {
			t.Errorf("%s: %+v %v", c.name, got, ok)
		}
	}
}

// What is remembered of single devices is bounded.
func TestManyEvents(t *testing.T) {
	x := newIll(t)
	for i := range uint64(3 * maxSized) {
		x.h.note(change{sized: []hctl{{lun: i}}})
	}
	if c := x.h.take(); !c.all || len(c.sized) > maxSized {
		t.Error(c.all, len(c.sized))
	}
}

// Hazard 1: a path of our own map that is another LUN's goes, also without the healer; the call
// says that the LUN is not there.
func TestHazard1OwnMap(t *testing.T) {
	x := newIll(t)
	other, _ := parseNAA(wwid2)
	x.shown[x.u.portals[1]][x.u.lun], x.disks[1].id = other, other
	if _, err := x.a.Attach(t.Context(), x.want); !errors.Is(err, attach.ErrFailed) || len(x.maps[0].slaves) != 1 {
		t.Fatal(err, x.maps)
	}
}

// Hazard 23: no map is made as small as a capacity that could not be read.
func TestHazard23NoSize(t *testing.T) {
	x := newIll(t)
	x.sizes[x.u.id] = 0
	if _, err := x.a.Resize(t.Context(), "v1"); !errors.Is(err, attach.ErrFailed) || x.maps[0].size != 1<<30 {
		t.Fatal(err, x.maps)
	}
}

// A node record that somebody removed is asked for where the secrets are.
func TestLostNodeRecord(t *testing.T) {
	x := newIll(t)
	secret := &attach.CHAP{User: "u", Secret: "s"}
	if err := x.a.Renew(t.Context(), attach.Refusal{VolumeID: "v1"}, secret, nil); err != nil {
		t.Fatal(err)
	}
	x.loseSession(1)
	x.nodes = nil
	x.pass()
	if refused, err := x.a.Refused(t.Context()); err != nil || len(refused) != 1 {
		t.Fatal(refused, err)
	}
	if err := x.a.Renew(t.Context(), attach.Refusal{VolumeID: "v1"}, secret, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.healthy(x.want); err != nil || len(x.nodes) != 2 {
		t.Fatal(err, x.nodes)
	}
}
