package node

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/store"
)

// A disk that hangs does not keep the process from ending: hosts and the other node are rid of it
// within a bound.
func TestNodeLeavesAlthoughItsDiskHangs(t *testing.T) {
	p := newTestPair(t)
	var hung atomic.Bool
	free := make(chan struct{})
	p.cfg[0].Faults = func(op, path string, _, _ int64) error {
		if hung.Load() && strings.HasSuffix(path, ".img") {
			<-free
			return syscall.EIO
		}
		return nil
	}
	log := p.keepLog(0)
	p.startBoth()
	t.Cleanup(func() { close(free) }) // first of all: the test's own cleanup waits for what hangs
	_, m := p.lun(8<<20, "a")
	d := p.device(m)
	want := bytes.Repeat([]byte{0x5a}, 64<<10)
	if _, err := d.WriteAt(p.ctx, want, 1<<20); err != nil {
		t.Fatal(err)
	}
	if established(t, p.cfg[0].ISCSIListen[0]) == 0 {
		t.Fatal("the host has no connection to lose")
	}
	hung.Store(true)
	written := make(chan error, 1)
	go func() {
		_, err := d.WriteAt(p.ctx, want, 2<<20)
		written <- err
	}()
	p.until("b is alone", func() bool { return p.nodes[1].View().Phase == pair.Alone })
	begun := time.Now()
	p.leaves(0, "does not finish its I/O")
	if took := time.Since(begun); took > 2*endTime+3*time.Second { // it may not hear of its exclusion either
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(log.String(), "the store does not finish its I/O") {
		t.Error("the log does not say that something hangs")
	}
	if err := <-written; err != nil {
		t.Errorf("the host's write: %v", err)
	}
	if k := established(t, p.cfg[0].ISCSIListen[0]); k != 0 {
		t.Errorf("%d connections of hosts are left", k)
	}
	if c, err := net.DialTimeout("tcp", p.cfg[0].ISCSIListen[0], time.Second); err == nil {
		_ = c.Close()
		t.Error("it still takes connections")
	}
}

// established counts the connections to a port that the kernel holds open at the listener's end.
func established(t *testing.T, addr string) (n int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	k, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", k)) && f[3] == "01" {
			n++
		}
	}
	return n
}

// Nothing in reach excludes it: the other node is away. It ends all the same.
func TestNodeLeavesWithoutAnybody(t *testing.T) {
	p := newTestPair(t)
	p.startBoth()
	if err := p.stop(1); err != nil {
		t.Fatal(err)
	}
	p.until("a is alone", func() bool { return p.nodes[0].View().Phase == pair.Alone })
	n := p.nodes[0]
	n.do(func(m *pair.Machine, now int64) { m.StoreFailed(now, "a test says so") })
	if err := n.live(); err == nil {
		t.Error("a node that has left is live")
	}
	p.leaves(0, "a test says so")
}

// Before a lost record a node stays, live and not ready, and can be forced; when the record is
// there again it ends, to act on it.
func TestNodeBeforeALostRecordStays(t *testing.T) {
	p := newTestPair(t)
	p.startBoth()
	if err := p.stop(1); err != nil {
		t.Fatal(err)
	}
	p.until("a is alone", func() bool { return p.nodes[0].View().Phase == pair.Alone })
	path := strings.TrimPrefix(p.cfg[0].Arbiter, "file:")
	record := p.read(path)
	if err := p.stop(0); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p.start(0)
	p.until("a is fenced", func() bool { return p.nodes[0].View().Phase == pair.Fenced })
	if code, _ := p.get(0, "/healthz"); code != 200 {
		t.Error("the kubelet would end the process that an administrator needs")
	}
	if code, body := p.get(0, "/readyz"); code != 503 || !strings.Contains(body, "force") {
		t.Errorf("ready: %d %s", code, body)
	}
	if v := p.nodes[0].View(); v.ForceEpoch == 0 || v.Over != "" {
		t.Errorf("%+v", v)
	}
	if err := os.WriteFile(path, record, 0o600); err != nil {
		t.Fatal(err)
	}
	p.leaves(0, "the record again")
	p.start(0)
	p.until("a serves", func() bool { return p.nodes[0].View().Serving })
}

// A disk that is broken for good: each life of the node fails while it is copied to. Hosts notice
// nothing, the lone member waits longer from life to life, and when the disk works again,
// everything is copied.
func TestLivesOnABrokenDisk(t *testing.T) {
	p := newTestPair(t)
	var broken atomic.Bool
	p.cfg[1].Faults = func(op, path string, _, _ int64) error {
		if broken.Load() && op == store.FaultWrite && strings.HasSuffix(path, ".img") {
			return syscall.EIO
		}
		return nil
	}
	p.startBoth()
	id, m := p.lun(8<<20, "a")
	d := p.device(m)
	broken.Store(true)
	p.write(d, 0, 1)
	p.leaves(1, "the store failed")
	for life := range 3 {
		p.start(1)
		p.leaves(1, "the store failed")
		begun := time.Now()
		p.write(d, 1<<20, byte(2+life))
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("life %d: the host waits for %v", life, took)
		}
		if v := p.nodes[0].View(); v.Phase != pair.Alone || !v.Serving {
			t.Errorf("life %d: the lone member is %v, serving %v", life, v.Phase, v.Serving)
		}
	}
	p.start(1)
	p.until("a says what is wrong", func() bool { return strings.Contains(p.nodes[0].View().Reason, "node b has failed 4 times in a row") })
	broken.Store(false)
	p.inSync()
	if got := p.bytes(1, id); !bytes.Equal(got, p.bytes(0, id)) {
		t.Error("the copies differ")
	}
}

// What an orderly stop does is no end of that kind.
func TestOrderlyStopIsNoLeave(t *testing.T) {
	p := newTestPair(t).startBoth()
	n := p.nodes[0]
	if err := p.stop(0); err != nil || errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	if v := n.View(); v.Over == "" {
		t.Error("this shows nothing: the life of a node that has stopped is over")
	}
}
