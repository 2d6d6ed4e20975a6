package initiator

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/alua"
)

// believed is the bound of these tests, patience the deadline that must not be waited for, or must
// be.
const (
	believed = 400 * time.Millisecond
	patience = 2 * time.Second
)

// unmap takes the LUN from the host at both nodes, as an unpublish does; what it returns gives it
// back.
func (x *twoNodes) unmap() (remap func()) {
	var was [2]*scsi.Unit
	for i, n := range x.nodes {
		was[i] = n.unit.Swap(nil)
	}
	return func() {
		for i, n := range x.nodes {
			n.unit.Store(was[i])
		}
	}
}

// stand has a node serve or not, whatever it knows.
func (n *oneNode) stand(a scsi.Access) { n.access.Store(uint32(a)) }

func (x *twoNodes) doubting() Config {
	cfg := x.config()
	cfg.NoUnitAfter, cfg.Deadline = believed, patience
	return cfg
}

// attempt writes, and returns what came of it and when.
func attempt(t *testing.T, d *Device) (time.Duration, error) {
	t.Helper()
	begun := time.Now()
	_, err := d.WriteAt(testContext(t), make([]byte, 4096), 0)
	return time.Since(begun), err
}

// givesUp checks that a write fails because there is no such LUN, in bounded time.
func givesUp(t *testing.T, d *Device, least, most time.Duration) {
	t.Helper()
	took, err := attempt(t, d)
	if !errors.Is(err, ErrNoUnit) || errors.Is(err, ErrNoPath) || took < least || took > most {
		t.Fatalf("after %v, wanted from %v to %v: %v", took, least, most, err)
	}
}

// waits checks that a write waits for the deadline and that the device does not doubt the unit.
func waits(t *testing.T, d *Device) {
	t.Helper()
	took, err := attempt(t, d)
	if !errors.Is(err, ErrNoPath) || errors.Is(err, ErrNoUnit) || took < patience || d.NoUnit() {
		t.Fatalf("after %v, no unit %v: %v", took, d.NoUnit(), err)
	}
}

// TestFencedHost: a host whose LUN was unmapped at both nodes has its requests end soon, parked
// ones and new ones, and continues when the LUN is mapped again.
func TestFencedHost(t *testing.T) {
	x := startTwoNodes(t)
	var mu sync.Mutex
	told := map[EventKind]int{}
	cfg := x.doubting()
	cfg.Events = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		told[e.Kind]++
	}
	d := openDevice(t, cfg)
	remap := x.unmap()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := d.WriteAt(context.Background(), make([]byte, 4096), 0)
			if !errors.Is(err, ErrNoUnit) || !strings.Contains(err.Error(), x.nodes[0].addr) || !strings.Contains(err.Error(), "5/25/00") {
				t.Errorf("parked: %v", err)
			}
		})
	}
	givesUp(t, d, believed, patience-200*time.Millisecond)
	wg.Wait()
	for range 3 {
		givesUp(t, d, 0, 200*time.Millisecond)
	}
	if !d.NoUnit() {
		t.Error("the device does not say so")
	}
	remap()
	eventually(t, "the LUN is found again", func() bool { return !d.NoUnit() })
	if _, err := attempt(t, d); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if told[EventNoUnit] != 1 || told[EventUnitBack] != 1 {
		t.Errorf("told %v", told)
	}
}

// TestIdleFencedHost: no request is needed to notice.
func TestIdleFencedHost(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.doubting()
	cfg.Poll = 50 * time.Millisecond
	d := openDevice(t, cfg)
	x.unmap()
	eventually(t, "the device gives the LUN up", d.NoUnit)
	givesUp(t, d, 0, 200*time.Millisecond)
}

// TestUnmappedForAMoment: a LUN that is mapped again within the bound costs no error.
func TestUnmappedForAMoment(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.doubting()
	cfg.NoUnitAfter, cfg.Deadline = 5*time.Second, 20*time.Second
	d := openDevice(t, cfg)
	h := startHammer(t, d, 4)
	defer h.end()
	for range 3 {
		h.more(t)
		remap := x.unmap()
		eventually(t, "nothing serves", func() bool { return current(d) == "" })
		time.Sleep(150 * time.Millisecond)
		remap()
		h.more(t)
	}
}

// TestFencedWhileANodeIsDown: the node that serves is believed without the other.
func TestFencedWhileANodeIsDown(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.doubting())
	x.nodes[1].shutdown()
	x.unmap()
	givesUp(t, d, believed, patience-200*time.Millisecond)
}

