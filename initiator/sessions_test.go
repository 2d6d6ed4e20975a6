package initiator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/alua"
)

// with returns a configuration with several sessions to each portal.
func (x *twoNodes) with(sessions int) Config {
	cfg := x.config()
	cfg.Sessions = sessions
	return cfg
}

// sent is how many commands each session has sent, in the order of paths.
func sent(d *Device) []uint32 {
	n := make([]uint32, len(d.paths))
	for i, p := range d.paths {
		if s := p.sess.Load(); s != nil {
			s.mu.Lock()
			n[i] = s.cmdSN
			s.mu.Unlock()
		}
	}
	return n
}

// connected is how many paths are up.
func connected(d *Device) (n int) {
	for _, p := range d.Paths() {
		if p.Connected {
			n++
		}
	}
	return n
}

// cut ends the session of a path: in turn as the initiator does, and as a broken connection does.
func cut(p *path, broken bool) {
	s := p.sess.Load()
	switch {
	case s == nil:
	case broken:
		_ = s.conn.Close()
	default:
		s.fail(errors.New("cut by the test"))
	}
}

func TestPathsAreListedByPortalAndSession(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.with(3))
	eventually(t, "every path is up", func() bool { return connected(d) == 6 })
	for i, p := range d.Paths() {
		node, session := i/3, i%3
		if p.Portal != x.nodes[node].addr || p.Session != session || p.Current != (node == 0) {
			t.Errorf("path %d: %+v", i, p)
		}
	}
	for _, n := range []int{-1, MaxSessions + 1} {
		if _, err := Open(testContext(t), x.with(n)); err == nil || !strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("%d sessions: %v", n, err)
		}
	}
}

func TestISIDsOfADeviceDiffer(t *testing.T) {
	cfg := Config{Portals: make([]string, 64), ISID: [6]byte{0x80, 1, 2, 3, 0xff, 0xf0}}
	seen := map[[6]byte]bool{}
	for i := range cfg.Portals {
		for j := range MaxSessions {
			isid := cfg.isid(i, j)
			if seen[isid] || [4]byte(isid[:]) != [4]byte(cfg.ISID[:]) {
				t.Fatalf("portal %d, session %d: % x", i, j, isid)
			}
			seen[isid] = true
		}
	}
	cfg.Portals = cfg.Portals[:2]
	if a, b := cfg.isid(0, 0), cfg.isid(1, 0); a[5] != 0xf0 || b[5] != 0xf1 {
		t.Errorf("first sessions: % x, % x", a, b)
	}
}

// TestLoadOfDepthOneStaysOnOneSession, and one of more depth uses all sessions to the portal, but
// none to the other.
func TestLoadOfDepthOneStaysOnOneSession(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.with(4)
	cfg.Poll = time.Hour
	d := openDevice(t, cfg)
	eventually(t, "every path is up", func() bool { return connected(d) == 8 })
	before := sent(d)
	for i := range 200 {
		if _, err := d.WriteAt(testContext(t), make([]byte, 4096), int64(i)*4096); err != nil {
			t.Fatal(err)
		}
	}
	used := 0
	for i, n := range sent(d) {
		switch n -= before[i]; {
		case n >= 200:
			used++
		case n > 0:
			t.Errorf("path %d carried %d commands of a load of depth one", i, n)
		}
	}
	if used != 1 {
		t.Errorf("%d sessions carried a load of depth one", used)
	}
	before = sent(d)
	flood(t, d, 64, 4000)
	for i, n := range sent(d) {
		switch n -= before[i]; {
		case i < 4 && n < 200:
			t.Errorf("session %d carried %d of 4000 commands", i, n)
		case i >= 4 && n > 0:
			t.Errorf("the other portal got %d commands", n)
		}
	}
	for i, p := range d.paths {
		if n := p.load.Load(); n != 0 {
			t.Errorf("path %d: %d commands are counted as in flight", i, n)
		}
	}
}

// flood reads total blocks with depth of them in flight.
func flood(t testing.TB, d *Device, depth, total int) {
	var left atomic.Int64
	left.Store(int64(total))
	var wg sync.WaitGroup
	wg.Add(depth)
	for i := range depth {
		io := &IO{Op: OpRead, Buf: make([]byte, 4096), Off: int64(i) * 4096}
		io.Done = func(io *IO) {
			if io.Err != nil {
				t.Errorf("read: %v", io.Err)
			} else if left.Add(-1) >= 0 {
				if err := d.Submit(io); err == nil {
					return
				}
			}
			wg.Done()
		}
		if err := d.Submit(io); err != nil {
			t.Error(err)
			wg.Done()
		}
	}
	wg.Wait()
}

func TestChoiceOfASessionAllocatesNothing(t *testing.T) {
	d := &Device{cfg: Config{Sessions: 4}}
	c := &carriers{}
	for range 4 {
		c.paths = append(c.paths, &path{d: d})
	}
	held := 0
	if n := testing.AllocsPerRun(1000, func() {
		p := c.next()
		p.begin()
		if held++; held%3 == 0 {
			p.end()
		}
	}); n != 0 {
		t.Errorf("%.1f allocations per command", n)
	}
}

