package iscsi

import (
	"runtime/debug"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

const mib = 1 << 20

// r2t reads the R2T for a command.
func (c *client) r2t(h pdu.BHS) (ttt uint32) {
	c.t.Helper()
	r, _ := c.recv()
	if r == nil || r.Op() != pdu.R2T || r.ITT() != h.ITT() {
		c.t.Fatalf("% x, expected an R2T for tag %d", []byte(r), h.ITT())
	}
	return r.TTT()
}

// asks sends a write of n bytes without data.
func (c *client) asks(n int) pdu.BHS {
	c.t.Helper()
	h := c.command(opWrite, pdu.Final|pdu.WriteBit, 0, n/512, n)
	c.send(h, nil)
	return h
}

// gives sends all data of a write for which there is one R2T.
func (c *client) gives(h pdu.BHS, ttt uint32, n int) {
	c.t.Helper()
	sent := 0
	c.dataOut(h.ITT(), ttt, pattern(n, 5), &sent, n)
}

func small(c *Config) {
	c.Limits.Transfer, c.Limits.SessionMemory, c.Limits.MaxBurst, c.Limits.Memory = mib, mib, mib, 4*mib
}

// The reader continues while commands wait for memory: what it reads next may be the data that
// frees it.
func TestReaderNeverWaits(t *testing.T) {
	b := serve(t, small, nil)
	c := deaf(b.connect(t, "InitialR2T", "Yes", "MaxBurstLength", "1048576", "MaxRecvDataSegmentLength", "262144"))
	w := c.asks(mib)
	ttt := c.r2t(w)
	held := c.command(opHold, pdu.Final|pdu.ReadBit, 0, 0, mib) // has all that the session may have for reads
	c.send(held, nil)
	eventually(t, "the first read to be at the device", func() bool { return b.dev.holding() == 1 })
	first, second := c.read(0, 2048), c.read(0, 2048)
	c.send(first, nil)
	c.send(second, nil)
	waits := c.asks(mib)
	c.ping()
	c.gives(w, ttt, mib)
	if r := c.result(w.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	c.gives(waits, c.r2t(waits), mib)
	if r := c.result(waits.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	// The read that waits can be aborted, and is never executed.
	h := c.tmf(pdu.TMFAbortTask, first.ITT(), 0)
	c.send(h, nil)
	if r := c.tmfAnswer(h); r != pdu.TMFComplete {
		t.Fatal(r)
	}
	b.dev.release()
	c.result(held.ITT())
	if r := c.result(second.ITT()); r.status != 0 || len(r.data) != mib {
		t.Fatalf("%d bytes, status %d", len(r.data), r.status)
	}
	for _, task := range b.dev.commands() {
		if task.Tag == first.ITT() {
			t.Error("an aborted command was executed")
		}
	}
	c.ping()
	eventually(t, "nothing is held", func() bool { used, _ := b.Memory(); return used == 0 })
}

// All sessions together keep to the budget; each gets on with a small command all the same, and
// with a large one after those before it.
func TestMemoryOfAllSessions(t *testing.T) {
	b := serve(t, small, nil)
	type half struct {
		c   *client
		h   pdu.BHS
		ttt uint32
	}
	var open []half
	for i := range 12 {
		c := deaf(b.dial(t))
		c.isid = byte(i + 1)
		c.login("InitialR2T", "Yes", "MaxBurstLength", "1048576")
		h := c.asks(mib)
		if i < 3 {
			open = append(open, half{c, h, c.r2t(h)})
			continue
		}
		c.ping() // no R2T
		if used, limit := b.Memory(); used > limit || limit != 4*mib {
			t.Fatal(used, limit)
		}
		for range 3 {
			if r := c.write(0, pattern(4096, 1), 4096); r.status != 0 {
				t.Fatalf("%+v", r)
			}
			h := c.read(0, 128)
			c.send(h, nil)
			if r := c.result(h.ITT()); r.status != 0 {
				t.Fatalf("%+v", r)
			}
		}
		open = append(open, half{c, h, 0})
	}
	for i, x := range open {
		if x.ttt == 0 {
			x.ttt = x.c.r2t(x.h) // those that have waited longest come first
		}
		x.c.gives(x.h, x.ttt, mib)
		if r := x.c.result(x.h.ITT()); r.status != 0 {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	if b.Stats().MemoryWaits.Load() < 9 {
		t.Error("what has waited is not counted")
	}
	eventually(t, "nothing is held", func() bool { used, _ := b.Memory(); return used == 0 })
}

// Data that comes unasked finds no room: the command is answered TASK SET FULL after all of it has
// been taken, and the host repeats it.
func TestTaskSetFull(t *testing.T) {
	b := serve(t, func(c *Config) { small(c); c.Limits.FirstBurst = 128 << 10 }, nil)
	c := deaf(b.connect(t, "InitialR2T", "No", "FirstBurstLength", "131072", "MaxBurstLength", "1048576"))
	first := c.asks(mib)
	ttt := c.r2t(first)
	data := pattern(mib, 9)
	const part = 128 << 10
	var waiting []pdu.BHS
	for range 2 { // a session has 256 KiB for such data while its commands wait
		h := c.command(opWrite, pdu.Final|pdu.WriteBit, 2048, 2048, mib)
		c.send(h, data[:part])
		waiting = append(waiting, h)
	}
	full := c.command(opWrite, pdu.WriteBit, 4096, 2048, mib)
	c.send(full, data[:part/2])
	c.ping()
	c.send(c.dataPDU(full.ITT(), pdu.Reserved, 0, part/2, true), data[part/2:part])
	if r := c.result(full.ITT()); r.status != scsi.StatusTaskSetFull || r.flags&pdu.UnderflowU == 0 || r.residual != mib {
		t.Fatalf("%+v", r)
	}
	if b.Stats().TaskSetFull.Load() != 1 {
		t.Error("not counted")
	}
	c.gives(first, ttt, mib)
	if r := c.result(first.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	for _, h := range waiting {
		ttt, sent := c.r2t(h), part
		c.dataOut(h.ITT(), ttt, data, &sent, mib)
		if r := c.result(h.ITT()); r.status != 0 {
			t.Fatalf("%+v", r)
		}
	}
	for _, task := range b.dev.commands() {
		if task.Tag == full.ITT() {
			t.Error("executed")
		}
	}
}

// Sessions that keep memory and do not use it are closed when others need it, and not before.
func TestStalledSessions(t *testing.T) {
	b := serve(t, func(c *Config) { small(c); c.WriteTimeout = 300 * time.Millisecond }, nil)
	var idle []*client
	for i := range 3 {
		c := deaf(b.dial(t))
		c.isid = byte(i + 1)
		c.login("InitialR2T", "Yes", "MaxBurstLength", "1048576")
		c.r2t(c.asks(mib))
		idle = append(idle, c)
	}
	since := b.lastTick.Load()
	eventually(t, "some ticks", func() bool { return b.lastTick.Load()-since > int64(2500*time.Millisecond) })
	idle[0].ping()
	c := deaf(b.dial(t))
	c.isid = 9
	c.login("InitialR2T", "Yes", "MaxBurstLength", "1048576")
	h := c.asks(mib)
	c.gives(h, c.r2t(h), mib)
	if r := c.result(h.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	if b.Stats().Stalled.Load() == 0 {
		t.Error("not counted")
	}
	idle[0].closed()
}

// Without a limit of its own the budget follows that of the process.
func TestDefaultBudget(t *testing.T) {
	setLimit(t, 2<<30)
	b := serve(t, nil, nil)
	if _, limit := b.Memory(); limit != 512*mib {
		t.Error(limit)
	}
	setLimit(t, 100*mib)
	eventually(t, "a smaller budget", func() bool { _, limit := b.Memory(); return limit == leastMemory })
}

// setLimit sets Go's memory limit until the test ends.
func setLimit(t *testing.T, n int64) {
	old := debug.SetMemoryLimit(n)
	t.Cleanup(func() { debug.SetMemoryLimit(old) })
}
