package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/slowdisk"
)

// heldIO is a disk of a node that keeps reads of LUNs waiting while it is asked to, or writes.
type heldIO struct {
	op    string // default store.FaultRead
	file  string // what the file's path contains
	mu    sync.Mutex
	held  chan struct{} // closed when they go on; nil: they are not held
	under atomic.Int32  // those that wait
}

func (h *heldIO) fault(op, path string, _, _ int64) error {
	if op != cmp.Or(h.op, store.FaultRead) || !strings.HasSuffix(path, ".img") {
		return nil
	}
	h.mu.Lock()
	c := h.held
	if !strings.Contains(path, h.file) {
		c = nil
	}
	h.mu.Unlock()
	if c != nil {
		h.under.Add(1)
		<-c
		h.under.Add(-1)
	}
	return nil
}

// hold begins to hold them; the function that it returns ends that.
func (h *heldIO) hold(t *testing.T) (release func()) {
	c := make(chan struct{})
	h.mu.Lock()
	h.held = c
	h.mu.Unlock()
	release = sync.OnceFunc(func() {
		h.mu.Lock()
		h.held = nil
		h.mu.Unlock()
		close(c)
	})
	t.Cleanup(release)
	return release
}

// onlyBy makes a device use one node's portal only.
func onlyBy(p *testPair, i int) func(*initiator.Config) {
	return func(c *initiator.Config) { c.Portals = []string{p.cfg[i].ISCSIListen[0]} }
}

// readAll reads blocks of 4 KiB, all at once, and checks them.
func readAll(ctx context.Context, d *initiator.Device, n int, at func(i int) int64, want func(off int64) []byte) <-chan error {
	errs := make(chan error, n)
	for i := range n {
		go func() {
			off, got := at(i), make([]byte, 4096)
			_, err := d.ReadAt(ctx, got, off)
			if err == nil && !bytes.Equal(got, want(off)) {
				err = errors.New("other data than was written")
			}
			errs <- err
		}()
	}
	all := make(chan error, 1)
	go func() {
		var err error
		for range n {
			err = errors.Join(err, <-errs)
		}
		all <- err
	}()
	return all
}

