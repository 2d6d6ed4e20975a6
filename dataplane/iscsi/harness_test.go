package iscsi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"testing"
	"time"
)

const (
	testTarget = "iqn.2024-01.org.example:pair"
	testHost   = "iqn.2024-01.org.example:host"
	bound      = 20 * time.Second // for whatever a test waits for; far more than it takes

	opRead  = 0x28
	opWrite = 0x2a
	opHold  = 0xc0 // starts and ends only when the test says so, or by an abort
	opAsync = 0xc1 // a read that another goroutine completes
	opFail  = 0xc2 // CHECK CONDITION with sense, after no data
)

// hostList admits the hosts it has.
type hostList map[string]Credentials

func (h hostList) Admit(name string) Host {
	c, ok := h[name]
	return Host{Credentials: c, Known: ok, LUNs: ok, Sure: true}
}

type bench struct {
	*Server
	dev  *memory
	addr string
}

// serve runs a server on loopback until the test ends, and then checks that it ends in order.
func serve(t testing.TB, change func(*Config), hosts hostList) *bench {
	t.Helper()
	if hosts == nil {
		hosts = hostList{testHost: {}}
	}
	return serveHosts(t, change, hosts)
}

func serveHosts(t testing.TB, change func(*Config), hosts Hosts) *bench {
	t.Helper()
	dev := newMemory(4 << 20)
	cfg := Config{TargetName: testTarget, Tag: 1, NopInterval: -1,
		MaxAge:  bound, // a busy machine is not a paused process
		Portals: []Portal{{"192.0.2.1:3260", 1}, {"[2001:db8::2]:3260", 2}}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, dev, hosts)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error("Shutdown:", err)
		}
		if err := <-ended; err != nil {
			t.Error("Serve:", err)
		}
		dev.wg.Wait()
		if len(s.Sessions()) != 0 || dev.opened != dev.closed {
			t.Errorf("left over: %d sessions, %d nexuses opened, %d closed", len(s.Sessions()), dev.opened, dev.closed)
		}
	})
	return &bench{s, dev, l.Addr().String()}
}

// all is a snapshot of the connections.
func (b *bench) all() map[*conn]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.conns)
}

// eventually polls a condition.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never came about:", what)
		}
	}
}