// TestFencedWhileANodeJoins: a node that does not serve and shows no unit neither helps nor
// hinders.
func TestFencedWhileANodeJoins(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.doubting())
	x.nodes[1].stand(scsi.AccessUnavailable)
	x.unmap()
	givesUp(t, d, believed, patience-200*time.Millisecond)
}

// TestNodesWithoutTables: nodes that do not serve may know of no LUN yet, and are not believed.
func TestNodesWithoutTables(t *testing.T) {
	for name, stands := range map[string][2]scsi.Access{
		"both are no members":                 {scsi.AccessUnavailable, scsi.AccessUnavailable},
		"both are undecided":                  {scsi.AccessTransitioning, scsi.AccessTransitioning},
		"one is no member, one undecided yet": {scsi.AccessUnavailable, scsi.AccessTransitioning},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startTwoNodes(t)
			d := openDevice(t, x.doubting())
			for i, n := range x.nodes {
				n.stand(stands[i])
			}
			remap := x.unmap()
			waits(t, d)
			for _, n := range x.nodes {
				n.stand(scsi.AccessReady)
			}
			remap()
			if _, err := attempt(t, d); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("one is no member, the other is down", func(t *testing.T) {
		t.Parallel()
		x := startTwoNodes(t)
		d := openDevice(t, x.doubting())
		x.nodes[0].shutdown()
		x.nodes[1].stand(scsi.AccessUnavailable)
		x.nodes[1].unit.Store(nil)
		waits(t, d)
	})
	t.Run("one is new and knows no host, the other is down", func(t *testing.T) {
		t.Parallel()
		x := startTwoNodes(t)
		d := openDevice(t, x.doubting())
		x.nodes[0].shutdown()
		x.nodes[1].stranger.Store(true)
		x.nodes[1].stand(scsi.AccessUnavailable)
		x.nodes[1].shutdown()
		x.nodes[1].restart()
		waits(t, d)
	})
}

// TestFencedHostLogsInAgain: a node that serves refuses a host without LUNs. That says as much as
// an answer over a session, also when the other node is down or says nothing, and a mapping ends
// it.
func TestFencedHostLogsInAgain(t *testing.T) {
	for name, other := range map[string]func(*oneNode){
		"both refuse":              func(n *oneNode) { n.stranger.Store(true); n.shutdown(); n.restart() },
		"the other is down":        func(n *oneNode) { n.shutdown() },
		"the other does not serve": func(n *oneNode) { n.stranger.Store(true); n.stand(scsi.AccessUnavailable); n.shutdown(); n.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startTwoNodes(t)
			d := openDevice(t, x.doubting())
			one := x.nodes[0]
			one.stranger.Store(true)
			one.shutdown()
			other(x.nodes[1])
			one.restart()
			givesUp(t, d, 0, patience-200*time.Millisecond)
			if _, err := attempt(t, d); CredentialsRefused(err) || !strings.Contains(err.Error(), "0x0202") {
				t.Errorf("the reason is not told: %v", err)
			}
			one.stranger.Store(false)
			eventually(t, "the LUN is found again", func() bool { return !d.NoUnit() })
			if _, err := attempt(t, d); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestOpenBeforeTheMapping: a mapping that comes a moment after the first logins does not fail them
// for good, whatever the nodes say of it.
func TestOpenBeforeTheMapping(t *testing.T) {
	for name, access := range map[string]scsi.Access{"nodes that serve": scsi.AccessReady, "nodes that do not": scsi.AccessTransitioning} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startTwoNodes(t)
			for _, n := range x.nodes {
				n.stranger.Store(true)
				n.stand(access)
			}
			cfg := x.doubting()
			cfg.NoUnitAfter = patience
			mapped := time.AfterFunc(believed, func() {
				for _, n := range x.nodes {
					n.stranger.Store(false)
					n.stand(scsi.AccessReady)
				}
			})
			defer mapped.Stop()
			begun := time.Now()
			openDevice(t, cfg)
			if took := time.Since(begun); took < believed {
				t.Fatalf("opened after %v, before the mapping", took)
			}
		})
	}
}

// TestOpenWithoutLUNs: it ends when the nodes have said so for long enough.
func TestOpenWithoutLUNs(t *testing.T) {
	x := startTwoNodes(t)
	for _, n := range x.nodes {
		n.stranger.Store(true)
	}
	begun := time.Now()
	_, err := Open(testContext(t), x.doubting())
	if took := time.Since(begun); !errors.Is(err, ErrNoUnit) || took < believed || took > patience-200*time.Millisecond {
		t.Fatalf("after %v: %v", took, err)
	}
}

// TestNothingSaid: nodes that cannot be reached say nothing.
func TestNothingSaid(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.doubting())
	for _, n := range x.nodes {
		n.shutdown()
	}
	waits(t, d)
}

