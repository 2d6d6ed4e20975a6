package node

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/pki"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
)

// In steady state commands of 4 KiB allocate nothing, at neither node: what is left comes with
// time, as ticks and heartbeats do, and not with commands. Both nodes and the host are in this
// process, and all three are counted. With TLS between the nodes there is one more for each record
// that comes over the link, which crypto/tls makes to read it (readFromUntil) and which no caller
// of it can avoid; with several commands under way most share their records.
func TestNoAllocationsPerCommand(t *testing.T) {
	switch {
	case testing.Short():
		t.Skip("takes some seconds")
	case raceEnabled:
		t.Skip("the race detector makes pools forget at random")
	}
	p := newTestPair(t)
	for i := range p.cfg {
		p.cfg[i].Balancing = "off"                 // else the LUN follows its host, and nothing is forwarded any more
		p.cfg[i].Lease = Duration(2 * time.Second) // a machine that is busy should cause no fail-over
	}
	p.startBoth()
	_, m := p.lun(8<<20, "a")
	t.Run("plain", func(t *testing.T) { noAllocations(t, p, m, false) })

	a := newAuthority(t)
	for _, i := range []int{1, 0} { // the owner is the last one, and stays the owner
		name := harness.Names[i]
		if err := p.stop(i); err != nil {
			t.Fatal(err)
		}
		c := a.config(name, pki.TargetURI("test", "p0", name), false)
		p.cfg[i].TLSCert, p.cfg[i].TLSKey, p.cfg[i].TLSCA = c.TLSCert, c.TLSKey, c.TLSCA
	}
	p.startBoth()
	t.Run("TLS", func(t *testing.T) { noAllocations(t, p, m, true) })
}

func noAllocations(t *testing.T, p *testPair, m *targetv1.Mapping, sealed bool) {
	const read, write = 0x28, 0x2a
	for _, x := range []struct {
		name    string
		portal  int
		op      byte
		records float64 // messages on the link
	}{{"mirrored write", 0, write, 2}, {"read", 0, read, 0}, {"forwarded write", 1, write, 4}, {"forwarded read", 1, read, 2}} {
		limit := 0.1
		if sealed {
			limit += x.records
		}
		s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn, Portal: m.Portals[x.portal].Address})
		if err != nil {
			t.Fatal(err)
		}
		for _, depth := range []int{1, 32} {
			l := newLoad(t, s, uint16(m.Lun), x.op, depth)
			l.run(2000) // the session's first commands are answered with a unit attention, and pools are empty
			l.strict = true
			// A look of the chair, and what else comes every few seconds, is in some of the rounds.
			// What comes with commands is in each.
			per, over := 0.0, true
			for round := 0; round < 5 && over; round++ {
				var withTime float64
				per, withTime = perCommand(l)
				over = per > limit+withTime
			}
			t.Logf("%s, %d at a time: %.3f allocations per command", x.name, depth, per)
			if over {
				t.Errorf("%s, %d at a time: %.2f allocations per command", x.name, depth, per)
			}
		}
		s.Close()
	}
}

// perCommand counts the allocations of some thousands of commands, and says how many of them may
// have come with time. A collection would empty the pools, which is seldom where nothing is
// allocated: there is none meanwhile.
func perCommand(l *load) (per, withTime float64) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	l.run(500) // after the last collection
	const n, second = 4000, 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	l.run(n)
	withTime = second * time.Since(start).Seconds() / n
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / n, withTime
}

// load keeps reads or writes of 4 KiB of a host under way, and repeats them without allocating.
type load struct {
	t      *testing.T
	s      *initiator.Session
	cmds   []*initiator.Command
	ended  chan *initiator.Command
	block  int
	strict bool // a command has to be answered GOOD
}

func newLoad(t *testing.T, s *initiator.Session, lun uint16, op byte, depth int) *load {
	l := &load{t: t, s: s, ended: make(chan *initiator.Command, depth)}
	for range depth {
		c := &initiator.Command{LUN: lun, CDB: [16]byte{0: op, 8: 8}, Done: func(c *initiator.Command) { l.ended <- c }}
		if b := pattern(0); op == 0x2a {
			c.Out = b
		} else {
			c.In = b
		}
		l.cmds = append(l.cmds, c)
	}
	return l
}

func (l *load) run(n int) {
	l.t.Helper()
	submit := func(c *initiator.Command) {
		c.CDB[4], c.CDB[5] = byte(l.block>>5), byte(l.block<<3)
		l.block = (l.block + 1) % 2048
		if err := l.s.Submit(c); err != nil {
			l.t.Fatal(err)
		}
	}
	for _, c := range l.cmds {
		submit(c)
	}
	for i := range n {
		c := <-l.ended
		if c.Err != nil || l.strict && c.Status != initiator.StatusGood {
			l.t.Fatalf("status %#x, %v", c.Status, c.Err)
		}
		if i < n-len(l.cmds) {
			submit(c)
		}
	}
}
