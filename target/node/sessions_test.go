package node

import (
	"strings"
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/target/v1"
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
