package node

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// A disk that fails makes its node step down; the other one serves on and the host sees no error
// (R12).
func TestFailedDiskStepsDown(t *testing.T) {
	for name, c := range map[string]struct {
		op    string
		owner string
	}{
		"write at the owner":     {store.FaultWrite, "a"},
		"write at the partner":   {store.FaultWrite, "b"},
		"flush at the owner":     {store.FaultSync, "a"},
		"flush at the partner":   {store.FaultSync, "b"},
		"read at the owner":      {store.FaultRead, "a"},
		"discard at the partner": {store.FaultDiscard, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPair(t)
			var broken atomic.Bool
			p.cfg[0].Faults = func(op, path string, _, _ int64) error {
				if broken.Load() && op == c.op && strings.HasSuffix(path, ".img") {
					return syscall.EIO
				}
				return nil
			}
			p.startBoth()
			_, m := p.lun(8<<20, c.owner)
			d := p.device(m)
			want := bytes.Repeat([]byte{0x5a}, 64<<10)
			if _, err := d.WriteAt(p.ctx, want, 1<<20); err != nil {
				t.Fatal(err)
			}
			broken.Store(true)
			if _, err := d.WriteAt(p.ctx, want, 2<<20); err != nil {
				t.Fatalf("write: %v", err)
			}
			if err := d.Flush(p.ctx); err != nil {
				t.Fatalf("flush: %v", err)
			}
			if err := d.Discard(p.ctx, 4<<20, 1<<20); err != nil {
				t.Fatalf("discard: %v", err)
			}
			for _, off := range []int64{1 << 20, 2 << 20} {
				got := make([]byte, len(want))
				if _, err := d.ReadAt(p.ctx, got, off); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("read at %d: %v", off, err)
				}
			}
			p.until("b is alone", func() bool { return p.nodes[1].View().Phase == pair.Alone })
			left := p.nodes[0]
			p.leaves(0, "the store failed")
			if v := left.View(); v.Phase != pair.Outside || left.ready() == nil || left.live() == nil {
				t.Errorf("a node with a failed disk is %v, ready %v, live %v", v.Phase, left.ready(), left.live())
			}
			broken.Store(false)
			p.start(0) // as what runs it does
			p.inSync()
			for _, off := range []int64{1 << 20, 2 << 20} {
				got := make([]byte, len(want))
				if _, err := d.ReadAt(p.ctx, got, off); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("read at %d: %v", off, err)
				}
			}
		})
	}
}

// smallDisk mounts a small filesystem of its own for a node.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: mounting a small tmpfs needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("gemel-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("skipped: a small tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// One node's disk is full: that write fails with DATA PROTECT 27/07, no node is excluded, both
// copies are alike (R13).
func TestFullDisk(t *testing.T) {
	for _, owner := range []string{"a", "b"} {
		t.Run("a full, owner "+owner, func(t *testing.T) {
			small := smallDisk(t, "24m")
			p := newTestPair(t)
			p.cfg[0].StateDir = small + "/state"
			p.startBoth()
			id, m := p.lun(64<<20, owner)
			d := p.device(m)
			const chunk = 1 << 20
			full, accepted := -1, map[int64][]byte{}
			for i := range 64 {
				data := bytes.Repeat([]byte{byte(i + 1)}, chunk)
				off := int64(i) * chunk
				_, err := d.WriteAt(p.ctx, data, off)
				if errors.Is(err, initiator.ErrNoSpace) {
					full = i
					break
				}
				if err != nil {
					t.Fatalf("write %d: %v", i, err)
				}
				accepted[off] = data
			}
			if full < 5 {
				t.Fatalf("no space at write %d", full)
			}
			// What is there can still be changed.
			again := bytes.Repeat([]byte{0xee}, 4096)
			if _, err := d.WriteAt(p.ctx, again, 4096); err != nil {
				t.Fatalf("overwrite: %v", err)
			}
			copy(accepted[0][4096:], again)
			for i := range p.nodes {
				if v := p.nodes[i].View(); v.Phase != pair.Paired || v.Record.Epoch != 1 {
					t.Fatalf("node %d: %v %s at epoch %d", i, v.Phase, v.Reason, v.Record.Epoch)
				}
			}
			for off, want := range accepted {
				got := make([]byte, len(want))
				if _, err := d.ReadAt(p.ctx, got, off); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("read at %d: %v", off, err)
				}
			}
			// Space comes back with a discard.
			if err := d.Discard(p.ctx, 2*chunk, 3*chunk); err != nil {
				t.Fatalf("discard: %v", err)
			}
			if _, err := d.WriteAt(p.ctx, accepted[chunk], int64(full)*chunk); err != nil {
				t.Fatalf("after the discard: %v", err)
			}
			if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p.bytes(0, id), p.bytes(1, id)) {
				t.Fatal("the copies differ")
			}
		})
	}
}
