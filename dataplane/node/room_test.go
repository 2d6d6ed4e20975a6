package node

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/google/uuid"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/store"
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
