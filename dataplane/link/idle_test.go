package link

import (
	"net"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
)

// Sockets that say nothing do not keep the partner out: the oldest of them make way for its two
// connections, at once.
func TestIdleSockets(t *testing.T) {
	l := listen(t)
	a := run(t, Config{Self: pair.A, Listen: l})
	idle := make([]net.Conn, maxUnknown)
	for i := range idle {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle[i] = c
	}
	for end := time.Now().Add(20 * time.Second); a.unknown.Len() < maxUnknown; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not all are accepted")
		}
	}
	b := run(t, Config{Self: pair.B, Dial: l.Addr().String()})
	b.wait(t, "up 1")
	a.wait(t, "up 1")
	if n := a.Evicted(); n == 0 {
		t.Error("the partner waited until idle sockets had timed out")
	}
	_ = idle[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := idle[0].Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the oldest was not closed")
	}
}
