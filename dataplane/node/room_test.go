package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/testkit/reflinked"
)

// Room for an object is refused by one node: the object is not there, and both go on.
func TestNoSpaceForAnObject(t *testing.T) {
	for _, op := range []string{store.FaultCreate, store.FaultWrite} {
		p := newTestPair(t)
		full := p.failing(1, op, syscall.ENOSPC)
		p.startBoth()
		id, m := p.lun(4*mib, "a")
		p.write(p.device(m), 0, 1)
		full.Store(true)
		req := &targetv1.CreateLUNRequest{Uuid: uuid.NewString(), Name: "x", SizeBytes: 4 * mib, PreferredNode: "a"}
		if op == store.FaultWrite { // of what is copied
			req.SourceLunUuid = id
		}
		if _, err := p.client(0).CreateLUN(p.ctx, req); err == nil {
			t.Fatal("made")
		}
		full.Store(false)
		if _, err := p.client(0).CreateLUN(p.ctx, req); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		p.inSync()
	}
}

// What a joiner's file has beyond the LUN that it knows is not what the source has there, as long
// as it is.
func TestLongerFileOfAJoiner(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(4*mib, "a")
	p.write(p.device(m), 0, 1)
	p.clean()
	p.end(1)
	if _, err := p.client(0).ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: 8 * mib}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.image(1, id), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte("tail"), mib), 4*mib)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	p.inSync()
	p.alike(id)
}

// The same of a LUN that grows on both nodes while one's file is longer.
func TestGrowALongerFile(t *testing.T) {
	for _, to := range []uint64{6 * mib, 16 * mib} {
		p := newTestPair(t).startBoth()
		id, m := p.lun(4*mib, "b")
		p.write(p.device(m), 0, 1)
		f, err := os.OpenFile(p.image(1, id), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(bytes.Repeat([]byte("tail"), mib), 4*mib)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.client(0).ExpandLUN(p.ctx, &targetv1.ExpandLUNRequest{Uuid: id, SizeBytes: to}); err != nil {
			t.Fatal(err)
		}
		if a, b := p.bytes(0, id), p.bytes(1, id); !bytes.Equal(a[:to], b[:to]) {
			t.Errorf("to %d: the copies differ", to)
		}
		if a, err := p.device(m).ReadAt(p.ctx, make([]byte, mib), int64(to)-mib); err != nil {
			t.Errorf("to %d: %v, %v", to, a, err)
		}
	}
}

// fillDisk leaves no block and no inode of a filesystem.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	for n := int64(64 << 20); n >= 4096; n /= 2 {
		for i := 0; ; i++ {
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("filler-%d-%d", n, i)))
			if err == nil {
				err = errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, n), f.Close())
			}
			if errors.Is(err, syscall.ENOSPC) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A node whose disk was filled, by others or by its own LUNs, comes back as after any stop: what is
// allocated can be overwritten, and what the filesystem can do is found out without space.
func TestStartOnAFullDisk(t *testing.T) {
	disk := reflinked.Dir(t, 320*mib)
	p := newTestPair(t)
	p.cfg[1].StateDir = filepath.Join(disk, "b")
	p.startBoth()
	_, m := p.lun(4*mib, "b")
	d := p.device(m)
	p.write(d, 0, 1)
	p.clean()
	p.end(1)
	fillDisk(t, disk)
	if f, err := os.CreateTemp(filepath.Join(disk, "b", "volumes", "default", "luns"), "x"); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a file can be made: %v, %v", f, err)
	}
	p.write(d, 0, 2)
	p.start(1)
	p.inSync()
	if v := p.nodes[1].store.Default(); !v.Reflink() || !v.Births() {
		t.Errorf("extents are shared: %v, births are kept: %v", v.Reflink(), v.Births())
	}
	p.write(d, 0, 3)
	p.clean()
}
