package node

import (
	"strings"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
)

// Each node tells of its own sessions, of one host or of all.
func TestListSessions(t *testing.T) {
	p := newTestPair(t).startBoth()
	_, m := p.lun(8<<20, "a")
	s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn, Portal: m.Portals[1].Address})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		node int
		host string
		want int
	}{{0, "", 0}, {1, "", 1}, {1, strings.ToUpper(testHost), 1}, {1, testHost + "0", 0}, {0, testHost, 0}} {
		r, err := p.client(c.node).ListSessions(p.ctx, &targetv1.ListSessionsRequest{HostIqn: c.host})
		if err != nil {
			t.Fatal(err)
		}
		if r.Node != string("ab"[c.node]) || r.Portal.GetAddress() != m.Portals[c.node].Address || len(r.Sessions) != c.want {
			t.Errorf("node %d, %q: %v", c.node, c.host, r)
		}
		for _, x := range r.Sessions {
			if x.HostIqn != testHost || x.Remote == "" || x.Since.AsTime().IsZero() {
				t.Error(x)
			}
		}
	}
}

// A node knows of each of its sessions when it asked for the target port groups, of those with the
// other node nothing.
func TestLastRTPG(t *testing.T) {
	p := newTestPair(t).startBoth()
	_, m := p.lun(8<<20, "a")
	begun := time.Now() // a command counts from when it can have arrived at the earliest
	sessions := make([]*initiator.Session, 3)
	for i, portal := range []int{0, 1, 1} {
		s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn, Portal: m.Portals[portal].Address})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sessions[i] = s
	}
	list := func(node int) (asked []time.Time) {
		t.Helper()
		r, err := p.client(node).ListSessions(p.ctx, &targetv1.ListSessionsRequest{HostIqn: testHost})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for _, x := range r.Sessions {
			if x.LastRtpg != nil {
				asked = append(asked, x.LastRtpg.AsTime())
			}
			if at := r.Time.AsTime(); at.After(now) || now.Sub(at) > time.Minute || x.Since.AsTime().After(at) {
				t.Error(r, now)
			}
		}
		return asked
	}
	if got := append(list(0), list(1)...); len(got) > 0 {
		t.Fatal("nobody has asked, but for", got)
	}
	ask := func(want byte) {
		t.Helper()
		in := make([]byte, 64)
		cdb := [12]byte{0: 0xa3, 1: 0x0a, 9: byte(len(in))}
		if r, err := sessions[1].Execute(p.ctx, uint16(m.Lun), cdb[:], nil, in); err != nil || r.Status != want {
			t.Fatal(r, err)
		}
	}
	ask(initiator.StatusCheckCondition) // the unit attention of a new nexus
	if got := list(1); len(got) > 0 {
		t.Fatal("not answered, but noted:", got)
	}
	ask(initiator.StatusGood)
	first := list(1)
	if len(first) != 1 || first[0].Before(begun) || first[0].After(time.Now()) || len(list(0)) > 0 {
		t.Fatal(begun, first, list(0))
	}
	time.Sleep(50 * time.Millisecond)
	if ask(initiator.StatusGood); !list(1)[0].After(first[0]) {
		t.Error("the second was not noted:", first, list(1))
	}
}

// A node knows since when a session uses its path, and does not know it of a session that only
// looks around.
func TestSessionsTellSinceWhenTheyUseTheirPath(t *testing.T) {
	p := newTestPair(t).startBoth()
	_, m := p.lun(8<<20, "a")
	begun := time.Now()
	s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn, Portal: m.Portals[1].Address})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	uses := func() time.Time {
		t.Helper()
		all := p.nodes[1].Sessions()
		if len(all) != 1 {
			t.Fatal(all)
		}
		return all[0].UsesPath
	}
	do := func(want byte, cdb []byte, in int) {
		t.Helper()
		if r, err := s.Execute(p.ctx, uint16(m.Lun), cdb, nil, make([]byte, in)); err != nil || r.Status != want {
			t.Fatal(r, err)
		}
	}
	testUnitReady, inquiry := make([]byte, 6), []byte{0x12, 0, 0, 0, 96, 0}
	do(initiator.StatusCheckCondition, testUnitReady, 0) // the unit attention of a new nexus
	do(initiator.StatusGood, testUnitReady, 0)
	do(initiator.StatusGood, inquiry, 96)
	if at := uses(); !at.IsZero() {
		t.Error("one TEST UNIT READY and an INQUIRY are not enough, but shown at", at)
	}
	do(initiator.StatusGood, testUnitReady, 0)
	if at := uses(); at.Before(begun) || at.After(time.Now()) {
		t.Error("shown at", at, "in a test that began at", begun)
	}
}
