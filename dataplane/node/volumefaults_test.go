package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// A node that is made again gets everything, in every volume; and so does one whose volume was put
// back to an earlier state, although its metadata was not (R6).
func TestVolumesAreCopied(t *testing.T) {
	p := newTestPair(t).fast().startBoth()
	id, m := p.lunIn(0, "fast")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	p.end(1)
	if err := os.CopyFS(p.volume(1)+"-old", os.DirFS(p.volume(1))); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	p.write(d, 0, 2)
	p.clean()
	p.end(1)
	if err := errors.Join(os.Rename(p.volume(1), p.volume(1)+"-right"), os.CopyFS(p.volume(1), os.DirFS(p.volume(1)+"-old"))); err != nil {
		t.Fatal(err)
	}
	before := p.full(0)
	p.start(1)
	p.inSync()
	p.alikeInFast("luns", id)
	p.end(1)
	p.start(1) // and from now on it is trusted
	p.inSync()
	if n := p.full(0) - before; n != 1 {
		t.Errorf("%d full copies", n)
	}

	p.end(1)
	if err := errors.Join(os.RemoveAll(p.cfg[1].StateDir), os.RemoveAll(p.volume(1))); err != nil {
		t.Fatal(err)
	}
	p.write(d, 8*mib, 3)
	p.start(1)
	p.inSync()
	p.alikeInFast("luns", id)
}

func (p *testPair) full(i int) uint64 {
	n := p.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.Stats.FullResyncs
}

// The right volume may be put back after a start with one of earlier, as long as the node has not
// been copied to.
func TestVolumeOfEarlierTakenBack(t *testing.T) {
	p := newTestPair(t).fast().startBoth()
	_, m := p.lunIn(0, "fast")
	d := p.device(m)
	p.write(d, 0, 1)
	p.end(1)
	right := p.volume(1) + "-right"
	if err := os.CopyFS(p.volume(1)+"-old", os.DirFS(p.volume(1))); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	p.end(1)
	if err := errors.Join(os.Rename(p.volume(1), right), os.Rename(p.volume(1)+"-old", p.volume(1))); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n, err := New(p.cfg[1])
		if err != nil {
			t.Fatal(err)
		}
		if !n.own.doubt.Load() {
			t.Error("it is trusted")
		}
		_ = n.store.Close()
	}
	if err := errors.Join(os.RemoveAll(p.volume(1)), os.Rename(right, p.volume(1))); err != nil {
		t.Fatal(err)
	}
	n, err := New(p.cfg[1])
	if err != nil {
		t.Fatal(err)
	}
	if n.own.doubt.Load() {
		t.Error("it is not trusted")
	}
	_ = n.store.Close()
}

// A volume that is full refuses writes to its own LUNs, excludes no node, and leaves the others
// alone (R13).
func TestFullVolume(t *testing.T) {
	p := newTestPair(t).fast()
	var full [2]bool
	for i := range p.cfg {
		p.cfg[i].Faults = func(op, path string, _, _ int64) error {
			if full[i] && op == store.FaultWrite && strings.HasPrefix(path, "volumes/fast/luns/") {
				return syscall.ENOSPC
			}
			return nil
		}
	}
	full[1] = true // one node's is enough
	p.startBoth()
	_, m := p.lunIn(0, "fast")
	_, m2 := p.lunIn(0, "default")
	d, d2 := p.device(m), p.device(m2)
	_, err := d.WriteAt(p.ctx, bytes.Repeat([]byte{1}, 4096), 0)
	if !errors.Is(err, initiator.ErrNoSpace) {
		t.Errorf("%v", err)
	}
	p.write(d2, 0, 2)
	p.inSync()
}

// What finds no space for its file at either node, or at both, is refused, and excludes no node. It
// is made once there is room.
func TestFullVolumeMakesNothing(t *testing.T) {
	p := newTestPair(t)
	var full [2]atomic.Bool
	for i := range p.cfg {
		p.cfg[i].Faults = func(op, path string, _, _ int64) error {
			if full[i].Load() && (op == store.FaultCreate || op == store.FaultClone) {
				return syscall.ENOSPC
			}
			return nil
		}
	}
	p.startBoth()
	source, _ := p.lun(16*mib, "a")
	snap := uuid.NewString()
	if _, err := p.client(0).CreateSnapshot(p.ctx, &targetv1.CreateSnapshotRequest{Uuid: snap, Name: "s", SourceLunUuid: source}); err != nil {
		t.Fatal(err)
	}
	for _, at := range [][]int{{0}, {1}, {0, 1}} {
		lun := &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: fmt.Sprint("lun", at), SizeBytes: 16 * mib}
		clone := &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: fmt.Sprint("clone", at), SizeBytes: 16 * mib, SourceLunUuid: source}
		restored := &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: fmt.Sprint("restored", at), SizeBytes: 16 * mib, SourceSnapshotUuid: snap}
		for _, req := range []*targetv1.CreateLUNRequest{lun, clone, restored} {
			for _, i := range at {
				full[i].Store(true)
			}
			_, err := p.client(0).CreateLUN(p.ctx, req)
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s, full at %v: %v", req.Name, at, err)
			}
			for i := range full {
				full[i].Store(false)
			}
			if _, err := p.client(0).CreateLUN(p.ctx, req); err != nil {
				t.Errorf("%s, with room again: %v", req.Name, err)
			}
		}
		p.inSync()
	}
	for i := range p.nodes {
		if e := p.nodes[i].View().Record.Epoch; e != 1 {
			t.Errorf("epoch %d: a node was excluded", e)
		}
	}
}

// A volume that fails takes its node out, with all of them; the other node serves all, and copies
// all when the node comes back (R12).
func TestFailingVolume(t *testing.T) {
	p := newTestPair(t).fast()
	var broken atomic.Bool
	p.cfg[1].Faults = func(op, path string, _, _ int64) error {
		if broken.Load() && op == store.FaultWrite && strings.HasPrefix(path, "volumes/fast/luns/") {
			return syscall.EIO
		}
		return nil
	}
	p.startBoth()
	id, m := p.lunIn(0, "fast")
	other, m2 := p.lunIn(0, "default")
	d, d2 := p.device(m), p.device(m2)
	broken.Store(true)
	p.write(d, 0, 1)
	p.write(d2, 0, 2)
	p.until("a serves alone", func() bool { return p.nodes[0].View().Phase == pair.Alone && p.nodes[0].View().Serving })
	p.leaves(1, "the store failed")
	broken.Store(false)
	p.start(1)
	p.inSync()
	p.alikeInFast("luns", id)
	p.alike(other)
}
