package conformance

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// wire stands between an initiator and a target and judges what passes, so that a test need not
// rely on the initiator to notice: each request is answered once, StatSN has no gap, the command
// window only grows (RFC 7143 §4.2.2). It knows sessions without digests, as iscsi-perf has.
type wire struct {
	addr     string // for the initiator
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	live    map[*passage]bool
	logins  int
	answers int
	faults  []string
}

// passage is one connection.
type passage struct {
	w          *wire
	near, far  net.Conn
	open       map[uint32]string // requests without an answer, by their tag
	next       uint32            // CmdSN
	statSN     uint32            // next
	exp, limit uint32            // ExpCmdSN, MaxCmdSN
}

// watch puts a wire in front of a target.
func watch(t *testing.T, target string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), target: target, listener: l, live: map[*passage]bool{}}
	w.wg.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

func (w *wire) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	for p := range w.live {
		_, _ = p.near.Close(), p.far.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *wire) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = near.(*net.TCPConn).SetLinger(0) // the initiator sees a reset, as from a dead node
			_ = near.Close()
			continue
		}
		p := &passage{w: w, near: near, far: far, open: map[uint32]string{}}
		w.mu.Lock()
		w.live[p] = true
		w.mu.Unlock()
		w.wg.Go(func() { p.carry(near, far, p.request) })
		w.wg.Go(func() { p.carry(far, near, p.response) })
	}
}

// carry passes PDUs on, each after it was judged. What is unanswered when the connection ends
// stays so by right.
func (p *passage) carry(from, to net.Conn, judge func(pdu.BHS, []byte)) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.w.mu.Lock()
		delete(p.w.live, p)
		p.w.mu.Unlock()
	}()
	b := make([]byte, pdu.HeaderLen)
	for {
		if _, err := io.ReadFull(from, b[:pdu.HeaderLen]); err != nil {
			return
		}
		h := pdu.BHS(b[:pdu.HeaderLen])
		n := h.AHSLen() + h.DataLen() + pdu.Pad(h.DataLen())
		if need := pdu.HeaderLen + n; need > len(b) {
			b = append(b[:pdu.HeaderLen], make([]byte, n)...)
			h = pdu.BHS(b[:pdu.HeaderLen])
		}
		body := b[pdu.HeaderLen : pdu.HeaderLen+n]
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		p.w.mu.Lock()
		judge(h, body)
		p.w.mu.Unlock()
		if _, err := to.Write(b[:pdu.HeaderLen+n]); err != nil {
			return
		}
	}
}

// fault is called with mu held.
func (p *passage) fault(format string, args ...any) {
	if len(p.w.faults) < 20 {
		p.w.faults = append(p.w.faults, fmt.Sprintf(format, args...))
	}
}

// request judges what the initiator sends, so that its own faults are not taken for the target's.
func (p *passage) request(h pdu.BHS, _ []byte) {
	what := fmt.Sprintf("opcode %#x tag %#x CmdSN %d", byte(h.Op()), h.ITT(), h.U32(pdu.OffCmdSN))
	switch h.Op() {
	case pdu.LoginReq:
		p.next = h.U32(pdu.OffCmdSN)
		return
	case pdu.DataOut:
		return
	}
	sn := h.U32(pdu.OffCmdSN)
	switch {
	case sn != p.next:
		p.fault("initiator: %s, the next is %d", what, p.next)
	case h.Immediate():
	case int32(sn-p.limit) > 0:
		p.fault("initiator: %s is beyond MaxCmdSN %d", what, p.limit)
	default:
		p.next++
	}
	if h.ITT() == pdu.Reserved {
		return // the answer to a ping
	}
	if p.open[h.ITT()] != "" {
		p.fault("initiator: %s: the tag is in use", what)
	}
	p.open[h.ITT()] = what
}

// response judges what the target sends.
func (p *passage) response(h pdu.BHS, body []byte) {
	what := fmt.Sprintf("opcode %#x tag %#x StatSN %d", byte(h.Op()), h.ITT(), h.U32(pdu.OffStatSN))
	exp, limit := h.U32(pdu.OffExpCmdSN), h.U32(pdu.OffMaxCmdSN)
	if h.Op() == pdu.LoginResp {
		if h.U16(pdu.OffLoginStatus) != uint16(pdu.LoginSuccess) {
			return
		}
		if bytes.Contains(body, []byte("Digest=CRC32C")) {
			p.fault("the session has digests")
		}
		p.statSN, p.exp, p.limit = h.U32(pdu.OffStatSN)+1, exp, limit
		if h.Flags()&pdu.Final != 0 && h.NSG() == pdu.StageFullFeature {
			p.w.logins++
		}
		if exp != p.next {
			p.fault("target: ExpCmdSN %d after a login with CmdSN %d", exp, p.next)
		}
		return
	}
	if int32(exp-p.exp) < 0 || int32(limit-p.limit) < 0 || int32(exp-p.next) > 0 || int32(limit-exp) < -1 {
		p.fault("target: %s: ExpCmdSN %d MaxCmdSN %d after %d and %d, with next CmdSN %d", what, exp, limit, p.exp, p.limit, p.next)
	}
	p.exp, p.limit = exp, limit
	ends, counts := true, true // the request's answer ends; it has a StatSN of its own
	switch h.Op() {
	case pdu.DataIn:
		ends = h.Flags()&pdu.StatusBit != 0
		counts = ends
	case pdu.R2T:
		ends, counts = false, false
	case pdu.NopIn:
		counts = h.ITT() != pdu.Reserved
	case pdu.Reject:
		p.fault("target: %s: reason %#x for % x", what, h[pdu.OffResponse], body[:min(len(body), pdu.HeaderLen)])
	}
	if sn := h.U32(pdu.OffStatSN); h.Op() != pdu.DataIn || counts {
		if sn != p.statSN {
			p.fault("target: %s, the next is %d", what, p.statSN)
		}
		if counts {
			p.statSN++
		}
	}
	if h.ITT() == pdu.Reserved {
		return
	}
	if p.open[h.ITT()] == "" {
		p.fault("target: %s answers no open request", what)
	}
	if ends {
		delete(p.open, h.ITT())
		p.w.answers++
	}
	if h.Op() == pdu.LogoutResp {
		clear(p.open) // it ends them (RFC 7143 §11.14)
	}
}

