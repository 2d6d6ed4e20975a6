package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
)

// Service actions of PERSISTENT RESERVE OUT (SPC-4 §6.16.2), and the type that fences use.
const (
	prPreemptAbort   = 0x05
	prRegisterIgnore = 0x06
	writeExclusive   = 0x05 // registrants only
)

// prOut sends one, and again while a unit attention, a conflict or BUSY is its answer.
func prOut(ctx context.Context, s *initiator.Session, lun uint16, action byte, key, other uint64) error {
	cdb := []byte{0x5f, action, writeExclusive, 0, 0, 0, 0, 0, 24, 0}
	param := make([]byte, 24)
	binary.BigEndian.PutUint64(param, key)
	binary.BigEndian.PutUint64(param[8:], other)
	r, err := s.Execute(ctx, lun, cdb, param, nil)
	if err != nil {
		return err
	}
	if r.Status == initiator.StatusGood {
		return nil
	}
	return r.Err(cdb[0])
}

// fencer is a host that continues whatever the others do to it: it logs in again when a
// node dropped its connection, which one that does not get to run for a while does.
type fencer struct {
	p    *testPair
	m    *targetv1.Mapping
	node int
	mu   sync.Mutex
	s    *initiator.Session
}

func (f *fencer) session(ctx context.Context) (*initiator.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.s != nil && f.s.Err() == nil {
		return f.s, nil
	}
	s, err := initiator.Login(ctx, initiator.SessionConfig{InitiatorName: f.m.HostIqn, Target: f.m.TargetIqn, Portal: f.m.Portals[f.node].Address})
	if err == nil {
		f.p.t.Cleanup(s.Close)
		f.s = s
	}
	return s, err
}

// insist repeats until there is an answer or the context ends.
func (f *fencer) insist(ctx context.Context, do func(*initiator.Session) error) error {
	var last error
	for ctx.Err() == nil {
		s, err := f.session(ctx)
		if err == nil {
			err = do(s)
		}
		var refused *initiator.SCSIError // an answer: the key may be gone by now
		if err == nil || errors.As(err, &refused) || errors.Is(err, initiator.ErrAborted) {
			return nil
		}
		last = err
	}
	return errors.Join(context.Cause(ctx), last)
}

