package iscsi

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// The drain is done only after all that was readable has been given to the Device.
func TestDrainHost(t *testing.T) {
	b := serve(t, nil, nil)
	drained := func(host string) chan int {
		ch := make(chan int, 1)
		b.DrainHost(host, func() { ch <- len(b.dev.commands()) })
		return ch
	}
	if n := <-drained(otherHost); n != 0 {
		t.Fatal("a host without sessions")
	}
	c := b.connect(t)
	c.ping()
	<-drained(testHost) // idle
	block := make(chan struct{})
	b.dev.mu.Lock()
	b.dev.block = block
	b.dev.mu.Unlock()
	var all []byte
	const n = 50
	all = append(all, c.encode(c.command(opFail, pdu.Final, 0, 0, 0), nil, nil)...)
	for range n {
		all = append(all, c.encode(c.read(0, 1), nil, nil)...)
	}
	half := c.encode(c.read(0, 1), nil, nil)
	all = append(all, half[:20]...)
	if _, err := c.nc.Write(all); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reader in the Device", func() bool { return len(b.dev.commands()) == 1 })
	ch := drained(testHost)
	select {
	case <-ch:
		t.Fatal("drained while commands were waiting")
	default:
	}
	close(block)
	if got := <-ch; got != n+1 {
		t.Fatalf("drained after %d commands of %d", got, n+1)
	}
	// The half command is no reason to wait, and a dropped connection ends a drain.
	<-drained(testHost)
	b.DropHost(testHost, "test")
	<-drained(testHost)
	c.closed()
}

// What follows a drain may close the very connection that was drained.
func TestDropAfterDrain(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	block := make(chan struct{})
	b.dev.mu.Lock()
	b.dev.block = block
	b.dev.mu.Unlock()
	c.send(c.command(opFail, pdu.Final, 0, 0, 0), nil)
	eventually(t, "the reader in the Device", func() bool { return len(b.dev.commands()) == 1 })
	dropped := make(chan struct{})
	b.DrainHost(testHost, func() {
		b.DropHost(testHost, "drained")
		close(dropped)
	})
	close(block)
	select {
	case <-dropped:
	case <-time.After(bound):
		t.Fatal("deadlock")
	}
	c.closed()
}

// DropConnections: what is buffered is not executed.
func TestDropConnections(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	block := make(chan struct{})
	b.dev.mu.Lock()
	b.dev.block = block
	b.dev.mu.Unlock()
	all := c.encode(c.command(opFail, pdu.Final, 0, 0, 0), nil, nil)
	for range 20 {
		all = append(all, c.encode(c.read(0, 1), nil, nil)...)
	}
	if _, err := c.nc.Write(all); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the reader in the Device", func() bool { return len(b.dev.commands()) == 1 })
	b.DropConnections("test")
	close(block)
	eventually(t, "no session", func() bool { return len(b.Sessions()) == 0 })
	if n := len(b.dev.commands()); n != 1 {
		t.Fatalf("%d commands executed after the drop", n-1)
	}
	if b.Stats().Dropped.Load() != 1 {
		t.Error("Dropped")
	}
}

// A process that was stopped drops what piled up meanwhile: the clock jumps while a reader is in
// the Device.
func TestPausedProcessDropsBufferedCommands(t *testing.T) {
	var skew atomic.Int64
	b := serve(t, func(c *Config) {
		c.MaxAge = 10 * time.Second
		c.Clock = func() int64 { return boottime() + skew.Load() }
	}, nil)
	c := b.connect(t)
	block := make(chan struct{})
	b.dev.mu.Lock()
	b.dev.block = block
	b.dev.mu.Unlock()
	c.send(c.command(opFail, pdu.Final, 0, 0, 0), nil)
	eventually(t, "the reader in the Device", func() bool { return len(b.dev.commands()) == 1 })
	c.send(c.read(0, 1), nil)
	skew.Store(int64(11 * time.Second))
	close(block)
	c.closed()
	if n := len(b.dev.commands()); n != 1 {
		t.Fatal("a command from before the pause was executed")
	}
	// The server continues, once the ticker has dropped what there was: it stamps the clock again a
	// period later.
	eventually(t, "the ticker", func() bool { return b.pauses.Load() == 1 })
	stamp := b.lastTick.Load()
	eventually(t, "the next tick", func() bool { return b.lastTick.Load() != stamp })
	b.connect(t).ping()
}

// A pause while the reader waits in read is found by the ticker's stamp.
func TestPauseInRead(t *testing.T) {
	var skew atomic.Int64
	b := serve(t, func(c *Config) {
		c.MaxAge = 10 * time.Second
		c.Clock = func() int64 { return boottime() + skew.Load() }
	}, nil)
	c := b.connect(t)
	c.ping()
	skew.Store(int64(11 * time.Second))
	if _, err := c.nc.Write(c.encode(c.read(0, 1), nil, nil)); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Log(err) // closed already: fine
	}
	c.closed()
	if n := len(b.dev.commands()); n != 0 {
		t.Fatal("a command from before the pause was executed")
	}
}

func TestArrivalTimeOfACommand(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	before := boottime()
	h := c.read(0, 1)
	c.send(h, nil)
	c.result(h.ITT())
	if at := b.dev.commands()[0].Arrived; at < before || at > boottime() {
		t.Errorf("arrived %d ns after it was sent", at-before)
	}
}
