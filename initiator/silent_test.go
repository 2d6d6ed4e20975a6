package initiator

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// valve is a way to a node that can be shut: connections stay up, and nothing comes through.
type valve struct {
	addr string
	mu   sync.Mutex
	open sync.Cond
	shut bool
}

func newValve(t *testing.T, to string) *valve {
	t.Helper()
	v := &valve{}
	v.open.L = &v.mu
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v.addr = l.Addr().String()
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			v.mu.Lock()
			conns = append(conns, c, far)
			v.mu.Unlock()
			for _, way := range [][2]net.Conn{{c, far}, {far, c}} {
				wg.Go(func() { v.pass(way[0], way[1]) })
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		v.set(false)
		v.mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		v.mu.Unlock()
		wg.Wait()
	})
	return v
}

func (v *valve) set(shut bool) {
	v.mu.Lock()
	v.shut = shut
	v.mu.Unlock()
	v.open.Broadcast()
}

func (v *valve) pass(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		v.mu.Lock()
		for v.shut {
			v.open.Wait()
		}
		v.mu.Unlock()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// silentRig is a device over two valves, with a write under way to the node that is silent.
func silentRig(t *testing.T) (x *twoNodes, d *Device, down chan Event, wrote chan time.Duration) {
	x = startTwoNodes(t)
	x.set(alua.Optimized, alua.NonOptimized)
	cfg := x.config()
	a, b := newValve(t, x.nodes[0].addr), newValve(t, x.nodes[1].addr)
	cfg.Portals = []string{a.addr, b.addr}
	down, wrote = make(chan Event, 10), make(chan time.Duration, 1)
	cfg.Events = func(e Event) {
		if e.Kind == EventPathDown {
			down <- e
		}
	}
	d, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.Close(ctx)
	})
	eventually(t, "both paths are up", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.paths[0].view.up && d.paths[1].view.up
	})
	if _, err := d.WriteAt(t.Context(), make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // nothing is asked for: the session is not watched
	a.set(true)
	go func() {
		begun := time.Now()
		if _, err := d.WriteAt(context.Background(), make([]byte, 4096), 4096); err != nil {
			t.Error(err)
		}
		wrote <- time.Since(begun)
	}()
	return x, d, down, wrote
}

// A node goes silent with a command of ours, and its partner takes over: the command continues
// there without waiting for the ping of the silent session.
func TestSilentNodeIsLeftForItsPartner(t *testing.T) {
	x, _, down, wrote := silentRig(t)
	time.AfterFunc(400*time.Millisecond, func() { x.set(alua.Unavailable, alua.Optimized) }) // the lease
	took := <-wrote
	if e := <-down; !errors.Is(e.Err, ErrTakenOver) {
		t.Errorf("the path went down for %v", e.Err)
	}
	if took > 1800*time.Millisecond { // the ping takes 2.25 s
		t.Errorf("the write took %v", took)
	}
}

// No node takes over: the silent session gets its 2 x AgeLimit, for the node may still mean to
// execute what it has.
func TestSilentNodeIsGivenItsTime(t *testing.T) {
	_, _, down, wrote := silentRig(t)
	e := <-down
	took := <-wrote
	if !errors.Is(e.Err, ErrPeerSilent) {
		t.Errorf("the path went down for %v", e.Err)
	}
	if took < 2*AgeLimit {
		t.Errorf("the silent session was given up after %v", took)
	}
}

// pathsOf are paths with sessions that nothing is sent over, to one portal each.
func pathsOf(n int, suspect time.Duration) *Device {
	d := &Device{changed: make(chan struct{})}
	for i := range n {
		p := &path{d: d, view: pathView{portal: i, up: true, state: alua.NonOptimized}, kick: make(chan struct{}, 1)}
		p.sess.Store(&Session{now: monotonic, busy: make(chan struct{}, 1), cfg: SessionConfig{Timers: Timers{Suspect: suspect}}})
		d.paths = append(d.paths, p)
	}
	return d
}

// When a path becomes the optimized one, the sessions to other portals are looked at without
// waiting for their turn, and those to its own portal are not.
func TestTakeoverIsNoticedAtOnce(t *testing.T) {
	d := pathsOf(3, time.Second)
	looks := func() (n [3]int) {
		for i, p := range d.paths {
			n[i] = len(p.sess.Load().busy)
		}
		return n
	}
	d.mu.Lock()
	d.paths[1].setStateLocked(alua.Unavailable)
	if got := looks(); got != [3]int{} {
		t.Errorf("looked at %v for a path that serves nothing", got)
	}
	d.paths[1].setStateLocked(alua.Optimized)
	d.mu.Unlock()
	if got := looks(); got != [3]int{1, 0, 1} {
		t.Errorf("looked at %v", got)
	}
}

// A partner that takes its time to answer is asked less often.
func TestSlowPartnerIsAskedLess(t *testing.T) {
	d := pathsOf(2, 200*time.Millisecond)
	now := int64(time.Hour)
	d.paths[0].sess.Load().now = func() int64 { return now }
	asked := func() bool {
		d.paths[0].silent()
		return d.paths[1].wants.Swap(0)&wantALUA != 0
	}
	for _, x := range []struct{ took, rest time.Duration }{{time.Millisecond, 4 * time.Millisecond}, {3 * time.Millisecond, 12 * time.Millisecond}, {time.Second, 25 * time.Millisecond}} {
		now += int64(time.Second)
		d.paths[1].asking = int64(x.took)
		first := asked()
		now += int64(x.rest) - 1
		early := asked()
		now++
		if late := asked(); !first || early || !late {
			t.Errorf("an answer took %v: asked %v, before %v %v, after it %v", x.took, first, x.rest, early, late)
		}
	}
}
