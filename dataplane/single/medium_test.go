package single

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/internal/clock"
)

const (
	localUUID = "3b2c6d2e-54f4-4c8e-9a51-6f0f5f2f1a10"
	localSize = 4 << 20
)

func newMedium(t *testing.T, faults store.FaultFunc) *Medium {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	st, err := store.Open(t.TempDir(), store.Identity{Cluster: "c", Pair: "p", Node: "a"}, store.Options{Log: log, Faults: faults})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Default().CreateLUN(localUUID, localSize, store.NoBirth); err != nil {
		t.Fatal(err)
	}
	f, err := st.Default().OpenLUN(localUUID)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewMedium(f, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); f.Close(); st.Close() })
	return l
}

// run submits an operation and waits for it.
func run(t *testing.T, l *Medium, op *scsi.Op) scsi.Result {
	t.Helper()
	done := make(chan struct{})
	op.Done = func(*scsi.Op) { close(done) }
	if op.Arrived == 0 {
		op.Arrived = clock.Boottime()
	}
	if l.Submit(op) {
		return op.Result
	}
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the operation hangs")
	}
	return op.Result
}

func TestMediumAgainstAModel(t *testing.T) {
	l := newMedium(t, nil)
	model := make([]byte, localSize)
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range 600 {
		off, n := rnd.Int64N(localSize-1<<16)&^511, (rnd.Int64N(1<<16)+512)&^511
		data := make([]byte, n)
		for j := range data {
			data[j] = byte(rnd.Uint32())
		}
		op := &scsi.Op{Off: off, Len: n, FUA: i%7 == 0}
		want := scsi.OK
		switch i % 6 {
		case 0, 1:
			op.Kind, op.Data = scsi.OpWrite, data
			copy(model[off:], data)
		case 2:
			op.Kind, op.Ranges = scsi.OpUnmap, []scsi.Range{{Off: off, Len: n}, {Off: 0, Len: 512}}
			clear(model[off : off+n])
			clear(model[:512])
		case 3:
			op.Kind, op.Data = scsi.OpWriteSame, data[:512]
			if i%4 == 3 {
				op.Data = make([]byte, 512)
			}
			copy(model[off:off+n], bytes.Repeat(op.Data, int(n/512)))
		case 4:
			op.Kind, op.Data, op.Verify = scsi.OpCompareWrite, data, bytes.Clone(model[off:off+n])
			if i%5 == 4 {
				op.Verify[n-1] ^= 1
				want = scsi.Miscompare
			} else {
				copy(model[off:], data)
			}
		case 5:
			op.Kind = scsi.OpFlush
		}
		if got := run(t, l, op); got != want || got == scsi.Miscompare && op.MiscompareAt != n-1 {
			t.Fatalf("operation %d (kind %d): %d, want %d; miscompare at %d", i, op.Kind, got, want, op.MiscompareAt)
		}
	}
	got := make([]byte, localSize)
	if r := run(t, l, &scsi.Op{Kind: scsi.OpRead, Len: localSize, Data: got, FUA: true}); r != scsi.OK || !bytes.Equal(got, model) {
		t.Fatalf("result %d, or the data differs", r)
	}
}

func TestMediumChecksBounds(t *testing.T) {
	l := newMedium(t, nil)
	for _, op := range []*scsi.Op{
		{Kind: scsi.OpRead, Off: localSize, Len: 512, Data: make([]byte, 512)},
		{Kind: scsi.OpWrite, Off: localSize - 512, Len: 1024, Data: make([]byte, 1024)},
		{Kind: scsi.OpWrite, Off: -512, Len: 512, Data: make([]byte, 512)},
		{Kind: scsi.OpUnmap, Ranges: []scsi.Range{{Off: 0, Len: 512}, {Off: localSize, Len: 512}}},
		{Kind: scsi.OpWriteSame, Off: 1 << 62, Len: 1 << 62, Data: make([]byte, 512)},
	} {
		if got := run(t, l, op); got != scsi.OutOfRange {
			t.Errorf("kind %d at %d: %d", op.Kind, op.Off, got)
		}
	}
}

