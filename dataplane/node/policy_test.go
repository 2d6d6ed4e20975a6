package node

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// setPolicy is what the operator does, by either node.
func (p *testPair) setPolicy(i int, mode string, delay uint32, version uint64) error {
	_, err := p.client(i).SetOwnershipPolicy(p.ctx, &targetv1.SetOwnershipPolicyRequest{Mode: mode, FailBackDelaySeconds: delay, Version: version})
	return err
}

// The flags count until a policy is set; that one counts from the next decision on, and both nodes
// keep it on their disks. A move that was decided under another one is not made.
func TestPolicyReplacesTheFlags(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).quick()
	p.cfg[0].Balancing, p.cfg[1].Balancing = "off", "off"
	p.startBoth()
	shows := func(mode string, delay time.Duration, version uint64) {
		t.Helper()
		p.until("both nodes show the policy", func() bool { // one applies it a moment after the other
			for i := range p.nodes {
				if o := p.status(i).Ownership; o.Mode != mode || o.FailBackDelay.AsDuration() != delay || o.PolicyVersion != version {
					return false
				}
			}
			return true
		})
	}
	shows("off", time.Second, 0)
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	if err := p.setPolicy(1, "observe", 5, 3); err != nil {
		t.Fatal(err)
	}
	shows("observe", 5*time.Second, 3)
	if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 1}); err != nil {
		t.Fatal(err)
	}
	p.until("it says what it would do", func() bool {
		p.write(d, 0, 1)
		x := p.moved(id)
		return x != nil && x.Observed && x.Reason == "FailBack"
	})
	if o := p.owner(id); o != "b" {
		t.Errorf("owner %s", o)
	}
	for _, late := range []uint64{0, 2} {
		req := transferRequest{To: "a", Epoch: p.nodes[1].View().Record.Epoch, Policy: &late}
		if _, _, err := p.nodes[1].move(p.ctx, []string{id}, req); !errors.Is(err, control.ErrUnavailable) || p.owner(id) != "b" {
			t.Errorf("a move of version %d is made: %v", late, err)
		}
	}
	for i := range p.nodes {
		if err := p.stop(i); err != nil {
			t.Fatal(err)
		}
	}
	p.startBoth()
	shows("observe", 5*time.Second, 3)
	if err := p.setPolicy(0, "auto", 5, 4); err != nil {
		t.Fatal(err)
	}
	if p.owner(id) == "a" { // the stop of both nodes may have moved it
		if _, err := p.client(1).Drain(p.ctx, &targetv1.DrainRequest{Node: "a", Seconds: 1}); err != nil {
			t.Fatal(err)
		}
	}
	p.until("it goes home", func() bool { return p.owner(id) == "a" })
}

// The owner holds no command for a move that is late.
func TestLateMoveHoldsNoCommands(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	id, _ := p.lun(8*mib, "a")
	if err := p.setPolicy(0, "off", 60, 3); err != nil {
		t.Fatal(err)
	}
	_, err := p.nodes[0].transferHere(p.ctx, transferRequest{UUIDs: []string{id}, To: "b", Epoch: p.nodes[0].View().Record.Epoch, Policy: new(uint64(2))})
	if !errors.Is(err, control.ErrUnavailable) || errors.Is(err, meta.ErrNotReady) { // of the owner, not of the log
		t.Error(err)
	}
}

// A pair with a node of a release before has no policy, and gives such a node none.
func TestPolicyInAMixedPair(t *testing.T) {
	t.Parallel()
	p := newTestPair(t).startBoth()
	if err := p.setPolicy(1, "off", 60, 3); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	p.cfg[0].earlier = true
	p.start(0)
	p.inSync()
	if o := p.status(0).Ownership; o.PolicyVersion != 0 {
		t.Errorf("%v", o)
	}
	if err := p.setPolicy(1, "auto", 60, 4); status.Code(err) != codes.Unimplemented {
		t.Errorf("a policy that the other node cannot apply: %v", err)
	}
}
