package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// LoginError is a login the target refused, with its status (RFC 7143 §11.13.5).
type LoginError struct{ Status pdu.LoginStatus }

func (e *LoginError) Error() string {
	return fmt.Sprintf("login refused by the target: %s (%#04x)", e.Status, uint16(e.Status))
}

// Is makes every LoginError an ErrLogin, and 0201 and 0202 an ErrAuth.
func (e *LoginError) Is(target error) bool {
	return target == ErrLogin ||
		target == ErrAuth && (e.Status == pdu.LoginAuthFailed || e.Status == pdu.LoginForbidden)
}

// Permanent reports whether trying again is pointless without a change of configuration: initiator
// errors, except that a target may not be there yet (0203) or be gone for a while (0204).
func (e *LoginError) Permanent() bool {
	return e.Status.Class() == 2 && e.Status != pdu.LoginNotFound && e.Status != pdu.LoginTargetRemoved
}

// maxLoginRounds bounds requests per login, and PDUs per answer.
const maxLoginRounds = 16

// loginState is a login in progress on a fresh connection; everything in it is synchronous.
type loginState struct {
	cfg     *SessionConfig
	conn    net.Conn
	own     pdu.Params // what we offer
	p       pdu.Params // what is agreed
	tpgt    string
	chap    chapExchange
	stage   byte
	offered bool
	itt     uint32
	cmdSN   uint32
	statSN  uint32 // ExpStatSN
	maxCmd  uint32
}

func (l *loginState) run(ctx context.Context) error {
	deadline := time.Now().Add(l.cfg.Timers.Login)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := l.conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("%w: %w", ErrLogin, err)
	}
	// A cancelled context ends the read or write in progress.
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	err := l.negotiate()
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		if errors.Is(err, ErrAuth) || errors.Is(err, ErrLogin) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrLogin, err)
	}
	return l.conn.SetDeadline(time.Time{})
}

// ownParams is what a session offers. Bursts are generous because buffers exist before a command is
// sent.
func ownParams(cfg *SessionConfig) pdu.Params {
	p := pdu.DefaultParams()
	p.HeaderDigest, p.DataDigest = cfg.HeaderDigest, cfg.DataDigest
	p.MaxRecv = uint32(cfg.MaxRecvData)
	p.MaxBurst, p.FirstBurst = 1<<20, 256<<10
	p.InitialR2T, p.ImmediateData = cfg.ForceR2T, !cfg.NoImmediateData
	p.DefaultTime2Wait, p.DefaultTime2Retain, p.ErrorRecoveryLevel = 0, 0, 0
	return p
}

func (l *loginState) negotiate() error {
	l.own, l.p = ownParams(l.cfg), pdu.DefaultParams()
	l.p.MaxRecv = l.own.MaxRecv
	l.itt, l.cmdSN, l.stage = 1, 1, pdu.StageSecurity
	l.chap = chapExchange{auth: l.cfg.Auth, mutual: l.cfg.MutualAuth, offer: l.cfg.CHAPAlgorithms}
	send := l.greeting()
	transit := l.cfg.Auth == nil
	for round := 0; round < maxLoginRounds; round++ {
		next := byte(pdu.StageOperational)
		if l.stage == pdu.StageOperational {
			next = pdu.StageFullFeature
		}
		h, text, err := l.exchange(transit, next, send)
		if err != nil {
			return err
		}
		moved := h.Flags()&pdu.Final != 0
		if moved && (!transit || h.NSG() != next) {
			return fmt.Errorf("%w: the target moved from stage %d to %d on its own", ErrProtocol, l.stage, h.NSG())
		}
		if err := l.accept(text); err != nil {
			return err
		}
		send = nil
		switch {
		case l.stage == pdu.StageOperational && moved:
			return l.settled()
		case l.stage == pdu.StageOperational: // the target wants another round
		case moved:
			if err := l.chap.finished(text); err != nil {
				return err
			}
			l.stage = pdu.StageOperational
		default:
			if send, transit, err = l.chap.step(text); err != nil {
				return err
			}
		}
		if l.stage == pdu.StageOperational && !l.offered {
			l.own.Offer(&send, l.cfg.Target == "")
			insistOnDigests(send)
			l.offered, transit = true, true
		}
	}
	return fmt.Errorf("%w: the login did not finish after %d rounds", ErrProtocol, maxLoginRounds)
}