// TestOnePathShowsTheUnit: one that shows it outweighs one that does not, although it does not
// serve.
func TestOnePathShowsTheUnit(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.doubting())
	x.set(alua.Optimized, alua.Unavailable)
	eventually(t, "the path is seen unavailable", func() bool { return d.Paths()[1].State == alua.Unavailable })
	x.nodes[0].unit.Store(nil)
	waits(t, d)
}

// TestGivenUpUntilShown: what was said stays while no path can be reached, another unit is not the
// LUN, and the LUN itself is taken back from whichever node shows it first.
func TestGivenUpUntilShown(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.doubting())
	x.unmap()
	givesUp(t, d, believed, patience-200*time.Millisecond)
	for _, n := range x.nodes {
		other, err := scsi.NewUnit(scsi.UnitConfig{UUID: "99999999-2222-4333-8444-555555555555", SizeBytes: twoSize}, n)
		if err != nil {
			t.Fatal(err)
		}
		n.unit.Store(other)
		n.writes.Store(0)
	}
	for i := range x.nodes {
		eventually(t, "the other unit is refused", func() bool { return errors.Is(d.Paths()[i].LastError, ErrWrongUnit) })
	}
	givesUp(t, d, 0, 200*time.Millisecond)
	if n := x.nodes[0].writes.Load() + x.nodes[1].writes.Load(); n != 0 {
		t.Errorf("%d writes went to another unit", n)
	}
	for _, n := range x.nodes {
		n.shutdown()
	}
	eventually(t, "no path", func() bool { return errors.Is(d.Paths()[1].LastError, syscall.ECONNREFUSED) })
	givesUp(t, d, 0, 200*time.Millisecond)
	x.nodes[1].restart()
	eventually(t, "the LUN is found again", func() bool { return !d.NoUnit() })
	if _, err := attempt(t, d); err != nil || current(d) != x.nodes[1].addr {
		t.Fatalf("over %s: %v", current(d), err)
	}
}

// TestOpenWithoutUnit: Open does not wait for a LUN that the target says is not there.
func TestOpenWithoutUnit(t *testing.T) {
	x := startTwoNodes(t)
	x.unmap()
	begun := time.Now()
	_, err := Open(testContext(t), x.doubting())
	if took := time.Since(begun); !errors.Is(err, ErrNoUnit) || took < believed || took >= patience {
		t.Fatalf("after %v: %v", took, err)
	}
	for _, after := range []time.Duration{-time.Second, time.Millisecond} {
		cfg := x.config()
		cfg.NoUnitAfter = after
		if _, err := Open(testContext(t), cfg); err == nil || !strings.Contains(err.Error(), "no-unit bound") {
			t.Errorf("%v: %v", after, err)
		}
	}
}

// TestDoubtIsContinuous: the clock begins again when a path has shown the unit, or when no path
// says anything.
func TestDoubtIsContinuous(t *testing.T) {
	d := &Device{cfg: Config{NoUnitAfter: time.Second}, log: slog.New(slog.DiscardHandler), changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	a, b := &path{d: d, portal: "a"}, &path{d: d, portal: "b"}
	d.paths = []*path{a, b}
	says := func(p *path, none bool) {
		d.change(func() {
			p.noUnit = none
			d.noUnitSaidLocked(p)
		})
	}
	age := func() { d.noUnitSince -= int64(time.Minute) }
	says(a, true)
	age()
	d.change(func() { a.noUnit = false }) // its session has ended
	says(a, true)
	if d.NoUnit() {
		t.Fatal("nobody had said it all the time")
	}
	age()
	d.change(func() { b.view.up = true })
	d.change(func() { b.view.up = false })
	says(a, true)
	if d.NoUnit() {
		t.Fatal("the unit was shown meanwhile")
	}
	age()
	d.change(func() {})
	if d.NoUnit() {
		t.Fatal("time alone has decided")
	}
	says(b, true)
	if !d.NoUnit() {
		t.Fatal("not believed after all this time")
	}
	d.change(func() { a.noUnit, b.noUnit = false, false })
	if !d.NoUnit() {
		t.Fatal("silence has changed what was said")
	}
	d.change(func() { b.view.up = true })
	if d.NoUnit() {
		t.Fatal("the unit is shown again")
	}
}
