package initiator

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/iscsi"
	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/alua"
	"github.com/gemel-storage/gemel/internal/pdu"
)

func openDevice(t *testing.T, cfg Config) *Device {
	t.Helper()
	d, err := Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := d.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

func current(d *Device) string {
	for _, p := range d.Paths() {
		if p.Current {
			return p.Portal
		}
	}
	return ""
}

// hammer writes and reads back numbered blocks until stopped; every error and every stale read is a
// failure.
type hammer struct {
	wg   sync.WaitGroup
	stop atomic.Bool
	done atomic.Int64
}

func startHammer(t *testing.T, d *Device, workers int) *hammer {
	h := &hammer{}
	region := twoSize / int64(workers)
	for w := range workers {
		h.wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			last := map[int64]uint64{}
			buf := make([]byte, 4096)
			for n := uint64(1); !h.stop.Load(); n++ {
				off := int64(w)*region + rng.Int64N(region/4096)*4096
				binary.BigEndian.PutUint64(buf, n)
				binary.BigEndian.PutUint64(buf[4088:], n)
				if _, err := d.WriteAt(context.Background(), buf, off); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				last[off] = n
				clear(buf)
				if _, err := d.ReadAt(context.Background(), buf, off); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if a, b := binary.BigEndian.Uint64(buf), binary.BigEndian.Uint64(buf[4088:]); a != n || b != n {
					t.Errorf("block at %d reads %d, %d, written %d", off, a, b, n)
					return
				}
				h.done.Add(1)
			}
			for off, n := range last {
				if _, err := d.ReadAt(context.Background(), buf, off); err != nil || binary.BigEndian.Uint64(buf) != n {
					t.Errorf("at the end: block at %d reads %d, written %d, %v", off, binary.BigEndian.Uint64(buf), n, err)
					return
				}
			}
		})
	}
	return h
}

// more waits until some operations have completed after now.
func (h *hammer) more(t *testing.T) {
	t.Helper()
	n := h.done.Load()
	eventually(t, "I/O goes on", func() bool { return h.done.Load() > n+50 || t.Failed() })
}

func (h *hammer) end() {
	h.stop.Store(true)
	h.wg.Wait()
}

// TestFollowsALUA moves the optimized path back and forth under load.
func TestFollowsALUA(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.config())
	if current(d) != x.nodes[0].addr {
		t.Fatalf("starts on %s, node a is optimized", current(d))
	}
	h := startHammer(t, d, 8)
	defer h.end()
	h.more(t)
	for i := range 6 {
		want := x.nodes[1-i%2].addr
		if i%2 == 0 {
			x.set(alua.NonOptimized, alua.Optimized)
		} else {
			x.set(alua.Optimized, alua.NonOptimized)
		}
		eventually(t, "I/O on the optimized path", func() bool { return current(d) == want })
		h.more(t)
	}
}

// TestFencedPath: a node that answers NOT READY costs no error, and is used again when it serves.
func TestFencedPath(t *testing.T) {
	x := startTwoNodes(t)
	d := openDevice(t, x.config())
	h := startHammer(t, d, 8)
	defer h.end()
	h.more(t)
	x.set(alua.Unavailable, alua.Optimized)
	eventually(t, "the other path", func() bool { return current(d) == x.nodes[1].addr })
	h.more(t)
	x.set(alua.Transitioning, alua.Unavailable) // no node serves: I/O waits
	n := h.done.Load()
	x.set(alua.Optimized, alua.NonOptimized)
	eventually(t, "back", func() bool { return current(d) == x.nodes[0].addr && h.done.Load() > n+50 })
}

