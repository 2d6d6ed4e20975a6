package node

import (
	"errors"
	"fmt"
	"os"
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// enter logs in at a node and returns the session and the status that the login was answered with.
func (p *testPair) enter(node int, host string) (*initiator.Session, pdu.LoginStatus) {
	p.t.Helper()
	s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: host, Target: p.cfg[node].TargetIQN(), Portal: p.cfg[node].ISCSIListen[0]})
	var refused *initiator.LoginError
	switch {
	case errors.As(err, &refused):
		return nil, refused.Status
	case err != nil:
		p.t.Fatal(err)
	}
	p.t.Cleanup(s.Close)
	return s, pdu.LoginSuccess
}

func (p *testPair) enters(node int, host string, want pdu.LoginStatus) {
	p.t.Helper()
	if _, got := p.enter(node, host); got != want {
		p.t.Errorf("%s at node %s: %s (%#04x), want %s", host, p.nodes[node].self, got, uint16(got), want)
	}
}

// finds checks what SendTargets shows a host.
func (p *testPair) finds(node int, host string, want int) {
	p.t.Helper()
	found, err := initiator.Discover(p.ctx, initiator.SessionConfig{InitiatorName: host, Portal: p.cfg[node].ISCSIListen[0]})
	if err != nil || len(found) != want {
		p.t.Errorf("%s at node %s: %v %v, want %d targets", host, p.nodes[node].self, found, err, want)
	}
}

func (p *testPair) mapTo(node int, lun, host string) {
	p.t.Helper()
	if _, err := p.client(node).MapHost(p.ctx, &targetv1.MapHostRequest{LunUuid: lun, HostIqn: host}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testPair) unmapFrom(node int, lun, host string) {
	p.t.Helper()
	if _, err := p.client(node).UnmapHost(p.ctx, &targetv1.UnmapHostRequest{LunUuid: lun, HostIqn: host}); err != nil {
		p.t.Fatal(err)
	}
}

// A session is for hosts that have LUNs. Sessions that are there when the last LUN goes stay: their
// commands are answered.
func TestLoginWithoutLUNs(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, m := p.lun(4*mib, "a")
	stranger := testHost + "-stranger"
	for node := range 2 {
		p.enters(node, stranger, pdu.LoginForbidden)
		if _, err := initiator.Discover(p.ctx, initiator.SessionConfig{InitiatorName: stranger, Portal: m.Portals[node].Address}); !errors.Is(err, initiator.ErrAuth) {
			t.Errorf("a host that is not known discovers: %v", err)
		}
	}
	var there [2]*initiator.Session
	for node := range there {
		there[node], _ = p.enter(node, testHost)
		p.finds(node, testHost, 1)
	}
	p.unmapFrom(0, id, testHost)
	for node, s := range there {
		for _, want := range []byte{initiator.StatusCheckCondition, initiator.StatusCheckCondition} {
			r, err := s.Execute(p.ctx, uint16(m.Lun), make([]byte, 6), nil, nil)
			if err != nil || r.Status != want {
				t.Fatalf("TEST UNIT READY over a session that was there: %v %v", r, err)
			}
		}
		p.enters(node, testHost, pdu.LoginForbidden)
		p.finds(node, testHost, 0)
		if n := p.nodes[node].iscsi.Stats().Forbidden.Load(); n != 3 {
			t.Errorf("node %s counts %d refused logins", p.nodes[node].self, n)
		}
		if s.Err() != nil {
			t.Errorf("the session at node %s has ended: %v", p.nodes[node].self, s.Err())
		}
	}
	p.mapTo(1, id, testHost)
	for node := range 2 {
		p.enters(node, testHost, pdu.LoginSuccess)
		p.finds(node, testHost, 1)
	}
}

// A host that got the answer to a mapping, by either node, logs in at either one at once.
func TestLoginRightAfterMapping(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(4*mib, "a")
	for i := range 40 {
		host := fmt.Sprintf("%s-%d", testHost, i)
		p.mapTo(i%2, id, host)
		p.enters(1-i%2, host, pdu.LoginSuccess)
		p.enters(i%2, host, pdu.LoginSuccess)
		if i%4 > 1 {
			p.unmapFrom(i/2%2, id, host)
			p.enters(0, host, pdu.LoginForbidden)
			p.mapTo(i/2%2, id, host)
			p.enters(1-i/2%2, host, pdu.LoginSuccess)
		}
	}
}

// A node that does not serve may have old metadata, or none: it has hosts come again.
func TestLoginAtANodeThatDoesNotServe(t *testing.T) {
	p := newTestPair(t).startBoth()
	id, _ := p.lun(4*mib, "a")
	fresh, former := testHost+"-fresh", testHost+"-former"
	p.mapTo(0, id, former)
	p.unmapFrom(0, id, former)
	p.end(1)
	p.until("node a serves alone", func() bool { v := p.nodes[0].View(); return v.Phase == pair.Alone && v.Serving })
	p.mapTo(0, id, fresh)
	p.mapTo(0, id, former)
	p.end(0)
	outside := func() {
		t.Helper()
		p.until("node b is no member", func() bool { return p.nodes[1].View().Phase == pair.Outside })
	}
	p.start(1)
	outside()
	p.enters(1, fresh, pdu.LoginUnavailable)
	p.enters(1, former, pdu.LoginUnavailable)
	p.enters(1, testHost, pdu.LoginSuccess) // as far as it knows
	p.finds(1, former, 1)
	if n := p.nodes[1].iscsi.Stats(); n.Forbidden.Load() != 0 || n.NotYet.Load() != 2 {
		t.Errorf("node b counts %d and %d", n.Forbidden.Load(), n.NotYet.Load())
	}
	p.end(1)
	if err := os.RemoveAll(p.cfg[1].StateDir); err != nil {
		t.Fatal(err)
	}
	p.start(1)
	outside()
	p.enters(1, testHost, pdu.LoginUnavailable)
	p.start(0)
	p.inSync()
	for node := range 2 {
		for _, host := range []string{testHost, fresh, former} {
			p.enters(node, host, pdu.LoginSuccess)
		}
		p.enters(node, testHost+"-stranger", pdu.LoginForbidden)
	}
}
