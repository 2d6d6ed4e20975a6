package initiator

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// TestBadTarget: whatever a target does wrong ends that session with a telling error, every command
// is answered, and nothing is written outside a command's buffer.
func TestBadTarget(t *testing.T) {
	dataIn := func(x *scripted, itt uint32, sn, off uint32, data []byte) {
		h := x.header(pdu.DataIn, itt)
		h.PutU32(pdu.OffDataSN, sn)
		h.PutU32(pdu.OffBufferOff, off)
		x.send(h, data)
	}
	r2t := func(x *scripted, itt, ttt, sn, off, n uint32) {
		h := x.header(pdu.R2T, itt)
		h.SetTTT(ttt)
		h.PutU32(pdu.OffDataSN, sn)
		h.PutU32(pdu.OffBufferOff, off)
		h.PutU32(pdu.OffDesired, n)
		x.send(h, nil)
	}
	for _, v := range []struct {
		name   string
		write  bool
		digest bool
		do     func(x *scripted, cmd pdu.BHS)
		want   error
	}{
		{"wrong StatSN", false, false, func(x *scripted, c pdu.BHS) {
			x.statSN += 7
			x.good(c.ITT())
		}, ErrProtocol},
		{"unknown task", false, false, func(x *scripted, c pdu.BHS) { x.good(c.ITT() ^ 1<<20) }, ErrProtocol},
		{"answer to a tag beyond the table", false, false, func(x *scripted, c pdu.BHS) { x.good(0x0001ffff) }, ErrProtocol},
		{"unknown opcode", false, false, func(x *scripted, c pdu.BHS) { x.send(x.header(0x3d, c.ITT()), nil) }, ErrProtocol},
		{"initiator opcode", false, false, func(x *scripted, c pdu.BHS) { x.send(x.header(pdu.SCSICmd, c.ITT()), nil) }, ErrProtocol},
		{"data beyond the buffer", false, false, func(x *scripted, c pdu.BHS) { dataIn(x, c.ITT(), 0, 0, make([]byte, 4097)) }, ErrProtocol},
		{"data at a far offset", false, false, func(x *scripted, c pdu.BHS) { dataIn(x, c.ITT(), 0, 0xfffffff0, make([]byte, 16)) }, ErrProtocol},
		{"data with a gap", false, false, func(x *scripted, c pdu.BHS) { dataIn(x, c.ITT(), 0, 512, make([]byte, 512)) }, ErrProtocol},
		{"DataSN out of order", false, false, func(x *scripted, c pdu.BHS) { dataIn(x, c.ITT(), 1, 0, make([]byte, 512)) }, ErrProtocol},
		{"data for a write", true, false, func(x *scripted, c pdu.BHS) { dataIn(x, c.ITT(), 0, 0, make([]byte, 512)) }, ErrProtocol},
		{"segment above what was declared", false, false, func(x *scripted, c pdu.BHS) {
			h := x.header(pdu.DataIn, c.ITT())
			h.SetDataLen(1<<24 - 1)
			_, _ = x.conn.Write(h)
		}, ErrProtocol},
		{"huge response", false, false, func(x *scripted, c pdu.BHS) {
			h := x.header(pdu.SCSIResp, c.ITT())
			x.status(h)
			h.SetDataLen(maxResponse + 1)
			_, _ = x.conn.Write(h)
		}, ErrProtocol},
		{"header digest", false, true, func(x *scripted, c pdu.BHS) {
			h := x.header(pdu.SCSIResp, c.ITT())
			_, _ = x.conn.Write(append(append([]byte{}, h...), 1, 2, 3, 4))
		}, ErrDigest},
		{"data digest", false, true, func(x *scripted, c pdu.BHS) {
			x.p.DataDigest = false
			dataIn(x, c.ITT(), 0, 0, make([]byte, 512))
			_, _ = x.conn.Write([]byte{1, 2, 3, 4})
		}, ErrDigest},
		{"R2T beyond the data", true, false, func(x *scripted, c pdu.BHS) { r2t(x, c.ITT(), 1, 0, 262144, 262145) }, ErrProtocol},
		{"R2T out of order", true, false, func(x *scripted, c pdu.BHS) { r2t(x, c.ITT(), 1, 3, 262144, 512) }, ErrProtocol},
		{"R2T for nothing", true, false, func(x *scripted, c pdu.BHS) { r2t(x, c.ITT(), 1, 0, 262144, 0) }, ErrProtocol},
		{"R2T for what was sent", true, false, func(x *scripted, c pdu.BHS) { r2t(x, c.ITT(), 1, 0, 0, 512) }, ErrProtocol},
		{"R2T without a tag", true, false, func(x *scripted, c pdu.BHS) { r2t(x, c.ITT(), pdu.Reserved, 0, 262144, 512) }, ErrProtocol},
		{"R2T for a read", false, false, func(x *scripted, c pdu.BHS) { r2t(x, c.ITT(), 1, 0, 0, 512) }, ErrProtocol},
		{"reject", false, false, func(x *scripted, c pdu.BHS) {
			h := x.header(pdu.Reject, pdu.Reserved)
			h[pdu.OffResponse] = pdu.RejectProtocolError
			x.status(h)
			x.send(h, c)
		}, ErrProtocol},
		{"hangs up inside a PDU", false, false, func(x *scripted, c pdu.BHS) {
			h := x.header(pdu.DataIn, c.ITT())
			h.SetDataLen(4096)
			_, _ = x.conn.Write(append(append([]byte{}, h...), make([]byte, 100)...))
			x.conn.Close()
		}, ErrSessionLost},
		{"falls silent", false, false, func(x *scripted, c pdu.BHS) {
			for { // reads, never answers
				if _, _, ok := x.receive(); !ok {
					return
				}
			}
		}, ErrPeerSilent},
		{"drops the session", false, false, func(x *scripted, c pdu.BHS) {
			h := x.header(pdu.AsyncMsg, pdu.Reserved)
			h[pdu.OffAsyncEvent] = pdu.AsyncDropSession
			x.status(h)
			x.send(h, nil)
			x.drain()
		}, ErrSessionLost},
	} {
		t.Run(v.name, func(t *testing.T) {
			x := serveScript(t, func(x *scripted) {
				h, _ := x.command()
				if h == nil {
					return
				}
				v.do(x, h)
				x.drain()
			})
			cfg := x.config()
			cfg.HeaderDigest, cfg.DataDigest = v.digest, v.digest
			s, err := Login(testContext(t), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			guarded := bytes.Repeat([]byte{0xee}, 3*4096)
			c := &Command{In: guarded[4096:8192:8192]}
			if v.write {
				c.In, c.Out = nil, make([]byte, 512<<10)
			}
			got := make(chan error, 1)
			c.Done = func(c *Command) { got <- c.Err }
			if err := s.Submit(c); err != nil {
				t.Fatal(err)
			}
			err = <-got
			if !errors.Is(err, ErrSessionLost) || !errors.Is(err, v.want) {
				t.Fatalf("command ended with %v, want %v", err, v.want)
			}
			<-s.Done()
			for i := range 4096 {
				if guarded[i] != 0xee || guarded[8192+i] != 0xee {
					t.Fatal("bytes outside the buffer were written")
				}
			}
		})
	}
}

func TestPingsAnsweredBothWays(t *testing.T) {
	answered := make(chan bool, 1)
	x := serveScript(t, func(x *scripted) {
		h := x.header(pdu.NopIn, pdu.Reserved)
		h.SetTTT(77)
		h.SetLUN(5 << 48)
		x.send(h, nil)
		for pings := 0; pings < 3; {
			r, _, ok := x.receive()
			if !ok {
				return
			}
			switch {
			case r.Op() == pdu.NopOut && r.ITT() == pdu.Reserved:
				answered <- r.TTT() == 77 && r.LUN() == 5<<48 && r.Immediate()
			case r.Op() == pdu.NopOut:
				x.pong(r)
				pings++
			}
		}
		close(answered)
		x.drain()
	})
	s, err := Login(testContext(t), x.config())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if ok := <-answered; !ok {
		t.Fatal("NOP-In was not answered as it must")
	}
	<-answered // three of our own pings were answered: the session lives
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestCancelAborts: a cancelled Execute sends ABORT TASK for that very task and waits for the
// target's word.
func TestCancelAborts(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	x := serveScript(t, func(x *scripted) {
		c, _ := x.command()
		cancel()
		for {
			h, _, ok := x.receive()
			if !ok {
				return
			}
			switch h.Op() {
			case pdu.NopOut:
				x.pong(h)
			case pdu.TMFReq:
				if h.Flags()&0x7f != pdu.TMFAbortTask || h.U32(pdu.OffRefTag) != c.ITT() ||
					h.U32(pdu.OffRefCmdSN) != c.U32(pdu.OffCmdSN) || !h.Immediate() {
					x.t.Errorf("abort request % x", []byte(h))
				}
				r := x.header(pdu.TMFResp, h.ITT())
				x.status(r)
				x.send(r, nil)
			}
		}
	})
	s, err := Login(testContext(t), x.config())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Execute(ctx, 1, []byte{0, 0, 0, 0, 0, 0}, nil, nil)
	if !errors.Is(err, ErrAborted) || !errors.Is(err, context.Canceled) {
		t.Fatalf("execute: %v", err)
	}
	if s.Err() != nil {
		t.Fatalf("session: %v", s.Err())
	}
}

// TestCommandWindowIsKept: no more commands are sent than MaxCmdSN admits, and the rest follow when
// it moves.
func TestCommandWindowIsKept(t *testing.T) {
	counts := make(chan int, 2)
	x := serveScript(t, func(x *scripted) {
		first, _ := x.command() // the window after login is 65 commands wide
		itts := []uint32{first.ITT()}
		for len(itts) < 65 {
			h, _ := x.command()
			if h == nil {
				return
			}
			itts = append(itts, h.ITT())
		}
		_ = x.conn.SetReadDeadline(time.Now().Add(30 * time.Millisecond)) // more would come at once
		for {
			h, _, ok := x.receive()
			if !ok {
				break
			}
			if h.Op() == pdu.SCSICmd {
				itts = append(itts, h.ITT())
			}
		}
		counts <- len(itts)
		_ = x.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		for _, itt := range itts {
			x.good(itt)
		}
		n := 0
		for ; n < 35; n++ {
			h, _ := x.command()
			if h == nil {
				return
			}
			x.good(h.ITT())
		}
		counts <- n
		x.drain()
	})
	cfg := x.config()
	cfg.Timers = Timers{}
	s, err := Login(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := make(chan error, 100)
	for range 100 {
		if err := s.Submit(&Command{Done: func(c *Command) { done <- c.Err }}); err != nil {
			t.Fatal(err)
		}
	}
	if n := <-counts; n != 65 {
		t.Fatalf("%d commands in a window of 65", n)
	}
	if n := <-counts; n != 35 {
		t.Fatalf("%d commands followed", n)
	}
	for range 100 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	ok := SessionConfig{InitiatorName: "iqn.2026-01.test:h", Target: "iqn.2026-01.test:t", Portal: "127.0.0.1:1"}
	for name, set := range map[string]func(*SessionConfig){
		"initiator name":   func(c *SessionConfig) { c.InitiatorName = "host" },
		"target name":      func(c *SessionConfig) { c.Target = "iqn.a b" },
		"portal":           func(c *SessionConfig) { c.Portal = "localhost" },
		"queue depth":      func(c *SessionConfig) { c.QueueDepth = 5000 },
		"max receive":      func(c *SessionConfig) { c.MaxRecvData = 100 },
		"ping interval":    func(c *SessionConfig) { c.Timers.PingInterval = time.Millisecond },
		"mutual chap":      func(c *SessionConfig) { c.MutualAuth = &CHAP{"u", "s3cr3t-s3cr3t"} },
		"must differ":      func(c *SessionConfig) { c.Auth = &CHAP{"u", "s3cr3t-s3cr3t"}; c.MutualAuth = c.Auth },
		"chap algorithm 4": func(c *SessionConfig) { c.CHAPAlgorithms = []int{4} },
	} {
		c := ok
		set(&c)
		_, err := Login(testContext(t), c)
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSteadyStateAllocations: a command that is reused costs no allocation.
func TestSteadyStateAllocations(t *testing.T) {
	x := serveScript(t, func(x *scripted) {
		b := make([]byte, pdu.HeaderLen)
		r := x.header(pdu.DataIn, 0)
		data := make([]byte, pdu.HeaderLen+4096)
		for {
			if _, err := x.conn.Read(b); err != nil { // one whole command at a time: depth 1, no data out
				return
			}
			h := pdu.BHS(b)
			x.cmdSN = h.U32(pdu.OffCmdSN) + 1
			r.SetITT(h.ITT())
			r.SetFlags(pdu.Final | pdu.StatusBit)
			r.SetDataLen(4096)
			r.PutU32(pdu.OffExpCmdSN, x.cmdSN)
			r.PutU32(pdu.OffMaxCmdSN, x.cmdSN+64)
			x.status(r)
			copy(data, r)
			if _, err := x.conn.Write(data); err != nil {
				return
			}
		}
	})
	cfg := x.config()
	cfg.Timers = Timers{} // no pings within this test
	s, err := Login(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const rounds = 3000
	left := rounds
	end := make(chan error, 1)
	c := &Command{In: make([]byte, 4096), CDB: cdbBlocks(opRead16, 0, 0, 8)}
	var before, after runtime.MemStats
	c.Done = func(c *Command) {
		if left == rounds-100 {
			runtime.ReadMemStats(&before)
		}
		if left--; left == 0 || c.Err != nil {
			runtime.ReadMemStats(&after)
			end <- c.Err
			return
		}
		if err := s.Submit(c); err != nil {
			end <- err
		}
	}
	if err := s.Submit(c); err != nil {
		t.Fatal(err)
	}
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if n := after.Mallocs - before.Mallocs; n > rounds/20 {
		t.Fatalf("%d allocations in %d commands", n, rounds-100)
	}
}