// unanswered lists requests without an answer, of all connections.
func (w *wire) unanswered() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.live {
		for _, what := range p.open {
			list = append(list, what)
		}
	}
	return list
}

// verdict returns the successful logins, the requests answered and what was wrong.
func (w *wire) verdict() (logins, answers int, faults []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logins, w.answers, append([]string(nil), w.faults...)
}

// TestWireSeesFaults gives it one of each kind.
func TestWireSeesFaults(t *testing.T) {
	pduOf := func(op pdu.Opcode, itt, sn, exp, limit uint32) pdu.BHS {
		h := pdu.BHS(make([]byte, pdu.HeaderLen))
		h.SetOp(op, op == pdu.LoginReq)
		h.SetFlags(pdu.Final | pdu.StatusBit)
		h.SetITT(itt)
		h.PutU32(pdu.OffCmdSN, sn) // or StatSN
		h.PutU32(pdu.OffExpCmdSN, exp)
		h.PutU32(pdu.OffMaxCmdSN, limit)
		return h
	}
	const first = 0xfffffffe // numbers go round
	for _, v := range []struct {
		name       string
		sent, came []pdu.BHS // the answers come after all that is sent
		fault      string
		unanswered int
	}{
		{"none", []pdu.BHS{pduOf(pdu.SCSICmd, 1, first, 0, 0), pduOf(pdu.SCSICmd, 2, first+1, 0, 0)},
			[]pdu.BHS{pduOf(pdu.DataIn, 2, 1, 0, 1), pduOf(pdu.SCSIResp, 1, 2, 0, 2)}, "", 0},
		{"no answer", []pdu.BHS{pduOf(pdu.SCSICmd, 1, first, 0, 0)}, nil, "", 1},
		{"two answers", []pdu.BHS{pduOf(pdu.SCSICmd, 1, first, 0, 0)},
			[]pdu.BHS{pduOf(pdu.DataIn, 1, 1, first+1, 0), pduOf(pdu.SCSIResp, 1, 2, first+1, 0)}, "answers no open request", 0},
		{"StatSN gap", []pdu.BHS{pduOf(pdu.NopOut, 1, first, 0, 0)}, []pdu.BHS{pduOf(pdu.NopIn, 1, 2, first+1, 0)}, "the next is 1", 0},
		{"window shrinks", []pdu.BHS{pduOf(pdu.NopOut, 1, first, 0, 0)}, []pdu.BHS{pduOf(pdu.NopIn, 1, 1, first+1, 0xffffffff)}, "MaxCmdSN 4294967295 after", 0},
		{"ExpCmdSN runs ahead", []pdu.BHS{pduOf(pdu.NopOut, 1, first, 0, 0)}, []pdu.BHS{pduOf(pdu.NopIn, 1, 1, 0, 1)}, "ExpCmdSN 0 MaxCmdSN 1 after", 0},
		{"rejected", []pdu.BHS{pduOf(pdu.NopOut, 1, first, 0, 0)}, []pdu.BHS{pduOf(pdu.Reject, pdu.Reserved, 1, first+1, 0)}, "reason", 1},
		{"beyond the window", []pdu.BHS{pduOf(pdu.NopOut, 1, first, 0, 0), pduOf(pdu.NopOut, 2, first+1, 0, 0), pduOf(pdu.NopOut, 3, 0, 0, 0), pduOf(pdu.NopOut, 4, 1, 0, 0)},
			nil, "initiator: opcode 0x0 tag 0x4 CmdSN 1 is beyond MaxCmdSN 0", 4},
		{"number skipped", []pdu.BHS{pduOf(pdu.NopOut, 1, 0, 0, 0)}, nil, "initiator: opcode 0x0 tag 0x1 CmdSN 0, the next is", 1},
	} {
		t.Run(v.name, func(t *testing.T) {
			w := &wire{live: map[*passage]bool{}}
			p := &passage{w: w, open: map[uint32]string{}}
			w.live[p] = true
			p.request(pduOf(pdu.LoginReq, 0, first, 0, 0), nil)
			login := pduOf(pdu.LoginResp, 0, 0, first, 0)
			login.SetFlags(pdu.LoginFlags(true, false, pdu.StageOperational, pdu.StageFullFeature))
			login.PutU16(pdu.OffLoginStatus, uint16(pdu.LoginSuccess))
			p.response(login, nil)
			for _, h := range v.sent {
				p.request(h, nil)
			}
			for _, h := range v.came {
				p.response(h, nil)
			}
			logins, _, faults := w.verdict()
			all := strings.Join(faults, "\n")
			if logins != 1 || len(w.unanswered()) != v.unanswered || v.fault == "" && all != "" || !strings.Contains(all, v.fault) {
				t.Errorf("%d logins, unanswered %q, faults %s", logins, w.unanswered(), all)
			}
		})
	}
}
