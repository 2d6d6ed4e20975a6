package node

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/pdu"
)

// A host with more sessions than it may have, at the node that does not own its LUN, floods that
// node with REPORT TARGET PORT GROUPS and TEST UNIT READY. The sessions are bounded, it is one host
// to the chair, path checks are no use of a LUN, and the host that works notices nothing.
func TestFloodsOfPathChecksMoveNothing(t *testing.T) {
	p := newTestPair(t).quick()
	for i := range p.cfg {
		p.cfg[i].Lease = Duration(5 * time.Second) // both nodes and the flood share the test's processors
	}
	p.startBoth()
	id, m := p.lun(8*mib, "a")
	d := p.device(m)
	const noisy = testHost + "-noisy"
	p.mapTo(0, id, noisy)
	p.until("a chair decides", func() bool {
		p.write(d, 0, 1)
		return p.status(0).Ownership.Decides || p.status(1).Ownership.Decides
	})

	var sessions []*initiator.Session
	for range 1000 {
		s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: noisy, Target: p.cfg[1].TargetIQN(), Portal: p.cfg[1].ISCSIListen[0]})
		if err != nil {
			var refused *initiator.LoginError
			if !errors.As(err, &refused) || refused.Status != pdu.LoginOutOfResources {
				t.Fatalf("session %d: %v", len(sessions)+1, err)
			}
			break
		}
		t.Cleanup(s.Close)
		sessions = append(sessions, s)
	}
	if n := len(sessions); n < 500 || n > 512 { // half of all, with those of others from this address
		t.Fatalf("%d sessions", len(sessions))
	}
	if r := p.nodes[1].use(); len(r.Hosts) != 2 || len(r.LUNs[id]) > 1 {
		t.Errorf("%d hosts, and %d that use the LUN", len(r.Hosts), len(r.LUNs[id]))
	}

	end := time.Now().Add(8 * time.Second) // four decisions, each of them after the delay of fail-back
	var flood sync.WaitGroup
	var failed sync.Map
	checks := [][]byte{{0xa3, 0x0a, 9: 255, 11: 0}, make([]byte, 6)}
	for i, s := range sessions[:32] {
		flood.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				cdb := checks[n%2]
				var in []byte
				if len(cdb) > 6 {
					in = make([]byte, 255)
				}
				if _, err := s.Execute(p.ctx, 0, cdb, nil, in); err != nil {
					failed.Store(i, err)
					return
				}
			}
		})
	}
	for n := byte(2); time.Now().Before(end); n++ {
		p.write(d, 4096, n)
	}
	flood.Wait()
	failed.Range(func(i, err any) bool { t.Errorf("session %v: %v", i, err); return true })
	if x := p.moved(id); x != nil || p.owner(id) != "a" {
		t.Errorf("owner %s, moved: %v", p.owner(id), x)
	}
	for i := range p.nodes {
		if o := p.status(i).Ownership; o.Away != 0 {
			t.Errorf("%v", o)
		}
	}
}
