package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
	"github.com/gemel-storage/gemel/initiator"
)

// flushes remembers the order in which the stores of both nodes wrote and flushed.
type flushes struct {
	mu    sync.Mutex
	clock int
	wrote [2]map[place]int
	sync  [2]map[string]int // by LUN
}

// place is an offset in a LUN.
type place struct {
	lun string
	off int64
}

func watchFlushes(p *testPair) *flushes {
	f := &flushes{}
	for i := range p.cfg {
		f.wrote[i], f.sync[i] = map[place]int{}, map[string]int{}
		p.cfg[i].Faults = func(op, path string, off, _ int64) error {
			lun := strings.TrimSuffix(filepath.Base(path), ".img")
			f.mu.Lock()
			defer f.mu.Unlock()
			f.clock++
			switch op {
			case store.FaultWrite, store.FaultDiscard:
				f.wrote[i][place{lun, off}] = f.clock
			case store.FaultSync:
				f.sync[i][lun] = f.clock
			}
			return nil
		}
	}
	return f
}

// durable tells whether what is at an offset was flushed on each node after it was written there.
func (f *flushes) durable(lun string, off int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.sync {
		if w := f.wrote[i][place{lun, off}]; w == 0 || w > f.sync[i][lun] {
			return fmt.Errorf("node %d: written as number %d, last flush number %d", i, w, f.sync[i][lun])
		}
	}
	return nil
}

const through, back = targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH, targetv1.WriteCache_WRITE_CACHE_WRITE_BACK

func (p *testPair) modify(i int, req *targetv1.ModifyLUNRequest) *targetv1.LUN {
	p.t.Helper()
	l, err := p.client(i).ModifyLUN(p.ctx, req)
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// What was acknowledged before a LUN became write-through is durable on both nodes when the call
// returns, and from then on every write is before its status: also those that were on their way.
func TestWriteThrough(t *testing.T) {
	p := newTestPair(t)
	f := watchFlushes(p)
	p.startBoth()
	for asked, owner := range []string{"a", "a", "b"} { // through the owner, and through the other node
		id, m := p.lun(8<<20, owner)
		d := p.device(m)
		if _, err := d.WriteAt(p.ctx, make([]byte, 4096), 0); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(p.ctx)
		var changed sync.Map // set once the call has returned
		errs := make(chan error, 4)
		f.mu.Lock()
		began := f.clock
		f.mu.Unlock()
		for w := range 4 {
			go func() {
				errs <- func() error {
					for n := 0; ctx.Err() == nil; n++ {
						off := int64(1+w+4*(n%200)) * 4096
						_, after := changed.Load("")
						// WRITE SAME: a durable one shows as a flush, while a durable WRITE is one
						// operation of the store.
						if err := d.WriteZeroes(p.ctx, off, 4096, false); err != nil {
							return err
						}
						// A write that ends after the call has returned is durable, whenever it
						// began.
						if !after {
							_, after = changed.Load("")
							if after {
								continue // it may have ended just before
							}
						}
						if after {
							if err := f.durable(id, off); err != nil {
								return fmt.Errorf("acknowledged, but not durable: %w", err)
							}
						}
					}
					return nil
				}()
			}()
		}
		p.until("writes are under way", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.clock > began+100 || len(errs) > 0 })
		if l := p.modify(asked%2, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through}); l.WriteCache != through {
			t.Fatal(l)
		}
		changed.Store("", true)
		if err := f.durable(id, 0); err != nil {
			t.Errorf("written before: %v", err)
		}
		f.mu.Lock()
		before := f.clock
		f.mu.Unlock()
		p.until("many more writes", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.clock > before+400 || len(errs) > 0 })
		stop()
		for range 4 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		// Back again: not every write waits for a flush any more.
		p.modify(asked%2, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: back})
		p.until("a write that is not durable yet", func() bool {
			if err := d.WriteZeroes(p.ctx, 4<<20, 4096, false); err != nil {
				t.Fatal(err)
			}
			return f.durable(id, 4<<20) != nil
		})
	}
}