// hold takes a range as an operation under way does.
func (l *Medium) hold(off, end int64) func() {
	r := &request{}
	r.Off, r.End = off, end
	l.mu.Lock()
	if !l.locks.Acquire(&r.Request) {
		panic("the range is taken")
	}
	l.mu.Unlock()
	return func() { l.release(r) }
}

func TestMediumWaitsForItsRange(t *testing.T) {
	l := newMedium(t, nil)
	release := l.hold(0, 4096)
	var mu sync.Mutex
	var order []byte
	var wg sync.WaitGroup
	for i := range byte(3) {
		wg.Add(1)
		op := &scsi.Op{Kind: scsi.OpWrite, Len: 512, Data: bytes.Repeat([]byte{i + 1}, 512), Arrived: clock.Boottime() + int64(time.Hour)}
		op.Done = func(*scsi.Op) {
			mu.Lock()
			order = append(order, i+1)
			mu.Unlock()
			wg.Done()
		}
		if l.Submit(op) {
			t.Fatal("it did not wait")
		}
	}
	if got := run(t, l, &scsi.Op{Kind: scsi.OpWrite, Off: 4096, Len: 512, Data: make([]byte, 512)}); got != scsi.OK {
		t.Fatalf("another range: %d", got)
	}
	release()
	wg.Wait()
	got := make([]byte, 512)
	run(t, l, &scsi.Op{Kind: scsi.OpRead, Len: 512, Data: got})
	if got[0] != 3 {
		t.Errorf("the writes did not take effect in order: %d last, finished %v", got[0], order)
	}
}

func TestMediumDoesNotStartOldWrites(t *testing.T) {
	l := newMedium(t, nil)
	release := l.hold(0, 4096)
	done := make(chan scsi.Result, 2)
	end := func(op *scsi.Op) { done <- op.Result }
	old := &scsi.Op{Kind: scsi.OpWrite, Len: 512, Data: make([]byte, 512), Arrived: clock.Boottime() - 2e9, Done: end}
	if l.Submit(old) {
		t.Fatal("it did not wait")
	}
	release()
	if got := <-done; got != scsi.Busy {
		t.Errorf("a write of two seconds ago: %d", got)
	}
}

func TestMediumAbort(t *testing.T) {
	l := newMedium(t, nil)
	release := l.hold(0, 4096)
	results := make(chan scsi.Result, 2)
	first := &scsi.Op{Kind: scsi.OpWrite, Len: 512, Data: bytes.Repeat([]byte{9}, 512), Arrived: clock.Boottime(),
		Done: func(op *scsi.Op) { results <- op.Result }}
	if l.Submit(first) {
		t.Fatal("it did not wait")
	}
	l.Abort(first)
	if got := <-results; got != scsi.Aborted {
		t.Fatalf("%d", got)
	}
	l.Abort(first) // harmless
	release()
	got := make([]byte, 512)
	if r := run(t, l, &scsi.Op{Kind: scsi.OpRead, Len: 512, Data: got}); r != scsi.OK || got[0] != 0 {
		t.Errorf("result %d; the aborted write took effect: %d", r, got[0])
	}
}

func TestMediumMapsErrors(t *testing.T) {
	for _, c := range []struct {
		op     string
		inject error
		kind   scsi.OpKind
		want   scsi.Result
	}{
		{store.FaultWrite, syscall.ENOSPC, scsi.OpWrite, scsi.NoSpace},
		{store.FaultWrite, syscall.EIO, scsi.OpWrite, scsi.WriteError},
		{store.FaultRead, syscall.EIO, scsi.OpRead, scsi.ReadError},
		{store.FaultRead, syscall.EIO, scsi.OpCompareWrite, scsi.ReadError},
		{store.FaultDiscard, syscall.EIO, scsi.OpUnmap, scsi.WriteError},
		{store.FaultSync, syscall.EIO, scsi.OpFlush, scsi.WriteError},
	} {
		l := newMedium(t, func(op, _ string, _, _ int64) error {
			if op == c.op {
				return c.inject
			}
			return nil
		})
		op := &scsi.Op{Kind: c.kind, Len: 512, Data: make([]byte, 512), Verify: make([]byte, 512), Ranges: []scsi.Range{{Len: 512}}}
		if got := run(t, l, op); got != c.want {
			t.Errorf("%s of kind %d: %d, want %d", c.op, c.kind, got, c.want)
		}
	}
}
