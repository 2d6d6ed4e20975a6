// Package pair tests two real target processes with the real initiator.
package pair

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

var target string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gemel-pair-")
	if err != nil {
		panic(err)
	}
	target, err = harness.Build(context.Background(), dir, "./cmd/gemel-target", buildFlags...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// start brings a pair up; its logs are printed if the test fails.
func start(t *testing.T, args ...string) (*harness.Pair, context.Context) {
	t.Helper()
	return startWith(t, func(o *harness.Options) { o.Args = args })
}

// startWith starts a pair with other options than the default.
func startWith(t *testing.T, change func(*harness.Options)) (*harness.Pair, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	o := harness.Options{Dir: t.TempDir(), Binary: target}
	change(&o)
	p, err := harness.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			for i, n := range harness.Names {
				b, _ := os.ReadFile(p.LogFile(i))
				t.Logf("log of node %s:\n%s", n, b)
			}
		}
	})
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return p, ctx
}

const host = "iqn.2026-11.storage.gemel.test:host1"

func createLUN(t *testing.T, ctx context.Context, p *harness.Pair, size uint64, owner string) (*targetv1.LUN, *targetv1.Mapping) {
	t.Helper()
	c := p.Client(0)
	id := uuid.NewString()
	l, err := c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "lun-" + id, SizeBytes: size, PreferredNode: owner})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
	if err != nil {
		t.Fatal(err)
	}
	return l, m
}

func open(t *testing.T, ctx context.Context, m *targetv1.Mapping) *initiator.Device {
	t.Helper()
	cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid}
	for _, p := range m.Portals {
		cfg.Portals = append(cfg.Portals, p.Address)
	}
	d, err := initiator.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = d.Close(ctx)
	})
	return d
}

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = r.Read(b)
	return b
}

func TestWriteIsOnBothNodes(t *testing.T) {
	p, ctx := start(t)
	l, m := createLUN(t, ctx, p, 64<<20, "a")
	if l.Owner != "a" {
		t.Fatalf("owner %q", l.Owner)
	}
	d := open(t, ctx, m)
	want := pattern(1<<20, 1)
	if _, err := d.WriteAt(ctx, want, 4<<20); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := d.ReadAt(ctx, got, 4<<20); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: %v", err)
	}
	for i, n := range harness.Names {
		f, err := os.Open(p.State[i] + "/volumes/default/luns/" + l.Uuid + ".img")
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.ReadAt(got, 4<<20)
		_ = f.Close()
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("node %s does not hold the write: %v", n, err)
		}
	}
}

// load writes random blocks until stopped and remembers what was acknowledged.
type load struct {
	d      device
	mu     sync.Mutex
	blocks map[int64]uint64
	acked  atomic.Int64
	errs   []error
	worst  atomic.Int64
	stop   chan struct{}
	wg     sync.WaitGroup
}

const blockSize = 4096

// device is what a load writes to.
type device interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
}

// offset is a device that begins at an offset of another one.
type offset struct {
	device
	base int64
}

func (o offset) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return o.device.ReadAt(ctx, p, off+o.base)
}

func (o offset) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	return o.device.WriteAt(ctx, p, off+o.base)
}

func startLoad(ctx context.Context, d device, workers int, blocks int64) *load {
	l := &load{d: d, blocks: map[int64]uint64{}, stop: make(chan struct{})}
	for w := range workers {
		l.wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for seq := uint64(1); ; seq++ {
				select {
				case <-l.stop:
					return
				default:
				}
				// Each worker has its own blocks, so that the last acknowledged value of a block is
				// known.
				b := r.Int64N(blocks/int64(workers))*int64(workers) + int64(w)
				v := uint64(w)<<32 | seq
				start := time.Now()
				_, err := d.WriteAt(ctx, pattern(blockSize, v), b*blockSize)
				took := time.Since(start).Nanoseconds()
				for old := l.worst.Load(); took > old && !l.worst.CompareAndSwap(old, took); old = l.worst.Load() {
				}
				l.mu.Lock()
				if err != nil {
					l.errs = append(l.errs, err)
				} else {
					l.blocks[b] = v
				}
				l.mu.Unlock()
				l.acked.Add(1)
				if err != nil {
					return
				}
			}
		})
	}
	return l
}

func (l *load) pauseSince() time.Duration { return time.Duration(l.worst.Swap(0)) }

func (l *load) verify(t *testing.T, ctx context.Context, d device) {
	t.Helper()
	if len(l.errs) > 0 {
		t.Fatalf("%d writers failed: %v", len(l.errs), l.errs[0])
	}
	got := make([]byte, blockSize)
	for b, v := range l.blocks {
		if _, err := d.ReadAt(ctx, got, b*blockSize); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, pattern(blockSize, v)) {
			t.Fatalf("block %d lost its acknowledged write %x", b, v)
		}
	}
}

func (l *load) more(t *testing.T, ctx context.Context, n int64) {
	t.Helper()
	target := l.acked.Load() + n
	if err := harness.Wait(ctx, "writes go on", func() (bool, string) {
		return l.acked.Load() >= target, fmt.Sprint(l.acked.Load(), l.errs)
	}); err != nil {
		t.Fatal(err)
	}
}

// The main promise: under load, ownership moves, the owner dies, comes back, is resynced and takes
// the LUN again, and no acknowledged write is lost and no host sees an error.
func TestTransferCrashResyncFailback(t *testing.T) {
	p, ctx := start(t)
	lun, m := createLUN(t, ctx, p, 64<<20, "a")
	d := open(t, ctx, m)
	l := startLoad(ctx, d, 8, 2048)
	l.more(t, ctx, 500)
	l.pauseSince()

	move := func(to string) {
		t.Helper()
		r, err := p.Client(1).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{lun.Uuid}, ToNode: to})
		if err != nil {
			t.Fatal(err)
		}
		if r.Moved != 1 {
			t.Fatalf("moved %d", r.Moved)
		}
	}
	move("b")
	l.more(t, ctx, 500)
	t.Logf("transfer: longest write %v", l.pauseSince())
	move("a")
	l.more(t, ctx, 500)
	l.pauseSince()

	if err := p.Kill(0); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	pause := l.pauseSince()
	t.Logf("fail-over: longest write %v", pause)
	if pause > 5*time.Second {
		t.Errorf("fail-over took %v", pause)
	}
	if err := p.StartNode(0); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitInSync(ctx); err != nil {
		t.Fatal(err)
	}
	l.more(t, ctx, 500)
	t.Logf("resync: longest write %v", l.pauseSince())
	move("a")
	l.more(t, ctx, 500)
	close(l.stop)
	l.wg.Wait()
	l.verify(t, ctx, d)
	if err := p.Term(1); err != nil {
		t.Fatal(err)
	}
	l.verify(t, ctx, d)
}
