package iscsi

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

func (c *client) hold() pdu.BHS { return c.command(opHold, pdu.Final|1, 0, 0, 0) }

// The window closes when it is full, says so, and opens again; what is outside it is ignored.
func TestCommandWindow(t *testing.T) {
	b := serve(t, func(c *Config) { c.Limits.Window = 4 }, nil)
	c := b.connect(t)
	for range 4 {
		c.send(c.hold(), nil)
	}
	c.ping()
	if c.maxCmd != c.cmdSN-1 {
		t.Fatalf("MaxCmdSN %d with a full window, next CmdSN %d", c.maxCmd, c.cmdSN)
	}
	beyond := c.read(0, 1) // ignored: no answer, no execution
	c.send(beyond, nil)
	c.cmdSN--
	old := c.read(0, 1)
	old.PutU32(pdu.OffCmdSN, c.cmdSN-3) // a duplicate number
	c.cmdSN--
	c.send(old, nil)
	c.ping()
	if n := len(b.dev.commands()); n != 4 {
		t.Fatalf("%d commands executed, 4 are inside the window", n)
	}
	if b.Sessions()[0].InFlight != 4 {
		t.Error("InFlight")
	}
	b.dev.release()
	for range 4 {
		if r, _ := c.recv(); r.Op() != pdu.SCSIResp {
			t.Fatalf("opcode %#x", r.Op())
		}
	}
	if c.maxCmd != c.cmdSN+3 {
		t.Fatalf("MaxCmdSN %d, want %d", c.maxCmd, c.cmdSN+3)
	}
	// An immediate command does not take a number and passes a full window.
	for range 4 {
		c.send(c.hold(), nil)
	}
	imm := c.read(0, 1)
	imm.SetOp(pdu.SCSICmd, true)
	c.cmdSN--
	c.send(imm, nil)
	if r := c.result(imm.ITT()); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	same := c.read(0, 1)
	same.SetOp(pdu.SCSICmd, true)
	c.cmdSN--
	same.SetITT(imm.ITT() - 1) // the tag of a held command
	c.send(same, nil)
	if r, _ := c.recv(); r.Op() != pdu.Reject || r[pdu.OffResponse] != pdu.RejectTaskInProgress {
		t.Fatalf("% x", []byte(r))
	}
	c.ping()
}

// Reinstatement: the old session's commands are over before the new login succeeds.
func TestReinstatementEndsTheOldSessionFirst(t *testing.T) {
	b := serve(t, nil, nil)
	old := b.connect(t)
	old.send(old.hold(), nil)
	eventually(t, "a held command", func() bool { return b.dev.holding() == 1 })
	gate := make(chan struct{})
	b.dev.mu.Lock()
	b.dev.gate = gate
	b.dev.mu.Unlock()
	in := make(chan pdu.LoginStatus, 1)
	next := b.dial(t)
	go func() { in <- next.login() }()
	old.closed() // the login is under way
	select {
	case <-in:
		t.Fatal("the login succeeded while a command of the old session was alive")
	default:
	}
	if b.dev.holding() != 1 {
		t.Fatal("not held")
	}
	close(gate)
	if st := <-in; st != pdu.LoginSuccess || b.dev.holding() != 0 {
		t.Fatal(st)
	}
	next.ping()
	// Another ISID is another session.
	other := b.dial(t)
	other.isid = 9
	if st := other.login(); st != 0 {
		t.Fatal(st)
	}
	other.ping()
	next.ping()
	if n := len(b.Sessions()); n != 2 {
		t.Errorf("%d sessions", n)
	}
	// A login that names a live session by its TSIH wants a second connection.
	third := b.dial(t)
	third.tsih = 1
	for ; third.tsih < 10; third.tsih++ {
		b.mu.Lock()
		live := b.tsihs[third.tsih]
		b.mu.Unlock()
		if live {
			break
		}
	}
	if st := third.login(); st != pdu.LoginTooManyConnections {
		t.Fatal(st)
	}
}

// When the old session's commands do not end, the new login fails with a status that says "try
// again".
func TestReinstatementTimeout(t *testing.T) {
	b := serve(t, func(c *Config) { c.LoginTimeout = time.Second }, nil)
	b.connect(t)
	gate := make(chan struct{})
	b.dev.mu.Lock()
	b.dev.gate = gate
	b.dev.mu.Unlock()
	defer close(gate)
	c := b.dial(t)
	if st := c.login(); st != pdu.LoginUnavailable {
		t.Fatal(st)
	}
	c.closed()
}

