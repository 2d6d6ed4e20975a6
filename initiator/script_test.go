package initiator

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// scripted is a peer that logs a session in correctly and then does what a test says, mostly wrong
// things.
type scripted struct {
	t      *testing.T
	l      net.Listener
	own    pdu.Params
	p      pdu.Params
	conn   net.Conn
	statSN uint32
	cmdSN  uint32
	done   chan struct{}
}

// serveScript accepts one connection, logs it in with digests as the initiator wishes, and runs
// script on it.
func serveScript(t *testing.T, script func(*scripted)) *scripted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &scripted{t: t, l: l, done: make(chan struct{}), own: pdu.DefaultParams(), p: pdu.DefaultParams()}
	x.own.HeaderDigest, x.own.DataDigest, x.own.InitialR2T = true, true, false
	go func() {
		defer close(x.done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		x.conn = conn
		if x.login() {
			script(x)
		}
	}()
	t.Cleanup(func() { l.Close(); <-x.done })
	return x
}

func (x *scripted) config() SessionConfig {
	return SessionConfig{InitiatorName: "iqn.2026-01.test.gemel:host", Target: "iqn.2026-01.test.gemel:script",
		Portal: x.l.Addr().String(), Timers: fastTimers}
}

// fastTimers find a silent peer quickly: the scripted peer has no age limit to respect.
var fastTimers = Timers{PingInterval: 40 * time.Millisecond, PingTimeout: 80 * time.Millisecond, AgeLimit: 50 * time.Millisecond,
	TMF: 10 * time.Second}

func (x *scripted) login() bool {
	for {
		h, data, ok := x.receive()
		if !ok || h.Op() != pdu.LoginReq {
			return false
		}
		x.cmdSN = h.U32(pdu.OffCmdSN)
		text, err := pdu.ParseText(data)
		if err != nil {
			x.t.Errorf("login text: %v", err)
			return false
		}
		var answer pdu.Text
		for _, e := range text {
			if e.Key == "AuthMethod" {
				answer.Add("AuthMethod", "None")
			}
			if !pdu.Known(e.Key) {
				continue
			}
			a, err := x.p.Respond(e.Key, e.Value, &x.own)
			if err != nil {
				x.t.Errorf("login key: %v", err)
				return false
			}
			if a != "" {
				answer.Add(e.Key, a)
			}
		}
		r := x.header(pdu.LoginResp, h.ITT())
		r.SetFlags(h.Flags())
		copy(r[8:16], h[8:16])
		digests := [2]bool{x.p.HeaderDigest, x.p.DataDigest}
		x.p.HeaderDigest, x.p.DataDigest = false, false
		x.status(r)
		x.send(r, answer.Append(nil))
		if h.Flags()&pdu.Final != 0 && h.NSG() == pdu.StageFullFeature {
			x.p.HeaderDigest, x.p.DataDigest = digests[0], digests[1]
			return true
		}
	}
}

func (x *scripted) header(op pdu.Opcode, itt uint32) pdu.BHS {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	h.SetOp(op, false)
	h.SetFlags(pdu.Final)
	h.SetITT(itt)
	h.PutU32(pdu.OffStatSN, x.statSN)
	h.PutU32(pdu.OffExpCmdSN, x.cmdSN)
	h.PutU32(pdu.OffMaxCmdSN, x.cmdSN+64)
	return h
}

// status gives a header the next StatSN.
func (x *scripted) status(h pdu.BHS) {
	h.PutU32(pdu.OffStatSN, x.statSN)
	x.statSN++
}

func (x *scripted) send(h pdu.BHS, data []byte) {
	h.SetDataLen(len(data))
	b := append([]byte{}, h...)
	if x.p.HeaderDigest {
		b = append(b, 0, 0, 0, 0)
		pdu.PutDigest(b[pdu.HeaderLen:], pdu.Digest(h))
	}
	b = append(b, data...)
	b = append(b, make([]byte, pdu.Pad(len(data)))...)
	if x.p.DataDigest && len(data) > 0 {
		b = append(b, 0, 0, 0, 0)
		pdu.PutDigest(b[len(b)-4:], pdu.DataDigest(data))
	}
	_, _ = x.conn.Write(b)
}

// receive takes one PDU and checks its digests.
func (x *scripted) receive() (pdu.BHS, []byte, bool) {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	if _, err := io.ReadFull(x.conn, h); err != nil {
		return nil, nil, false
	}
	var d [4]byte
	if x.p.HeaderDigest {
		if _, err := io.ReadFull(x.conn, d[:]); err != nil || pdu.GetDigest(d[:]) != pdu.Digest(h) {
			x.t.Errorf("header digest of opcode %#x", h.Op())
			return nil, nil, false
		}
	}
	n := h.DataLen()
	data := make([]byte, n+pdu.Pad(n))
	if _, err := io.ReadFull(x.conn, data); err != nil {
		return nil, nil, false
	}
	if x.p.DataDigest && n > 0 {
		if _, err := io.ReadFull(x.conn, d[:]); err != nil || pdu.GetDigest(d[:]) != pdu.Digest(data) {
			x.t.Errorf("data digest of opcode %#x", h.Op())
			return nil, nil, false
		}
	}
	if !h.Immediate() && h.Op() == pdu.SCSICmd {
		x.cmdSN = h.U32(pdu.OffCmdSN) + 1
	}
	return h, data[:n], true
}

// command waits for the next SCSI command, answering pings meanwhile.
func (x *scripted) command() (pdu.BHS, []byte) {
	for {
		h, data, ok := x.receive()
		if !ok {
			return nil, nil
		}
		switch h.Op() {
		case pdu.SCSICmd:
			return h, data
		case pdu.NopOut:
			x.pong(h)
		}
	}
}

func (x *scripted) pong(h pdu.BHS) {
	if h.ITT() == pdu.Reserved {
		return
	}
	r := x.header(pdu.NopIn, h.ITT())
	r.SetTTT(pdu.Reserved)
	x.status(r)
	x.send(r, nil)
}

// good answers a command with GOOD.
func (x *scripted) good(itt uint32) {
	r := x.header(pdu.SCSIResp, itt)
	x.status(r)
	x.send(r, nil)
}

// drain reads until the initiator hangs up, answering pings.
func (x *scripted) drain() {
	for {
		h, _, ok := x.receive()
		if !ok {
			return
		}
		if h.Op() == pdu.NopOut {
			x.pong(h)
		}
	}
}
