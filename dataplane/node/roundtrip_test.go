package node

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/initiator"
)

// farAway is a proxy to an address that adds half a round trip in each direction. It ends with the
// test.
func farAway(t *testing.T, addr string, half time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	type part struct {
		b   []byte
		due time.Time
	}
	carry := func(from, to net.Conn) {
		parts := make(chan part, 4096)
		wg.Go(func() {
			for p := range parts {
				time.Sleep(time.Until(p.due))
				if _, err := to.Write(p.b); err != nil {
					_ = from.Close()
				}
			}
			_ = to.Close()
		})
		wg.Go(func() {
			defer close(parts)
			for b := make([]byte, 64<<10); ; {
				n, err := from.Read(b)
				if n > 0 {
					parts <- part{bytes.Clone(b[:n]), time.Now().Add(half)}
				}
				if err != nil {
					return
				}
			}
		})
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", addr)
			if err != nil {
				_ = c.Close()
				continue
			}
			mu.Lock()
			open = append(open, c, up)
			mu.Unlock()
			carry(c, up)
			carry(up, c)
		}
	})
	return l.Addr().String()
}

// Over a round trip that is longer than a sign of life lasts, and longer than a command is held,
// writes are accepted: at once, but for the first, whose path is switched to this node. So it is at
// the node that forwards them to the owner.
func TestWritesOverALongRoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute: every answer is seconds away")
	}
	for i, name := range []string{"to the owner", "to the other node"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writesOverALongRoundTrip(t, i)
		})
	}
}

func writesOverALongRoundTrip(t *testing.T, portal int) {
	const trip = 3600 * time.Millisecond
	p := newTestPair(t)
	for i := range p.cfg {
		p.cfg[i].Balancing = "off" // else the LUN follows its host, and nothing is forwarded any more
	}
	p.startBoth()
	id, m := p.lun(8<<20, "a")
	s, err := initiator.Login(p.ctx, initiator.SessionConfig{InitiatorName: m.HostIqn, Target: m.TargetIqn,
		Portal: farAway(t, m.Portals[portal].Address, trip/2),
		Timers: initiator.Timers{Dial: 10 * time.Second, Login: 30 * time.Second, Command: 30 * time.Second, PingInterval: 5 * time.Second, PingTimeout: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	data := bytes.Repeat([]byte("gemel..."), 512)
	write := func(block byte) byte {
		t.Helper()
		cdb := [10]byte{0: 0x2a, 5: block, 8: byte(len(data) / 512)}
		r, err := s.Execute(p.ctx, uint16(m.Lun), cdb[:], data, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	tries := 1
	for ; write(0) != initiator.StatusGood; tries++ {
		if tries == 5 {
			t.Fatal("a write is never accepted")
		}
	}
	t.Log("tries until the first write was accepted:", tries)
	for i := range 3 {
		if st := write(byte(8 * (i + 1))); st != initiator.StatusGood {
			t.Errorf("write %d: status %#x", i, st)
		}
	}
	for i := range p.nodes {
		f := p.bytes(i, id)
		if !bytes.Equal(f[:4*len(data)], bytes.Repeat(data, 4)) {
			t.Error("node", i, "has something else")
		}
	}
}