// insistOnDigests leaves None out where a digest was asked for: targets take the cheaper of the two
// otherwise.
func insistOnDigests(t pdu.Text) {
	for i := range t {
		if strings.HasSuffix(t[i].Key, "Digest") && strings.HasPrefix(t[i].Value, "CRC32C") {
			t[i].Value = "CRC32C"
		}
	}
}

func (l *loginState) greeting() (t pdu.Text) {
	t.Add("InitiatorName", l.cfg.InitiatorName)
	if l.cfg.Target == "" {
		t.Add("SessionType", "Discovery")
	} else {
		t.Add("SessionType", "Normal")
		t.Add("TargetName", l.cfg.Target)
	}
	if l.cfg.Auth == nil {
		t.Add("AuthMethod", "None")
	} else { // never None beside it: a target that skips authentication must not pass for one that did it
		t.Add("AuthMethod", "CHAP")
	}
	return t
}

// accept takes the operational keys of an answer.
func (l *loginState) accept(text pdu.Text) error {
	if k := text.Repeated(); k != "" {
		return fmt.Errorf("%w: login key %.63q repeated", ErrProtocol, k)
	}
	for _, e := range text {
		if e.Key == "TargetPortalGroupTag" {
			l.tpgt = e.Value
		}
		if !pdu.Known(e.Key) {
			continue // declarations, or the security stage's business
		}
		if err := l.p.Accept(e.Key, e.Value, &l.own); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	}
	return nil
}

// settled checks what the whole negotiation came to.
func (l *loginState) settled() error {
	l.p.FirstBurst = min(l.p.FirstBurst, l.p.MaxBurst)
	if l.p.HeaderDigest != l.own.HeaderDigest || l.p.DataDigest != l.own.DataDigest {
		return fmt.Errorf("%w: the target does not accept the requested digests", ErrLogin)
	}
	if l.p.ErrorRecoveryLevel != 0 {
		return fmt.Errorf("%w: ErrorRecoveryLevel %d", ErrProtocol, l.p.ErrorRecoveryLevel)
	}
	return nil
}

// exchange sends one login request and gathers the answer, which the target may spread over several
// PDUs.
func (l *loginState) exchange(transit bool, next byte, t pdu.Text) (pdu.BHS, pdu.Text, error) {
	data := t.Append(nil)
	var text []byte
	for round := 0; round < maxLoginRounds; round++ {
		if err := l.send(pdu.LoginReq, pdu.LoginFlags(transit, false, l.stage, next), pdu.Reserved, data); err != nil {
			return nil, nil, err
		}
		h, d, err := l.receive()
		if err != nil {
			return nil, nil, err
		}
		if h.Op() != pdu.LoginResp || h.ITT() != l.itt {
			return nil, nil, fmt.Errorf("%w: opcode %#02x in answer to a login request", ErrProtocol, byte(h.Op()))
		}
		if st := pdu.LoginStatus(h.U16(pdu.OffLoginStatus)); st != pdu.LoginSuccess {
			return nil, nil, &LoginError{st}
		}
		if h.CSG() != l.stage {
			return nil, nil, fmt.Errorf("%w: login answer for stage %d in stage %d", ErrProtocol, h.CSG(), l.stage)
		}
		if text = append(text, d...); len(text) > pdu.MaxTextTotal {
			return nil, nil, fmt.Errorf("%w: login answer above %d bytes", ErrProtocol, pdu.MaxTextTotal)
		}
		if h.Flags()&pdu.Continue == 0 {
			t, err := pdu.ParseText(text)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: %w", ErrProtocol, err)
			}
			return h, t, nil
		}
		data, transit = nil, false // an empty request asks for the rest (RFC 7143 §6.2)
	}
	return nil, nil, fmt.Errorf("%w: login answer in more than %d PDUs", ErrProtocol, maxLoginRounds)
}

// send writes a login, text or logout request. ttt is the word at byte 20 (the CID of a login
// request is zero).
func (l *loginState) send(op pdu.Opcode, flags byte, ttt uint32, data []byte) error {
	b := make([]byte, pdu.HeaderLen, pdu.HeaderLen+len(data)+3)
	h := pdu.BHS(b)
	h.SetOp(op, true)
	h.SetFlags(flags)
	h.SetDataLen(len(data))
	if op == pdu.LoginReq {
		copy(b[pdu.OffISID:], l.cfg.ISID[:])
	} else {
		h.SetTTT(ttt)
	}
	h.SetITT(l.itt)
	h.PutU32(pdu.OffCmdSN, l.cmdSN)
	h.PutU32(pdu.OffExpStatSN, l.statSN)
	b = append(append(b, data...), make([]byte, pdu.Pad(len(data)))...)
	_, err := l.conn.Write(b)
	return err
}

