package chaos

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/arbiter"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/internal/testkit/lab"
)

// end is a UDP socket at one end of the link.
func end(t *testing.T, n *network, i int) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	if err := n.spaces[i].In(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(linkIP[i]), Port: 4000})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// passes says whether a datagram arrives; one that is lost on a veth is lost when the sender's call
// returns.
func passes(t *testing.T, from, to *net.UDPConn) bool {
	t.Helper()
	if _, err := from.WriteTo([]byte("x"), to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, _, err := to.ReadFrom(make([]byte, 8))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

func TestNetworkFilters(t *testing.T) {
	needNamespaces(t)
	n, err := newNetwork()
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	a, b := end(t, n, nodeA), end(t, n, nodeB)
	both := func(ab, ba bool, when string) {
		t.Helper()
		if passes(t, a, b) != ab || passes(t, b, a) != ba {
			t.Errorf("%s: want a to b %v, b to a %v", when, ab, ba)
		}
	}
	both(true, true, "at first")
	if err := n.filter(nodeB, ifLink, ruleDrop); err != nil {
		t.Fatal(err)
	}
	both(false, true, "what b receives is dropped")
	if err := errors.Join(n.filter(nodeB, ifLink, ruleLoss(0)), n.filter(nodeA, ifLink, ruleDrop)); err != nil {
		t.Fatal(err)
	}
	both(true, false, "what a receives is dropped, and nothing of what b receives is lost")
	if err := n.filter(nodeA, ifLink, ruleLoss(50)); err != nil {
		t.Fatal(err)
	}
	got := 0
	for range 40 {
		if passes(t, b, a) {
			got++
		}
	}
	if got == 0 || got == 40 { // one in 5*10^11 each
		t.Errorf("at a loss of one half, %d of 40 arrive", got)
	}
	if err := errors.Join(n.throttle(1000), n.heal()); err != nil {
		t.Fatal(err)
	}
	both(true, true, "healed")
	if err := n.spaces[nodeA].Command("tc", "qdisc", "del", "dev", ifLink, "root"); err == nil {
		t.Error("the limit is still there")
	}
}

// An arbiter that is taken away answers with an error that says nothing of the record; it is the
// same when it is back.
func TestArbiterAway(t *testing.T) {
	l, _, err := lab.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	r := &rig{lab: l}
	if err := os.Mkdir(l.Path(arbiterFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.arbiter(0, true); err != nil {
		t.Fatal(err)
	}
	f, err := arbiter.NewFile(filepath.Join(r.arbiterPath(0), "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	v, err := f.CompareAndSwap(ctx, "", pair.Record{Epoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.arbiter(0, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Get(ctx); err == nil || errors.Is(err, arbiter.ErrNotFound) {
		t.Errorf("read while it is away: %v", err)
	}
	if _, err := f.CompareAndSwap(ctx, v, pair.Record{Epoch: 4}); err == nil || errors.Is(err, arbiter.ErrConflict) {
		t.Errorf("write while it is away: %v", err)
	}
	if err := r.arbiter(0, true); err != nil {
		t.Fatal(err)
	}
	if rec, got, err := f.Get(ctx); err != nil || got != v || rec.Epoch != 3 {
		t.Errorf("back: %v %v %v", rec, got, err)
	}
	if err := r.holdArbiter(true); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := f.CompareAndSwap(limited, v, pair.Record{Epoch: 4}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write while it is slow: %v", err)
	}
	if err := r.holdArbiter(false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.CompareAndSwap(ctx, v, pair.Record{Epoch: 4}); err != nil {
		t.Errorf("write afterwards: %v", err)
	}
}