func cachingPage(t *testing.T, s *initiator.Session, lun uint16, pc byte) byte {
	t.Helper()
	in := make([]byte, 64)
	r, err := s.Execute(t.Context(), lun, []byte{0x1a, 8, pc<<6 | 8, 0, byte(len(in)), 0}, nil, in)
	if err != nil || r.Err(0x1a) != nil {
		t.Fatal(err, r)
	}
	return in[4+2] & 0x04
}

// Hosts read the mode in the caching page, get a unit attention when it changes, and cannot change
// it back; both survive a restart.
func TestHostsSeeTheWriteCacheMode(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8<<20, "a")
	lun := uint16(m.Lun)
	login := func(i int) *initiator.Session {
		s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn, Portal: m.Portals[i].Address})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	sessions := []*initiator.Session{login(0), login(1)}
	ready := []byte{0, 0, 0, 0, 0, 0}
	settle := func() (seen []uint16) {
		for i, s := range sessions {
			for {
				r, err := s.Execute(p.ctx, lun, ready, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				if r.Status == initiator.StatusGood {
					break
				}
				seen = append(seen, uint16(i)<<15|uint16(r.Sense().ASC)<<8|uint16(r.Sense().ASCQ))
			}
		}
		return seen
	}
	settle()
	for i, s := range sessions {
		if cachingPage(t, s, lun, 0) == 0 || cachingPage(t, s, lun, 1) == 0 {
			t.Fatalf("node %d: WCE is off or cannot be changed", i)
		}
	}
	p.modify(0, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through})
	if got := fmt.Sprintf("%#x", settle()); got != "[0x2a01 0xaa01]" {
		t.Errorf("unit attentions %s", got)
	}
	p.modify(1, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through}) // asked again
	if got := settle(); len(got) != 0 {
		t.Errorf("unit attentions for nothing: %#x", got)
	}
	for i, s := range sessions {
		for pc := range byte(4) { // current, changeable, default, saved
			if cachingPage(t, s, lun, pc) != 0 {
				t.Errorf("node %d: WCE is set in page control %d", i, pc)
			}
		}
		page := make([]byte, 4+20)
		page[4], page[5], page[6] = 8, 0x12, 0x04
		r, err := s.Execute(p.ctx, lun, []byte{0x15, 0x11, 0, 0, byte(len(page)), 0}, page, nil)
		if err != nil || r.Sense().ASC != 0x26 {
			t.Errorf("node %d: a host set WCE: %v, %+v", i, err, r)
		}
	}
	// The preferred node is an access attribute.
	p.modify(0, &targetv1.ModifyLUNRequest{Uuid: id, PreferredNode: "b"})
	if got := fmt.Sprintf("%#x", settle()); got != "[0x2a06 0xaa06]" {
		t.Errorf("unit attentions %s", got)
	}
	for i := range p.nodes {
		if err := p.stop(i); err != nil {
			t.Fatal(err)
		}
	}
	p.startBoth()
	for i := range p.nodes {
		l, err := p.client(i).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
		if err != nil || l.WriteCache != through || l.PreferredNode != "b" {
			t.Errorf("node %d after a restart: %v, %v", i, l, err)
		}
	}
}