// Hosts that fence each other, by PREEMPT AND ABORT and by resets, on both nodes at once, with MODE
// SELECT and RESERVE beside: each of these is an entry of the log that ends commands which wait for
// an entry themselves. None may wait for them, or the log stops for ever.
func TestHostsThatFenceEachOther(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(8<<20, "a")
	ctx, cancel := context.WithTimeout(p.ctx, 90*time.Second)
	defer cancel()
	const rounds = 60
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	begin := func(what string, f func(i int) error) {
		wg.Go(func() {
			for i := range rounds {
				if err := f(i); err != nil {
					errs <- fmt.Errorf("%s, round %d: %w", what, i, err)
					return
				}
			}
		})
	}
	for h := range 4 {
		host := fmt.Sprintf("%s-%d", testHost, h)
		mine, err := p.client(0).MapHost(ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: host})
		if err != nil {
			t.Fatal(err)
		}
		lun, key := uint16(mine.Lun), uint64(h+1)
		f := &fencer{p: p, m: mine, node: h % 2}
		begin("PREEMPT AND ABORT of "+host, func(int) error {
			return f.insist(ctx, func(s *initiator.Session) error {
				if err := prOut(ctx, s, lun, prRegisterIgnore, 0, key); err != nil {
					return err
				}
				return prOut(ctx, s, lun, prPreemptAbort, key, uint64((h+1)%4+1))
			})
		})
		begin("MODE SELECT of "+host, func(i int) error {
			page := make([]byte, 4+12)
			page[4], page[5], page[6] = 0x0a, 0x0a, 0x02
			page[8] = byte(i%2) << 3                                // SWP
			return f.insist(ctx, func(s *initiator.Session) error { // refused is as good as done
				_, err := s.Execute(ctx, lun, []byte{0x15, 0x10, 0, 0, byte(len(page)), 0}, page, nil)
				return err
			})
		})
		if h < 2 {
			begin("LUN RESET of "+host, func(int) error {
				return f.insist(ctx, func(s *initiator.Session) error {
					_, err := s.TaskManagement(ctx, 5, lun)
					return err
				})
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	// The log continues: LUNs are made and moved.
	other, _ := p.lun(1<<20, "b")
	if _, err := p.client(1).TransferOwnership(ctx, &targetv1.TransferOwnershipRequest{LunUuids: []string{id, other}, ToNode: "b"}); err != nil {
		t.Error(err)
	}
}

// What one host does, or is given, does not reach a host that does not see the LUN.
func TestHostsAreNotDisturbed(t *testing.T) {
	p := newTestPair(t).startBoth()
	_, mine := p.lun(8<<20, "a")
	other, _ := p.lun(8<<20, "a")
	if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: other, HostIqn: testHost}); err != nil {
		t.Fatal(err)
	}
	theirs, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: other, HostIqn: testHost + "-other"})
	if err != nil {
		t.Fatal(err)
	}
	one, two := &fencer{p: p, m: mine}, &fencer{p: p, m: theirs}
	ready := func(f *fencer) (seen []uint16) {
		t.Helper()
		s, err := f.session(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for {
			r, err := s.Execute(p.ctx, uint16(f.m.Lun), []byte{0, 0, 0, 0, 0, 0}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.Status == initiator.StatusGood {
				return seen
			}
			seen = append(seen, uint16(r.Sense().ASC)<<8|uint16(r.Sense().ASCQ))
		}
	}
	ready(one)
	ready(two)
	first := two.s
	third, _ := p.lun(8<<20, "a") // mapped to testHost, whose session is one
	if got := ready(one); len(got) != 1 || got[0] != 0x3f0e {
		t.Errorf("the host that was given a LUN was told %#x, not 3f0e", got)
	}
	if got := ready(two); len(got) != 0 {
		t.Errorf("another host was told %#x of it", got)
	}
	if _, err := p.client(0).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: third, HostIqn: testHost}); err != nil {
		t.Fatal(err)
	}
	ready(one)
	if got := ready(two); len(got) != 0 {
		t.Errorf("another host was told %#x when a LUN was taken away", got)
	}
	for _, f := range []struct {
		name string
		code byte
	}{{"warm", 6}, {"cold", 7}} {
		s, err := one.session(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.TaskManagement(p.ctx, f.code, 0); err != nil || r != 0 {
			t.Fatalf("TARGET %s RESET: response %d, %v", f.name, r, err)
		}
		if got := ready(two); len(got) != 0 || two.s != first {
			t.Errorf("TARGET %s RESET of one host: the other was told %#x, or lost its session (%v)", f.name, got, first.Err())
		}
	}
	// A cold reset ends the sessions of the host that asked.
	select {
	case <-one.s.Done():
	case <-p.ctx.Done():
		t.Error("the session that asked for a cold reset lives on")
	}
}

// A registration that a fenced host had on its way when it was fenced is not there afterwards.
func TestFencedHostLeavesNoRegistration(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(8<<20, "a")
	for round := range 20 {
		if _, err := p.client(0).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: id, HostIqn: testHost}); err != nil {
			t.Fatal(err)
		}
		mapped, err := p.client(0).GetLUN(p.ctx, &targetv1.GetLUNRequest{Uuid: id})
		if err != nil {
			t.Fatal(err)
		}
		f := &fencer{p: p, m: m, node: round % 2}
		s, err := f.session(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(p.ctx)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = prOut(ctx, s, uint16(mapped.Mappings[0].Lun), prRegisterIgnore, 0, 7)
				}
			})
		}
		if _, err := p.client(round%2).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: testHost}); err != nil {
			t.Error(err)
		}
		for _, n := range p.nodes {
			if left := n.strangers(id); len(left) != 0 {
				t.Errorf("round %d, node %v: %v are registered", round, n.self, left)
			}
		}
		cancel()
		wg.Wait()
		s.Close()
	}
}