func TestLogoutIsAnswered(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	logout := func(reason byte, cid uint16) byte {
		h := c.request(pdu.LogoutReq, pdu.Final|reason, false)
		h.PutU16(pdu.OffCID, cid)
		h.PutU16(pdu.OffCID+2, 0)
		c.send(h, nil)
		r, _ := c.recv()
		if r == nil || r.Op() != pdu.LogoutResp || r.ITT() != h.ITT() {
			t.Fatalf("% x", []byte(r))
		}
		return r[pdu.OffResponse]
	}
	if r := logout(pdu.LogoutRecovery, 3); r != pdu.LogoutNoRecovery {
		t.Error(r)
	}
	if r := logout(pdu.LogoutConnection, 4); r != pdu.LogoutNoCID {
		t.Error(r)
	}
	c.send(c.hold(), nil)
	if r := logout(pdu.LogoutConnection, 3); r != pdu.LogoutDone {
		t.Error(r)
	}
	if b.dev.holding() != 0 {
		t.Error("a command outlived the logout")
	}
	c.closed()
	eventually(t, "no session", func() bool { return len(b.Sessions()) == 0 })
	if b.Stats().Dropped.Load() != 0 {
		t.Error("an orderly logout counts as dropped")
	}
}

func TestPingEndsASilentConnection(t *testing.T) {
	b := serve(t, func(c *Config) {
		c.MaxAge = 3 * time.Second // the ticker's period is a quarter of it
		c.Clock = nil
		c.NopInterval, c.NopTimeout = 20*time.Millisecond, 2*time.Second
	}, nil)
	c := b.connect(t)
	for range 2 {
		r, _ := c.recv()
		if r == nil || r.Op() != pdu.NopIn || r.ITT() != pdu.Reserved || r.TTT() == pdu.Reserved || r.U32(pdu.OffStatSN) != c.statSN {
			t.Fatalf("% x", []byte(r))
		}
		h := c.request(pdu.NopOut, pdu.Final, true)
		h.SetITT(pdu.Reserved)
		h.SetTTT(r.TTT())
		c.send(h, nil)
	}
	c.closed() // no more answers
}

// Shutdown asks for a logout and waits for it.
func TestShutdownWaitsForLogout(t *testing.T) {
	b := serve(t, nil, nil)
	c, idle := b.connect(t), b.dial(t)
	defer idle.closed()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- b.Shutdown(ctx) }()
	r, _ := c.recv()
	if r.Op() != pdu.AsyncMsg || r[pdu.OffAsyncEvent] != pdu.AsyncLogout || r.U16(pdu.OffAsyncParam3) == 0 {
		t.Fatalf("% x", []byte(r))
	}
	h := c.read(0, 1)
	c.send(h, nil)
	if r := c.result(h.ITT()); r.status != 0 {
		t.Fatal("commands still work until the logout")
	}
	c.send(c.request(pdu.LogoutReq, pdu.Final, false), nil)
	if r, _ := c.recv(); r.Op() != pdu.LogoutResp {
		t.Fatalf("opcode %#x", r.Op())
	}
	c.closed()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if nc, err := net.DialTimeout("tcp", b.addr, bound); err == nil {
		_ = nc.Close()
		t.Fatal("still listening")
	}
}