// A LUN can be made write-through, and a lone member changes one as well.
func TestModifyAlone(t *testing.T) {
	p := newTestPair(t).startBoth()
	id := uuid.NewString()
	l, err := p.client(1).CreateLUN(p.ctx, &targetv1.CreateLUNRequest{Uuid: id, Name: "x", SizeBytes: 1 << 20, PreferredNode: "a", WriteCache: through})
	if err != nil || l.WriteCache != through {
		t.Fatal(l, err)
	}
	if err := p.stop(1); err != nil {
		t.Fatal(err)
	}
	p.until("a is alone", func() bool { return p.nodes[0].View().Phase == pair.Alone && p.nodes[0].View().Serving })
	p.modify(0, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: back, PreferredNode: "b"})
	if l := p.modify(0, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through}); l.WriteCache != through || l.PreferredNode != "b" {
		t.Fatal(l)
	}
	p.start(1)
	p.inSync()
	l, err = p.client(1).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil || l.WriteCache != through || l.PreferredNode != "b" {
		t.Fatal(l, err)
	}
	for name, c := range map[string]struct {
		req  *targetv1.ModifyLUNRequest
		code codes.Code
		says string
	}{
		"uuid":      {&targetv1.ModifyLUNRequest{Uuid: "x"}, codes.InvalidArgument, "uuid"},
		"nothing":   {&targetv1.ModifyLUNRequest{Uuid: uuid.NewString(), PreferredNode: "a"}, codes.NotFound, "LUN"},
		"node":      {&targetv1.ModifyLUNRequest{Uuid: id, PreferredNode: "c"}, codes.InvalidArgument, "preferred_node"},
		"cache":     {&targetv1.ModifyLUNRequest{Uuid: id, WriteCache: 9}, codes.InvalidArgument, "write_cache"},
		"as it was": {&targetv1.ModifyLUNRequest{Uuid: id}, codes.OK, ""},
	} {
		_, err := p.client(0).ModifyLUN(p.ctx, c.req)
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A flush that fails is a failed disk: the promise is not given.
func TestWriteThroughWithoutADisk(t *testing.T) {
	p := newTestPair(t)
	broken := make(chan struct{})
	p.cfg[0].Faults = func(op, path string, _, _ int64) error {
		select {
		case <-broken:
			if op == store.FaultSync && strings.HasSuffix(path, ".img") {
				return fmt.Errorf("broken")
			}
		default:
		}
		return nil
	}
	p.startBoth()
	id, _ := p.lun(1<<20, "a")
	close(broken)
	if _, err := p.client(0).ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through}); err == nil {
		t.Fatal("write-through was promised on a disk that cannot be flushed")
	}
	p.until("b is alone", func() bool { return p.nodes[1].View().Phase == pair.Alone && p.nodes[1].View().Serving })
	if l := p.modify(1, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through}); l.WriteCache != through {
		t.Fatal(l)
	}
	p.leaves(0, "the store failed")
}

// A write that had to wait while its LUN became write-through was judged by the old mode when it
// came, and is durable all the same.
func TestWriteHeldWhileItsLUNBecomesWriteThrough(t *testing.T) {
	p := newTestPair(t)
	f := watchFlushes(p)
	var armed atomic.Bool
	var n atomic.Int32
	holding, release := make(chan struct{}), make(chan struct{})
	next := p.cfg[0].Faults
	p.cfg[0].Faults = func(op, path string, off, length int64) error {
		if op == store.FaultSync && armed.Load() && n.Add(1) == 2 { // the second flush is the one during which commands are held
			close(holding)
			<-release
		}
		return next(op, path, off, length)
	}
	p.cfg[0].CheckpointIdle, p.cfg[1].CheckpointIdle = Duration(time.Minute), Duration(time.Minute) // no other flush
	p.startBoth()
	id, m := p.lun(8<<20, "a")
	d := p.device(m)
	armed.Store(true)
	modified := make(chan error, 1)
	client := p.client(0)
	go func() {
		_, err := client.ModifyLUN(p.ctx, &targetv1.ModifyLUNRequest{Uuid: id, WriteCache: through})
		modified <- err
	}()
	select {
	case <-holding:
	case err := <-modified:
		t.Fatalf("it ended without a flush while commands are held: %v", err)
	}
	held := func() uint64 {
		p.nodes[0].mu.Lock()
		defer p.nodes[0].mu.Unlock()
		return uint64(p.nodes[0].m.Stats.Held)
	}
	before := held()
	wrote := make(chan error, 1)
	go func() { wrote <- d.WriteZeroes(p.ctx, 1<<20, 4096, false) }()
	p.until("the write is held", func() bool { return held() > before })
	close(release)
	if err := <-modified; err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if err := f.durable(id, 1<<20); err != nil {
		t.Error(err)
	}
}