// TestNodeStopsAndReturns covers an orderly logout request, a refused reconnect and the return.
func TestNodeStopsAndReturns(t *testing.T) {
	x := startTwoNodes(t)
	var mu sync.Mutex
	var kinds []EventKind
	cfg := x.config()
	cfg.Events = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		kinds = append(kinds, e.Kind)
	}
	d := openDevice(t, cfg)
	h := startHammer(t, d, 8)
	defer h.end()
	h.more(t)
	x.set(alua.NonOptimized, alua.Optimized)
	x.nodes[0].shutdown()
	eventually(t, "path down", func() bool { return !d.Paths()[0].Connected })
	h.more(t)
	x.nodes[0].restart()
	eventually(t, "path up again", func() bool { return d.Paths()[0].Connected })
	x.set(alua.Optimized, alua.NonOptimized)
	eventually(t, "fail-back", func() bool { return current(d) == x.nodes[0].addr })
	h.more(t)
	mu.Lock()
	defer mu.Unlock()
	seen := map[EventKind]bool{}
	for _, k := range kinds {
		seen[k] = true
	}
	for _, k := range []EventKind{EventPathUp, EventPathDown, EventRoute, EventLogoutRequest, EventUnitAttention} {
		if !seen[k] {
			t.Errorf("no event %q in %v", k, kinds)
		}
	}
}

// TestPathThatComesUpUnavailable: a node that has just started does not serve yet. Nothing may be
// needed from the host's I/O, of which there is none while it waits, to notice soon that it does.
func TestPathThatComesUpUnavailable(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.config()
	cfg.Poll = time.Hour
	d := openDevice(t, cfg)
	for _, n := range x.nodes {
		n.shutdown()
	}
	x.set(alua.Unavailable, alua.Unavailable)
	for i, n := range x.nodes {
		n.restart()
		eventually(t, "path up", func() bool { return d.Paths()[i].Connected })
	}
	x.set(alua.Optimized, alua.NonOptimized)
	eventually(t, "I/O on the optimized path", func() bool { return current(d) == x.nodes[0].addr })
}