// TestLostSession: commands of a lost session go on over the others to the same portal, and it
// comes back.
func TestLostSession(t *testing.T) {
	x := startTwoNodes(t)
	var routes atomic.Int64
	cfg := x.with(4)
	cfg.Events = func(e Event) {
		if e.Kind == EventRoute {
			routes.Add(1)
		}
	}
	d := openDevice(t, cfg)
	eventually(t, "every path is up", func() bool { return connected(d) == 8 })
	was := routes.Load()
	h := startHammer(t, d, 16)
	defer h.end()
	h.more(t)
	for i := range 12 {
		cut(d.paths[i%4], i%3 == 0)
		h.more(t)
		if current(d) != x.nodes[0].addr {
			t.Fatal("I/O left a portal with three sessions")
		}
		eventually(t, "the session is back", func() bool { return connected(d) == 8 })
	}
	for _, p := range d.paths[1:4] {
		cut(p, true)
	}
	h.more(t)
	if n := routes.Load() - was; n != 0 {
		t.Errorf("I/O took another portal %d times", n)
	}
}

// TestLostNode: with all sessions to a node the I/O goes to the other, and back.
func TestLostNode(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.with(3))
	h := startHammer(t, d, 16)
	defer h.end()
	h.more(t)
	for range 2 {
		n := x.nodes[0]
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = n.server.Shutdown(now) // without a wait for logouts
		<-n.done
		n.server = nil
		eventually(t, "the other node", func() bool { return current(d) == x.nodes[1].addr })
		h.more(t)
		n.restart()
		eventually(t, "every path is up", func() bool { return connected(d) == 6 && current(d) == n.addr })
		h.more(t)
	}
}

// TestStatesAreOfAllSessions: a node that no longer serves is left by all sessions, whether it says
// so or refuses commands, and used by all when it serves.
func TestStatesAreOfAllSessions(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.with(4)
	cfg.Poll = time.Hour
	d := openDevice(t, cfg)
	eventually(t, "every path is up", func() bool { return connected(d) == 8 })
	h := startHammer(t, d, 16)
	defer h.end()
	all := func(node int) bool {
		for i, p := range d.Paths() {
			if p.Current != (i/4 == node) {
				return false
			}
		}
		return true
	}
	for range 3 {
		x.set(alua.Unavailable, alua.Optimized)
		eventually(t, "all sessions to node b", func() bool { return all(1) })
		h.more(t)
		x.set(alua.Transitioning, alua.Unavailable) // none serves: I/O waits
		x.set(alua.Optimized, alua.NonOptimized)
		eventually(t, "all sessions to node a", func() bool { return all(0) })
		h.more(t)
	}
}

// TestSessionsKilledAtRandom also moves the optimized path, and checks contents all the time.
func TestSessionsKilledAtRandom(t *testing.T) {
	x := startTwoNodes(t)
	before := runtime.NumGoroutine()
	d, err := Open(testContext(t), x.with(4))
	if err != nil {
		t.Fatal(err)
	}
	h := startHammer(t, d, 32)
	rng := rand.New(rand.NewPCG(7, 7))
	begun := time.Now()
	for i := 0; time.Since(begun) < 3*time.Second && !t.Failed(); i++ {
		for range 1 + rng.IntN(6) {
			cut(d.paths[rng.IntN(len(d.paths))], rng.IntN(2) == 0)
		}
		if i%16 == 0 {
			if i%32 == 0 {
				x.set(alua.NonOptimized, alua.Optimized)
			} else {
				x.set(alua.Optimized, alua.NonOptimized)
			}
		}
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
	}
	h.more(t)
	h.end()
	eventually(t, "every path is up", func() bool { return connected(d) == 8 })
	for i, p := range d.paths {
		if n := p.load.Load(); n != 0 {
			t.Errorf("path %d: %d commands are counted as in flight", i, n)
		}
	}
	if err := d.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+8 })
}

// TestFencedHostWithSeveralSessions: all sessions must say that there is no such LUN.
func TestFencedHostWithSeveralSessions(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.doubting()
	cfg.Sessions = 3
	d := openDevice(t, cfg)
	eventually(t, "every path is up", func() bool { return connected(d) == 6 })
	remap := x.unmap()
	givesUp(t, d, believed, patience-200*time.Millisecond)
	givesUp(t, d, 0, 200*time.Millisecond)
	remap()
	eventually(t, "every path is back", func() bool { return !d.NoUnit() && connected(d) == 6 })
	if _, err := attempt(t, d); err != nil {
		t.Fatal(err)
	}
}

// TestErrorsNameASayingOnce: paths to one portal that say the same are one line of an error.
func TestErrorsNameASayingOnce(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.with(MaxSessions)
	cfg.WWID = strings.Repeat("6", 32)
	_, err := Open(testContext(t), cfg)
	if !errors.Is(err, ErrWrongUnit) || strings.Count(err.Error(), ErrWrongUnit.Error()) != 2 {
		t.Fatalf("open: %v", err)
	}
}

// BenchmarkSessions reads 4 KiB with 128 commands in flight, over one and over four sessions to the
// portal.
func BenchmarkSessions(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			x := startTwoNodes(b)
			d, err := Open(context.Background(), x.with(n))
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close(context.Background())
			b.SetBytes(4096)
			b.ReportAllocs()
			b.ResetTimer()
			flood(b, d, 128, b.N)
		})
	}
}
