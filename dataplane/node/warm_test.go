package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/heat"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
)

// readHot reads each of some extents several times.
func (p *testPair) readHot(d *initiator.Device, extents ...int64) {
	p.t.Helper()
	buf := make([]byte, 4096)
	for range 4 {
		for _, x := range extents {
			if _, err := d.ReadAt(p.ctx, buf, x*heat.Extent+rand.Int64N(256)*4096); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// warmed is what a node was asked to read ahead, in bytes.
func (p *testPair) warmed(i int) uint64 {
	t := &p.nodes[i].seen.warm
	return t.read.Load() + t.cached.Load()
}

// resident counts the pages of a file that the page cache has.
func resident(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	pages := make([]byte, (len(m)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&pages[0]))); e != 0 {
		t.Fatal(e)
	}
	for _, b := range pages {
		n += int(b & 1)
	}
	return n
}

// cool takes a LUN out of the page cache of a node.
func (p *testPair) cool(i int, id string) {
	p.t.Helper()
	k, err := parseID(id)
	if err != nil {
		p.t.Fatal(err)
	}
	p.until("nothing of the LUN is in the page cache", func() bool {
		if err := p.nodes[i].file(k).Sync(); err != nil {
			p.t.Fatal(err)
		}
		f, err := os.Open(p.image(i, id))
		if err != nil {
			p.t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			p.t.Fatal(err)
		}
		return resident(p.t, p.image(i, id)) == 0
	})
}

// After a warm move fewer of the first reads wait for the disk than after a cold one.
func TestWarmMoveMissesLess(t *testing.T) {
	p := newTestPair(t)
	var fs unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("skipped: a filesystem in memory has no page cache to warm")
	}
	p.cfg[0].Balancing, p.cfg[1].Balancing = "off", "off"
	p.startBoth()
	id, m := p.lun(64*mib, "a")
	d := p.device(m)
	for x := range int64(64) {
		p.write(d, x*mib, byte(x+1))
	}
	hot := []int64{3, 7, 8, 15, 21, 22, 30, 33, 39, 40, 41, 47, 52, 55, 60, 63}
	missed := func(warm time.Duration) float64 {
		t.Helper()
		p.readHot(d, hot...)
		p.cool(1, id)
		w := &p.nodes[1].seen.warm
		hits, misses := w.firstHit.Load(), w.firstMiss.Load()
		if moved, _, err := p.nodes[0].move(p.ctx, []string{id}, transferRequest{To: "b", Warm: warm}); err != nil || moved != 1 {
			t.Fatal(moved, err)
		}
		var wg sync.WaitGroup
		end := time.Now().Add(firstReads)
		for g := range 4 {
			wg.Go(func() {
				rnd, buf := rand.New(rand.NewPCG(uint64(g), 1)), make([]byte, 4096)
				for range 40 { // in random order, each block once or twice at most
					if time.Now().After(end) {
						return
					}
					if _, err := d.ReadAt(p.ctx, buf, hot[rnd.IntN(len(hot))]*mib+rnd.Int64N(256)*4096); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		hits, misses = w.firstHit.Load()-hits, w.firstMiss.Load()-misses
		if hits+misses < 20 {
			t.Fatalf("only %d reads in the first second", hits+misses)
		}
		if _, _, err := p.nodes[1].move(p.ctx, []string{id}, transferRequest{To: "a"}); err != nil {
			t.Fatal(err)
		}
		t.Logf("warm for up to %v: %d of %d reads of the first second missed", warm, misses, hits+misses)
		return float64(misses) / float64(hits+misses)
	}
	cold, warm := missed(0), missed(warmCalm)
	if cold < 0.5 || warm > 0.1 {
		t.Errorf("%.2f of the first reads miss after a cold move, and %.2f after a warm one", cold, warm)
	}
}

// A drain and the return home warm the new owner; a stop does not.
func TestDrainAndReturnWarmTheNewOwner(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick().startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	p.write(d, 0, 1)
	p.readHot(d, 0, 5)
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 1}); err != nil {
		t.Fatal(err)
	}
	if got := p.warmed(1); p.owner(id) != "b" || got != 2*heat.Extent {
		t.Errorf("node b has read %d bytes ahead of the drain", got)
	}
	p.until("it is home", func() bool { p.readHot(d, 2, 4); return p.owner(id) == "a" })
	if x := p.movedFor(id, balance.ReasonFailBack); p.warmed(0) == 0 {
		t.Errorf("node a has read %d bytes ahead of %v", p.warmed(0), x)
	}
	p.readHot(d, 1, 7)
	before := p.warmed(1)
	p.end(0)
	if p.owner(id) != "b" || p.warmed(1) != before {
		t.Error("a stop waits for the new owner to read ahead")
	}
}

// A transfer by a person warms the new owner, but one of a release before is not asked.
func TestReleaseBeforeIsNotAskedToReadAhead(t *testing.T) {
	t.Parallel()
	for name, earlier := range map[string]bool{"this release": false, "a release before": true} {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t)
			p.cfg[1].earlier = earlier
			p.startBoth()
			id, m := p.lun(8*mib, "a")
			p.readHot(p.device(m), 0, 5)
			if _, err := p.client(0).TransferOwnership(p.ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id}, ToNode: "b"}); err != nil {
				t.Fatal(err)
			}
			if asked := p.warmed(1) > 0; asked == earlier {
				t.Errorf("%d bytes read ahead", p.warmed(1))
			}
		})
	}
}