// TestDeadlineWithoutAUsablePath: when no node serves, requests end with ErrNoPath that tells what
// each path said, and not before the deadline.
func TestDeadlineWithoutAUsablePath(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.config()
	cfg.Deadline = 300 * time.Millisecond
	d := openDevice(t, cfg)
	x.set(alua.Unavailable, alua.Unavailable)
	begun := time.Now()
	_, err := d.WriteAt(testContext(t), make([]byte, 512), 0)
	if !errors.Is(err, ErrNoPath) || time.Since(begun) < cfg.Deadline {
		t.Fatalf("after %v: %v", time.Since(begun), err)
	}
	for _, n := range x.nodes {
		if !strings.Contains(err.Error(), n.addr) {
			t.Errorf("%q does not mention %s", err, n.addr)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := d.ReadAt(ctx, make([]byte, 512), 0); !errors.Is(err, ErrAborted) {
		t.Fatalf("cancelled while parked: %v", err)
	}
	x.set(alua.Optimized, alua.NonOptimized)
	if _, err := d.WriteAt(testContext(t), make([]byte, 512), 0); err != nil {
		t.Fatal(err)
	}
}

// TestWrongUnit: a path that shows another WWID is never used, and with no other path Open says so
// at once.
func TestWrongUnit(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.config()
	cfg.WWID = strings.Repeat("6", 32)
	begun := time.Now()
	_, err := Open(testContext(t), cfg)
	if !errors.Is(err, ErrWrongUnit) || !errors.Is(err, ErrNoPath) {
		t.Fatalf("open: %v", err)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
	other, err := scsi.NewUnit(scsi.UnitConfig{UUID: "99999999-2222-4333-8444-555555555555", SizeBytes: twoSize}, x.nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	x.nodes[0].unit.Store(other)
	d := openDevice(t, x.config())
	if _, err := d.WriteAt(testContext(t), make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if p := d.Paths()[0]; p.Connected || !errors.Is(p.LastError, ErrWrongUnit) {
		t.Errorf("path to another unit: %+v", p)
	}
	if n := x.nodes[0].writes.Load(); n != 0 {
		t.Errorf("%d writes went to another unit", n)
	}
}

// TestOperationsAgainstOurTarget checks every operation against our target, over sizes that are
// split.
func TestOperationsAgainstOurTarget(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.config()
	cfg.HeaderDigest, cfg.DataDigest = true, true
	d := openDevice(t, cfg)
	ctx := testContext(t)
	want := randomBytes(20<<20+4096, 3)
	if _, err := d.WriteAt(ctx, want, 8192); err != nil {
		t.Fatal(err)
	}
	if err := d.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Discard(ctx, 8192+1<<20, 2<<20); err != nil {
		t.Fatal(err)
	}
	clear(want[1<<20 : 3<<20])
	if err := d.WriteZeroes(ctx, 8192+5<<20, 6<<20, true); err != nil {
		t.Fatal(err)
	}
	clear(want[5<<20 : 11<<20])
	if err := d.WriteZeroes(ctx, 0, 0, false); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := d.ReadAt(ctx, got, 8192); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: equal %v, %v", bytes.Equal(got, want), err)
	}
	fua := &IO{Op: OpWrite, Buf: want[:4096], FUA: true}
	if err := d.wait(ctx, fua); err != nil {
		t.Fatal(err)
	}
	if err := x.nodes[0].unit.Load().Update(scsi.UnitConfig{UUID: twoUUID, SizeBytes: twoSize, Thin: true}); err != nil {
		t.Fatal(err)
	}
	if size, err := d.Rescan(ctx); err != nil || size != twoSize {
		t.Fatalf("rescan: %d, %v", size, err)
	}
}

// TestSizeFollowsAnExpansion: the size follows 2A/09, once every path shows it.
func TestSizeFollowsAnExpansion(t *testing.T) {
	x := startTwoNodes(t)
	cfg := x.config()
	grown := make(chan int64, 16)
	cfg.Events = func(e Event) {
		if e.Kind == EventCapacity {
			grown <- e.Size
		}
	}
	d := openDevice(t, cfg)
	for i, n := range x.nodes {
		if err := n.unit.Load().Update(scsi.UnitConfig{UUID: twoUUID, SizeBytes: 2 * twoSize, Thin: true}); err != nil {
			t.Fatal(err)
		}
		n.device.RaiseUA(n.unit.Load(), nil, nil, 0x2a, 0x09)
		if i == 0 {
			if _, err := d.ReadAt(testContext(t), make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			if d.Size() != twoSize {
				t.Fatal("grew before every path had")
			}
		}
	}
	if _, err := d.Rescan(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if s := <-grown; s != 2*twoSize || d.Size() != s {
		t.Fatalf("grew to %d, %d", s, d.Size())
	}
}

// TestCloseCutsWhatWaits: a Close whose context has ended fails waiting requests and still leaves
// no goroutine behind.
func TestCloseCutsWhatWaits(t *testing.T) {
	x := startTwoNodes(t)
	before := runtime.NumGoroutine()
	d, err := Open(testContext(t), x.config())
	if err != nil {
		t.Fatal(err)
	}
	x.set(alua.Unavailable, alua.Unavailable)
	failed := make(chan error, 1)
	go func() {
		_, err := d.WriteAt(context.Background(), make([]byte, 512), 0)
		failed <- err
	}()
	eventually(t, "request parked", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.active > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := d.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) && !errors.Is(err, ErrSessionLost) {
		t.Errorf("request: %v", err)
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// TestDeviceCHAP authenticates both ways on every path (SHA-256), and fails at once, without the
// secrets, where that is wrong.
func TestDeviceCHAP(t *testing.T) {
	x := startTwoNodes(t)
	x.mu.Lock()
	x.creds = iscsi.Credentials{User: "host", Secret: "host-secret-123", MutualUser: "pair", MutualSecret: "pair-secret-123"}
	x.mu.Unlock()
	cfg := x.config()
	cfg.Auth, cfg.MutualAuth = &CHAP{"host", "host-secret-123"}, &CHAP{"pair", "pair-secret-123"}
	d := openDevice(t, cfg)
	for _, p := range d.Paths() {
		if !p.Connected {
			t.Errorf("path %+v", p)
		}
	}
	for name, set := range map[string]func(*Config){
		"our secret":   func(c *Config) { c.Auth = &CHAP{"host", "wrong-secret-123"} },
		"their secret": func(c *Config) { c.MutualAuth = &CHAP{"pair", "wrong-secret-123"} },
	} {
		c := x.config()
		c.Auth, c.MutualAuth = cfg.Auth, cfg.MutualAuth
		set(&c)
		begun := time.Now()
		_, err := Open(testContext(t), c)
		if !errors.Is(err, ErrAuth) || strings.Contains(err.Error(), "-secret-") || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %v after %v", name, err, time.Since(begun))
		}
	}
}

// TestCredentialsChange: sessions go on while the target wants other credentials; what is refused
// says so, and is fixed by the new ones.
func TestCredentialsChange(t *testing.T) {
	x := startTwoNodes(t)
	want := func(secret string) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.creds = iscsi.Credentials{User: "host", Secret: "host-" + secret, MutualUser: "pair", MutualSecret: "pair-" + secret}
	}
	want("secret-123")
	cfg := x.config()
	cfg.Auth, cfg.MutualAuth = &CHAP{"host", "host-secret-123"}, &CHAP{"pair", "pair-secret-123"}
	d := openDevice(t, cfg)
	want("secret-456")
	if _, err := d.WriteAt(testContext(t), make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	d.paths[0].abandon()
	eventually(t, "the path is refused", func() bool { p := d.Paths()[0]; return !p.Connected && CredentialsRefused(p.LastError) })
	if _, err := d.WriteAt(testContext(t), make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.SetCredentials(&CHAP{"host", "same-secret-123"}, &CHAP{"pair", "same-secret-123"}); err == nil {
		t.Error("one secret for both directions is taken")
	}
	if err := d.SetCredentials(&CHAP{"host", "host-secret-456"}, &CHAP{"pair", "pair-secret-456"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the path is back", func() bool { return d.Paths()[0].Connected })
	// And none at all.
	x.mu.Lock()
	x.creds = iscsi.Credentials{}
	x.mu.Unlock()
	d.paths[1].abandon()
	eventually(t, "the path is refused", func() bool { p := d.Paths()[1]; return !p.Connected && CredentialsRefused(p.LastError) })
	if err := d.SetCredentials(nil, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the path is back", func() bool { return d.Paths()[1].Connected })
	for err, refused := range map[error]bool{&LoginError{pdu.LoginForbidden}: false, &LoginError{pdu.LoginNotFound}: false, ErrNoPath: false, ErrAuth: true} {
		if CredentialsRefused(err) != refused {
			t.Errorf("%v", err)
		}
	}
}

// TestTwoDevicesOfOneHost: sessions of one initiator name do not reinstate each other.
func TestTwoDevicesOfOneHost(t *testing.T) {
	x := startTwoNodes(t)
	a, b := openDevice(t, x.config()), openDevice(t, x.config())
	for range 50 {
		for _, d := range []*Device{a, b} {
			if _, err := d.WriteAt(testContext(t), make([]byte, 4096), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range []*Device{a, b} {
		for _, p := range d.Paths() {
			if !p.Connected || p.LastError != nil {
				t.Errorf("path %+v", p)
			}
		}
	}
}

// TestTaskManagement resets the unit through a session of its own.
func TestTaskManagement(t *testing.T) {
	x := startTwoNodes(t)
	s, err := Login(testContext(t), SessionConfig{InitiatorName: "iqn.2026-01.test.gemel:host", Target: twoIQN, Portal: x.nodes[0].addr})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for function, want := range map[byte]byte{pdu.TMFLogicalUnitReset: pdu.TMFComplete, pdu.TMFAbortTaskSet: pdu.TMFComplete} {
		if r, err := s.TaskManagement(testContext(t), function, 3); err != nil || r != want {
			t.Errorf("function %d: response %d, %v", function, r, err)
		}
	}
	if r, err := s.TaskManagement(testContext(t), pdu.TMFLogicalUnitReset, 9); err != nil || r != pdu.TMFNoLUN {
		t.Errorf("no such unit: response %d, %v", r, err)
	}
}