// receive reads one PDU without digests (they start in the full feature phase) and takes its
// sequence numbers.
func (l *loginState) receive() (pdu.BHS, []byte, error) {
	h := pdu.BHS(make([]byte, pdu.HeaderLen))
	if _, err := io.ReadFull(l.conn, h); err != nil {
		return nil, nil, err
	}
	n := h.DataLen()
	if h.AHSLen() != 0 || n > pdu.MaxTextTotal {
		return nil, nil, fmt.Errorf("%w: answer with %d data bytes", ErrProtocol, n)
	}
	data := make([]byte, n+pdu.Pad(n))
	if _, err := io.ReadFull(l.conn, data); err != nil {
		return nil, nil, err
	}
	// Not checked against the one before: tgt starts over after CHAP, and with one request
	// outstanding at a time nothing can be missing. The full feature phase is strict.
	l.statSN = h.U32(pdu.OffStatSN) + 1
	l.maxCmd = h.U32(pdu.OffMaxCmdSN)
	return h, data[:n], nil
}

// DiscoveredTarget is one target of a SendTargets answer.
type DiscoveredTarget struct {
	Name    string
	Portals []DiscoveredPortal
}

// DiscoveredPortal is a portal (host:port) with its target portal group tag.
type DiscoveredPortal struct{ Address, GroupTag string }

// Discover opens a discovery session, asks for all targets (RFC 7143 appendix C) and logs out.
func Discover(ctx context.Context, cfg SessionConfig) ([]DiscoveredTarget, error) {
	cfg.Target = ""
	cfg.HeaderDigest, cfg.DataDigest = false, false
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l, err := connect(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer l.conn.Close()
	if err := l.conn.SetDeadline(time.Now().Add(cfg.Timers.Login)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	defer stop()
	text, err := l.sendTargets()
	if err != nil {
		return nil, fmt.Errorf("discovery at %s: %w", cfg.Portal, errors.Join(context.Cause(ctx), err))
	}
	// The answer is in hand; a failing logout changes nothing.
	l.itt++
	if l.send(pdu.LogoutReq, pdu.Final|pdu.LogoutSession, 0, nil) == nil {
		_, _, _ = l.receive()
	}
	return parseSendTargets(text), nil
}

func (l *loginState) sendTargets() (pdu.Text, error) {
	l.itt = 2
	var ask pdu.Text
	ask.Add("SendTargets", "All")
	data, ttt := ask.Append(nil), pdu.Reserved
	var text []byte
	for round := 0; round < maxLoginRounds; round++ {
		if err := l.send(pdu.TextReq, pdu.Final, ttt, data); err != nil {
			return nil, err
		}
		h, d, err := l.receive()
		if err != nil {
			return nil, err
		}
		if h.Op() != pdu.TextResp || h.ITT() != l.itt {
			return nil, fmt.Errorf("%w: opcode %#02x in answer to a text request", ErrProtocol, byte(h.Op()))
		}
		if text = append(text, d...); len(text) > pdu.MaxTextTotal {
			return nil, fmt.Errorf("%w: SendTargets answer above %d bytes", ErrProtocol, pdu.MaxTextTotal)
		}
		if h.Flags()&pdu.Final != 0 {
			return pdu.ParseText(text)
		}
		data, ttt = nil, h.TTT()
	}
	return nil, fmt.Errorf("%w: SendTargets answer in more than %d PDUs", ErrProtocol, maxLoginRounds)
}

func parseSendTargets(text pdu.Text) (list []DiscoveredTarget) {
	for _, e := range text {
		switch {
		case e.Key == "TargetName":
			list = append(list, DiscoveredTarget{Name: e.Value})
		case e.Key == "TargetAddress" && len(list) > 0:
			addr, tag, _ := strings.Cut(e.Value, ",")
			t := &list[len(list)-1]
			t.Portals = append(t.Portals, DiscoveredPortal{addr, tag})
		}
	}
	return list
}