// slowPair is a pair whose node a keeps reads waiting, with two LUNs of its own that are written
// once.
func slowPair(t *testing.T, h *heldIO) (p *testPair, m *targetv1.Mapping, slow, other *initiator.Device) {
	p = newTestPair(t)
	p.cfg[0].Faults = h.fault
	for i := range p.cfg {
		p.cfg[i].Lease = Duration(2 * time.Second) // a machine that is busy should cause no fail-over
	}
	p.startBoth()
	_, m = p.lun(8<<20, "a")
	_, mo := p.lun(8<<20, "a")
	slow, other = p.device(m), p.device(mo)
	for i := range int64(2) {
		for _, d := range []*initiator.Device{slow, other} {
			if _, err := d.WriteAt(p.ctx, bytes.Repeat([]byte{0x5a}, 1<<20), i<<22); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p, m, slow, other
}

func pattern(int64) []byte { return bytes.Repeat([]byte{0x5a}, 4096) }

func spread(i int) int64 { return int64(i%256) << 12 }

// The reads of one session's queue are at the disk together, and another command of the session
// overtakes them.
func TestReadsOfASessionGoToTheDiskTogether(t *testing.T) {
	h := new(heldIO)
	p, _, slow, _ := slowPair(t, h)
	release := h.hold(t)
	const n = 32
	done := readAll(p.ctx, slow, n, spread, pattern)
	p.until("all reads wait for the disk", func() bool { return h.under.Load() == n })
	if _, err := slow.WriteAt(p.ctx, pattern(0), 1<<22); err != nil {
		t.Errorf("a write beside them: %v", err)
	}
	release()
	if err := await(t, "the reads", done); err != nil {
		t.Error(err)
	}
	p.whole()
}

// whole checks that neither node has left the pair.
func (p *testPair) whole() {
	p.t.Helper()
	for _, n := range p.nodes {
		if v := n.View(); v.Phase != pair.Paired || v.Record.Epoch != 1 || !v.Serving {
			p.t.Fatalf("node %v: %v %s at epoch %d", n.self, v.Phase, v.Reason, v.Record.Epoch)
		}
	}
}

// Forwarded reads of a disk that takes its time hold up neither what else comes over the link,
// another LUN's writes of either node, nor the lease.
func TestForwardedReadsHoldNothingUp(t *testing.T) {
	h := new(heldIO)
	p, m, _, other := slowPair(t, h)
	_, mb := p.lun(8<<20, "b")
	mirrored := p.device(mb) // node a applies its writes
	if _, err := mirrored.WriteAt(p.ctx, pattern(0), 0); err != nil {
		t.Fatal(err)
	}
	far := p.device(m, onlyBy(p, 1))
	release := h.hold(t)
	const n = 80
	done := readAll(p.ctx, far, n, spread, pattern)
	p.until("reads wait for the disk", func() bool { return h.under.Load() > 0 })
	for i := range int64(20) {
		for name, d := range map[string]*initiator.Device{"owner a": other, "owner b": mirrored} {
			if _, err := d.WriteAt(p.ctx, pattern(0), i<<12); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	p.whole()
	p.until("as many as the disk is given wait for it", func() bool { return h.under.Load() == readersMax })
	release()
	if err := await(t, "the reads", done); err != nil {
		t.Error(err)
	}
	p.whole()
}

// The same with a filesystem whose disk hangs, and pages that are not in the cache.
func TestForwardedReadsOfAStuckDiskHoldNothingUp(t *testing.T) {
	if err := slowdisk.Available(); err != nil {
		t.Skip("skipped: no slow disk here: ", err)
	}
	p := newTestPair(t).fast()
	var disk *slowdisk.Disk
	for i := range p.cfg {
		d, err := slowdisk.Start(p.ctx, slowdisk.Options{Dir: filepath.Join(t.TempDir(), "disk"), Size: slowdisk.MinSize})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for k := range p.nodes { // they have files open there
				if err := p.stop(k); err != nil {
					t.Errorf("node %s: %v", harness.Names[k], err)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		p.cfg[i].BackingVolumes = []string{"fast=" + filepath.Join(d.Mount, "volume")}
		if i == 0 {
			disk = d
		}
	}
	p.startBoth()
	id, m := p.lunIn(0, "fast")
	_, mo := p.lun(8<<20, "b")
	d, other := p.device(m, onlyBy(p, 1)), p.device(mo)
	const size = 8 << 20
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>12 | 1)
	}
	if _, err := d.WriteAt(p.ctx, data, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Flush(p.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := other.WriteAt(p.ctx, pattern(0), 0); err != nil {
		t.Fatal(err)
	}
	f, err := unix.Open(filepath.Join(disk.Mount, "volume", "luns", id+".img"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(unix.Fadvise(f, 0, 0, unix.FADV_DONTNEED), unix.Close(f))
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.Set(p.ctx, slowdisk.Knobs{Stuck: true}); err != nil {
		t.Fatal(err)
	}
	const n = 40
	at := func(i int) int64 { return int64(i) * (size / n) &^ 4095 }
	done := readAll(p.ctx, d, n, at, func(off int64) []byte { return data[off : off+4096] })
	p.until("reads wait for the disk", func() bool {
		s, err := disk.Stats(p.ctx)
		return err == nil && s.InFlight > 0
	})
	// Far less than Dm, after which a disk that hangs makes its node step down; before, the first
	// read of them held all up.
	ctx, cancel := context.WithTimeout(p.ctx, 3*time.Second)
	defer cancel()
	for i := range int64(10) {
		if _, err := other.WriteAt(ctx, pattern(0), i<<12); err != nil {
			t.Fatalf("write %d of a LUN on another disk: %v", i, err)
		}
	}
	if err := disk.Set(p.ctx, slowdisk.Knobs{}); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "the reads", done); err != nil {
		t.Error(err)
	}
	p.whole()
}