// A new owner whose disk hangs delays the move by no more than the limit, and is asked for nothing
// more meanwhile.
func TestMoveDoesNotWaitForAHangingDisk(t *testing.T) {
	t.Parallel()
	var disk heldIO
	p := newTestPair(t)
	p.cfg[1].Faults = disk.fault
	p.startBoth()
	id, m := p.lun(8*mib, "a")
	p.readHot(p.device(m), 0, 5)
	release := disk.hold(t)
	start := time.Now()
	moved, pause, err := p.nodes[0].move(p.ctx, []string{id}, transferRequest{To: "b", Warm: warmUrgent})
	if took := time.Since(start); err != nil || moved != 1 || took < warmUrgent || took > warmUrgent+5*time.Second || pause >= took {
		t.Errorf("%d moved after %v, held for %v: %v", moved, took, pause, err)
	}
	if n := disk.under.Load(); n != 1 {
		t.Errorf("%d reads wait for the disk", n)
	}
	second := make(chan warmReply, 1)
	go func() {
		second <- p.nodes[1].readAhead(p.ctx, warmRequest{Extents: []warmExtent{{id, 1}}, Within: time.Minute})
	}()
	select {
	case r := <-second:
		if r != (warmReply{}) {
			t.Errorf("a second request beside the one that hangs: %+v", r)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("a second request hangs beside the first one: %d reads wait for the disk", disk.under.Load())
	}
	release()
	p.until("it can be asked again", func() bool {
		return p.nodes[1].readAhead(p.ctx, warmRequest{Extents: []warmExtent{{id, 1}}, Within: time.Second}).Read == heat.Extent
	})
}

// A move that is late once the new owner has read ahead holds no commands.
func TestMoveThatIsLateAfterWarming(t *testing.T) {
	t.Parallel()
	var disk heldIO
	p := newTestPair(t)
	p.cfg[1].Faults = disk.fault
	p.startBoth()
	id, m := p.lun(8*mib, "a")
	p.readHot(p.device(m), 0, 5)
	if err := p.setPolicy(0, "off", 60, 3); err != nil {
		t.Fatal(err)
	}
	release := disk.hold(t)
	end := make(chan error, 1)
	go func() {
		_, err := p.nodes[0].transferHere(p.ctx, transferRequest{UUIDs: []string{id}, To: "b", Epoch: p.nodes[0].View().Record.Epoch, Policy: new(uint64(3)), Warm: warmCalm})
		end <- err
	}()
	p.until("the new owner reads ahead", func() bool { return disk.under.Load() == 1 })
	if err := p.setPolicy(0, "off", 60, 4); err != nil {
		t.Fatal(err)
	}
	release()
	if err := <-end; !errors.Is(err, control.ErrUnavailable) || errors.Is(err, meta.ErrNotReady) { // of the owner, not of the log
		t.Error(err)
	}
	if o := p.owner(id); o != "a" {
		t.Errorf("owner %s", o)
	}
}

// What the other node asks for is bounded, whatever it asks for.
func TestReadAheadIsBounded(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	id, _ := p.lun(8*mib, "a")
	n := p.nodes[1]
	ask := func(within time.Duration, x ...warmExtent) int64 {
		r := n.readAhead(p.ctx, warmRequest{Extents: x, Within: within})
		return r.Read + r.Cached
	}
	none := []warmExtent{{id, -1}, {id, 8}, {id, 1 << 62}, {id, -1 << 63}, {"", 0}, {"no uuid", 0}, {uuid.NewString(), 0}}
	if got := ask(time.Second, none...); got != 0 {
		t.Errorf("nonsense: %d bytes", got)
	}
	if got := ask(time.Second, append(none, warmExtent{id, 7})...); got != mib {
		t.Errorf("the end of the LUN: %d bytes", got)
	}
	for _, within := range []time.Duration{0, -time.Second} {
		if got := ask(within, warmExtent{id, 0}); got != 0 {
			t.Errorf("within %v: %d bytes", within, got)
		}
	}
	many := make([]warmExtent, warmBatch+50)
	for i := range many {
		many[i] = warmExtent{id, int64(i % 8)}
	}
	if got := ask(time.Minute, many...); got > warmBatch*heat.Extent || got == 0 {
		t.Errorf("%d extents: %d bytes", len(many), got)
	}
	start := time.Now() // longer than any node waits
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	if n.readAhead(ctx, warmRequest{Extents: many, Within: time.Minute}) != (warmReply{}) || time.Since(start) > warmCalm {
		t.Error("it reads for an asker that has gone")
	}
	for _, body := range []any{"nonsense", []int{1}, map[string]any{"extents": []any{map[string]any{"n": "x"}}}} {
		if err := p.nodes[0].call(p.ctx, "warm", body, nil); err == nil {
			t.Errorf("%v is no error", body)
		}
	}
}

// One move asks for the hottest extents of its LUNs, and for so many at most.
func TestHottestOfManyLUNs(t *testing.T) {
	n := &Node{}
	n.cfg.Outside.Clock = func() int64 { return 5 }
	tab := &tables{units: map[pair.LUNID]*unitEntry{}}
	var ids []pair.LUNID
	for i := range 8 {
		id := uuid.New()
		e := &unitEntry{lun: &meta.LUN{UUID: id.String()}, warmth: new(warmth)}
		for x := range int64(100) {
			for range 2 + i {
				e.warmth.heat.Read(x*heat.Extent, 4096, 5)
			}
		}
		tab.units[pair.LUNID(id)] = e
		ids = append(ids, pair.LUNID(id))
	}
	n.md.tables.Store(tab)
	got := n.hottest(t.Context(), append(ids, pair.LUNID(uuid.New())))
	per := map[string]int{}
	for _, x := range got {
		per[x.LUN]++
	}
	if len(got) != warmBatch || per[uuid.UUID(ids[7]).String()] != warmLUN || got[0].LUN != uuid.UUID(ids[7]).String() || per[uuid.UUID(ids[0]).String()] != 0 {
		t.Errorf("%d extents: %v", len(got), per)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if len(n.hottest(ended, ids)) != 0 {
		t.Error("it continues after its time")
	}
}

// All moves of one decision together wait for a bounded time.
func TestWarmingOfOneDecisionIsBounded(t *testing.T) {
	calm, rule := []balance.Move{{Reason: balance.ReasonFailBack}}, []balance.Move{{Reason: balance.ReasonDrain}}
	for left, want := range map[time.Duration][2]time.Duration{warmDecision: {warmCalm, warmUrgent}, time.Second: {time.Second, warmUrgent}, 1: {1, 1}, 0: {0, 0}} {
		on := &decided{warm: left}
		if a, b := on.warmFor(calm), on.warmFor(rule); a != want[0] || b != want[1] {
			t.Errorf("with %v left: %v and %v", left, a, b)
		}
	}
	on := &decided{warm: 3 * time.Second}
	on.waited(warmCalm, warmCalm+time.Second) // the rest is what the move itself took
	if on.waited(warmUrgent, 100*time.Millisecond); on.warm != 900*time.Millisecond {
		t.Errorf("%v left", on.warm)
	}
	if on.waited(on.warmFor(calm), time.Minute); on.warm != 0 || on.warmFor(rule) != 0 {
		t.Errorf("%v left", on.warm)
	}
}

// Reads are counted for a second after the LUN has moved here.
func TestFirstReads(t *testing.T) {
	var w warmth
	if w.first(5) {
		t.Error("the LUN has never moved")
	}
	w.since.Store(100)
	if !w.first(100) || !w.first(99+int64(firstReads)) || w.first(100+int64(firstReads)) {
		t.Error("not a second")
	}
}