// An initiator that does not log out is closed at the deadline; its commands end before Shutdown
// returns.
func TestShutdownDeadline(t *testing.T) {
	b := serve(t, nil, nil)
	c := b.connect(t)
	c.send(c.hold(), nil)
	eventually(t, "a held command", func() bool { return b.dev.holding() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := b.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if b.dev.holding() != 0 || b.dev.closed != 1 {
		t.Fatal("Shutdown returned before the nexus was closed")
	}
}

// An initiator that does not read is cut, and holds no one up meanwhile.
func TestSlowReader(t *testing.T) {
	for name, request := range map[string]func(*client) pdu.BHS{
		"large reads":    func(c *client) pdu.BHS { return c.read(0, 2048) },
		"small answers":  func(c *client) pdu.BHS { return c.command(opFail, pdu.Final, 0, 0, 0) },
		"other requests": func(c *client) pdu.BHS { return c.request(pdu.SNACK, pdu.Final, true) },
	} {
		t.Run(name, func(t *testing.T) { testSlowReader(t, request) })
	}
}

func testSlowReader(t *testing.T, request func(*client) pdu.BHS) {
	b := serve(t, func(c *Config) {
		c.WriteTimeout = 300 * time.Millisecond
		c.Limits.Transfer, c.Limits.SessionMemory = 1<<20, 1<<20
	}, nil)
	slow := b.connect(t, "MaxRecvDataSegmentLength", "262144")
	b.dev.forget.Store(true)
	sent := make(chan struct{})
	go func() { // until it is cut
		defer close(sent)
		for {
			if _, err := slow.nc.Write(slow.encode(request(slow), nil, nil)); err != nil {
				return
			}
		}
	}()
	eventually(t, "a full socket", func() bool { return b.Stats().WriteWouldBlk.Load() > 0 })
	other := b.dial(t)
	other.isid = 4
	other.login()
	other.ping()
	eventually(t, "the slow one to be cut", func() bool {
		for c := range b.all() {
			c.mu.Lock()
			charged := c.shares[ofReads].held + c.unread
			c.mu.Unlock()
			if charged > 1<<20+1<<20 {
				t.Fatalf("%d bytes of answers held, the limit is 1 MiB and one command", charged)
			}
		}
		return len(b.Sessions()) == 1
	})
	other.ping()
	<-sent
}

// Many commands, inline and from other goroutines mixed, over a socket that is often full.
func TestManyCommands(t *testing.T) {
	b := serve(t, func(c *Config) { c.Limits.Window = 64 }, nil)
	c := b.connect(t, "HeaderDigest", "CRC32C", "DataDigest", "CRC32C")
	const total = 2000
	window := make(chan struct{}, 64)
	sent := make(chan error, 1)
	go func() {
		for i := range total {
			op := byte(opRead)
			if i%3 == 0 {
				op = opAsync
			}
			window <- struct{}{}
			if _, err := c.nc.Write(c.encode(c.command(op, pdu.Final|pdu.ReadBit, i%16, 16, 8192), nil, nil)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for range total {
		r, data := c.recv()
		if r == nil || r.Op() != pdu.DataIn || len(data) != 8192 {
			t.Fatalf("% x, %d bytes", []byte(r), len(data))
		}
		<-window
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// A session may begin with any CmdSN (RFC 7143 §4.2.2.1), and libiscsi takes a random one. It is
// used as libiscsi uses it after it has logged in again: commands that wait are sent at once, what
// fails is sent again under a new tag, with pings between that take a number. Each is answered
// once, and MaxCmdSN stays within the window.
func TestAnyFirstCmdSN(t *testing.T) {
	const window, total = 8, 200
	for _, first := range []uint32{0, 1, 1<<31 - total/2, 1<<31 - 1, 1<<32 - total/2, 1<<32 - 1} {
		t.Run(strconv.FormatUint(uint64(first), 10), func(t *testing.T) {
			b := serve(t, func(c *Config) { c.Limits.Window = window }, nil)
			old := b.connect(t)
			old.send(old.hold(), nil)
			eventually(t, "a held command", func() bool { return b.dev.holding() == 1 })
			c := b.dial(t) // replaces it
			c.cmdSN = first
			if st := c.login(); st != pdu.LoginSuccess {
				t.Fatal(st)
			}
			if c.maxCmd != first+window-1 {
				t.Fatalf("MaxCmdSN %d after a login with CmdSN %d", c.maxCmd, first)
			}
			open := map[uint32]byte{} // opcode of the CDB by tag; 0: a ping
			sent, again := 0, 0
			send := func(op byte) {
				var h pdu.BHS
				if op == 0 {
					h = c.request(pdu.NopOut, pdu.Final, false)
				} else {
					h = c.command(op, pdu.Final|pdu.ReadBit|1, sent%16, 1, 512)
				}
				open[h.ITT()] = op
				c.send(h, nil)
				sent++
			}
			for sent < total || len(open) > 0 || again > 0 {
				for (sent < total || again > 0) && int32(c.cmdSN-c.maxCmd) <= 0 {
					op := []byte{opRead, opFail, opAsync, 0}[sent%4]
					if again > 0 {
						again, op = again-1, opRead
					}
					send(op)
				}
				h, _ := c.recv()
				if h == nil {
					t.Fatalf("closed with %d open", len(open))
				}
				op, ok := open[h.ITT()]
				if !ok {
					t.Fatalf("opcode %#x for tag %d, which is not open", h.Op(), h.ITT())
				}
				delete(open, h.ITT())
				exp, limit := h.U32(pdu.OffExpCmdSN), h.U32(pdu.OffMaxCmdSN)
				if int32(exp-c.cmdSN) > 0 || int32(limit-exp) < -1 || int32(limit-exp) >= window {
					t.Fatalf("ExpCmdSN %d MaxCmdSN %d, next CmdSN %d", exp, limit, c.cmdSN)
				}
				if op == opFail {
					again++
				}
			}
			for _, sn := range []uint32{first, c.cmdSN - 1, c.maxCmd + 1} { // outside the window: ignored
				h := c.read(0, 1)
				c.cmdSN--
				h.PutU32(pdu.OffCmdSN, sn)
				c.send(h, nil)
			}
			c.ping() // nothing else has come
			if c.maxCmd != c.cmdSN+window-1 {
				t.Errorf("MaxCmdSN %d with nothing under way, next CmdSN %d", c.maxCmd, c.cmdSN)
			}
			if n := c.cmdSN - first; int(n) != sent {
				t.Errorf("%d numbers for %d requests", n, sent)
			}
		})
	}
}
