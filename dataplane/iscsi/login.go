package iscsi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gemel-storage/gemel/dataplane/scsi"
	"github.com/gemel-storage/gemel/internal/pdu"
)

const (
	loginSegment = 8192 // MaxRecvDataSegmentLength of both sides during login (RFC 7143 §13.12)
	loginPDUs    = 64   // in one login
)

// loginError fails a login with a status the initiator sees.
type loginError struct {
	status pdu.LoginStatus
	err    error
}

func (e *loginError) Error() string { return e.status.String() + ": " + e.err.Error() }
func (e *loginError) Unwrap() error { return e.err }

func fail(s pdu.LoginStatus, format string, args ...any) error {
	return &loginError{s, fmt.Errorf(format, args...)}
}

// login is the state of one login phase.
type login struct {
	c        *conn
	deadline time.Time
	own      pdu.Params // what we wish for
	head     [pdu.HeaderLen]byte
	text     []byte // of PDUs with the C bit
	pdus     int

	begun    bool // the first request has been read
	known    bool // names were checked: Admit was asked
	stage    byte
	creds    Credentials
	chap     *chap
	authed   bool
	declared bool            // our MaxRecvDataSegmentLength was sent
	seen     map[string]bool // keys negotiated so far: none may come twice
}

// login runs the login phase; nil means the full-feature phase has begun.
func (c *conn) login() error {
	l := &login{c: c, deadline: time.Now().Add(c.srv.cfg.LoginTimeout), seen: map[string]bool{}}
	l.own = c.srv.ownParams()
	c.params = pdu.DefaultParams()
	c.params.MaxRecv = l.own.MaxRecv
	if err := c.sock.nc.SetDeadline(l.deadline); err != nil {
		return err
	}
	for {
		done, err := l.step()
		if err == nil && !done {
			continue
		}
		if err == nil {
			return c.sock.nc.SetDeadline(time.Time{})
		}
		c.srv.stats.LoginsFailed.Add(1)
		var le *loginError
		if errors.As(err, &le) && l.begun {
			// The status is a courtesy: the connection ends anyway. The login's time may be over,
			// so it gets its own.
			_ = c.sock.nc.SetWriteDeadline(time.Now().Add(time.Second))
			_ = l.send(nil, 0, le.status)
		}
		return err
	}
}

// step reads one login request and answers it; done when the answer began the full-feature phase.
func (l *login) step() (done bool, err error) {
	h, data, err := l.read()
	if err != nil {
		return false, err
	}
	transit, more := h.Flags()&pdu.Final != 0, h.Flags()&pdu.Continue != 0
	if len(l.text)+len(data) > pdu.MaxTextTotal {
		return false, fail(pdu.LoginInitiatorError, "%w", pdu.ErrTextTooLong)
	}
	l.text = append(l.text, data...)
	if more {
		if transit {
			return false, fail(pdu.LoginInitiatorError, "T and C bit are both set")
		}
		return false, l.send(nil, pdu.LoginFlags(false, false, l.stage, 0), pdu.LoginSuccess)
	}
	in, err := pdu.ParseText(l.text)
	l.text = nil
	if err != nil {
		return false, fail(pdu.LoginInitiatorError, "%w", err)
	}
	var out pdu.Text
	if !l.known {
		if err := l.identify(in, &out); err != nil {
			return false, err
		}
	}
	if err := l.negotiate(in, &out); err != nil {
		return false, err
	}
	nsg := h.NSG()
	if transit && (nsg == 2 || nsg <= l.stage) {
		return false, fail(pdu.LoginInitiatorError, "transition from stage %d to %d", l.stage, nsg)
	}
	if !l.authed && (l.stage != pdu.StageSecurity || transit && l.chap == nil) {
		if l.creds.Secret != "" {
			return false, fail(pdu.LoginAuthFailed, "the initiator skipped authentication")
		}
		l.authed = true
	}
	// With CHAP under way the answer keeps the stage, whatever the initiator would like.
	transit = transit && l.authed
	if l.stage == pdu.StageOperational && !l.declared || transit && nsg == pdu.StageFullFeature && !l.declared {
		l.declared = true
		out.Add("MaxRecvDataSegmentLength", strconv.Itoa(int(l.own.MaxRecv)))
	}
	if !transit {
		return false, l.send(out, pdu.LoginFlags(false, false, l.stage, 0), pdu.LoginSuccess)
	}
	flags := pdu.LoginFlags(true, false, l.stage, nsg)
	l.stage = nsg
	if nsg != pdu.StageFullFeature {
		return false, l.send(out, flags, pdu.LoginSuccess)
	}
	if err := l.satisfied(); err != nil {
		return false, err
	}
	if err := l.enter(); err != nil {
		return false, err
	}
	return true, l.send(out, flags, pdu.LoginSuccess)
}

// read returns the next login request, checked for form. data is valid until the next read.
func (l *login) read() (h pdu.BHS, data []byte, err error) {
	c := l.c
	if l.pdus++; l.pdus > loginPDUs {
		return nil, nil, fail(pdu.LoginInitiatorError, "more than %d login requests", loginPDUs)
	}
	if err := c.need(pdu.HeaderLen); err != nil {
		return nil, nil, err
	}
	h = pdu.BHS(c.in[c.r : c.r+pdu.HeaderLen])
	n := h.DataLen()
	switch {
	case h.Op() != pdu.LoginReq:
		// RFC 7143 §6.3: anything else before the full-feature phase ends the connection.
		return nil, nil, fmt.Errorf("opcode %#x during login", byte(h.Op()))
	case h.AHSLen() != 0 || n > loginSegment:
		return nil, nil, fmt.Errorf("login request with %d bytes AHS and %d bytes data", h.AHSLen(), n)
	}
	total := pdu.HeaderLen + n + pdu.Pad(n)
	if err := c.need(total); err != nil {
		return nil, nil, err
	}
	h = pdu.BHS(c.in[c.r : c.r+pdu.HeaderLen])
	data = c.in[c.r+pdu.HeaderLen : c.r+pdu.HeaderLen+n]
	c.r += total
	first := !l.begun
	l.begun = true
	last := l.head
	copy(l.head[:], h)
	if first {
		return h, data, l.first(h)
	}
	b := pdu.BHS(last[:])
	if h.ITT() != b.ITT() || h.U16(pdu.OffCID) != b.U16(pdu.OffCID) || h.U16(pdu.OffTSIH) != b.U16(pdu.OffTSIH) ||
		[6]byte(h[pdu.OffISID:]) != [6]byte(b[pdu.OffISID:]) {
		return nil, nil, fail(pdu.LoginInvalidRequest, "ITT, CID, TSIH or ISID changed during login")
	}
	if h.CSG() != l.stage {
		return nil, nil, fail(pdu.LoginInitiatorError, "current stage %d, expected %d", h.CSG(), l.stage)
	}
	return h, data, nil
}

func (l *login) first(h pdu.BHS) error {
	c := l.c
	l.stage = h.CSG()
	copy(c.id.ISID[:], h[pdu.OffISID:])
	c.cid = h.U16(pdu.OffCID)
	c.expCmdSN = h.U32(pdu.OffCmdSN)
	c.maxCmdSN = c.expCmdSN + uint32(c.srv.cfg.Limits.Window) - 1
	c.statSN = 1
	if h[pdu.OffVersionMin] > 0 {
		return fail(pdu.LoginBadVersion, "the initiator requires version %d or later", h[pdu.OffVersionMin])
	}
	if l.stage > pdu.StageOperational {
		return fail(pdu.LoginInitiatorError, "login begins in stage %d", l.stage)
	}
	if tsih := h.U16(pdu.OffTSIH); tsih != 0 {
		return fail(c.srv.haveSession(tsih), "the first login of a session has TSIH %#x", tsih)
	}
	return nil
}

// identify takes the names of the first complete request (RFC 7143 §6.2: InitiatorName, SessionType
// and TargetName belong there) and asks whether that initiator may log in.
func (l *login) identify(in pdu.Text, out *pdu.Text) error {
	c, s := l.c, l.c.srv
	name, ok := in.Get("InitiatorName")
	if !ok {
		return fail(pdu.LoginMissingParameter, "no InitiatorName")
	}
	name = strings.ToLower(name)
	if !pdu.ValidName(name) {
		return fail(pdu.LoginInitiatorError, "InitiatorName %q", name)
	}
	kind, ok := in.Get("SessionType")
	switch {
	case !ok || kind == "Normal":
	case kind == "Discovery":
		c.discovery = true
	default:
		return fail(pdu.LoginBadSessionType, "SessionType %q", kind)
	}
	target, named := in.Get("TargetName")
	if !c.discovery && !named {
		return fail(pdu.LoginMissingParameter, "no TargetName")
	}
	if named && strings.ToLower(target) != s.cfg.TargetName {
		return fail(pdu.LoginNotFound, "TargetName %q", target)
	}
	// First the name in the registry, then the question: a host that is removed in between is
	// dropped by DropHost.
	s.admitted(c, name)
	host := s.hosts.Admit(name)
	if err := c.admissible(name, host); err != nil {
		return err
	}
	creds := host.Credentials
	if creds.Secret == "" && creds.User != "" {
		return fail(pdu.LoginAuthFailed, "initiator %s has a CHAP user without a secret", name)
	}
	s.mu.Lock()
	c.id.Initiator = name
	s.mu.Unlock()
	c.id.Port = s.cfg.Tag
	l.creds, l.known = creds, true
	if !c.discovery {
		out.Add("TargetPortalGroupTag", strconv.Itoa(int(s.cfg.Tag)))
		if s.cfg.Alias != "" {
			out.Add("TargetAlias", s.cfg.Alias)
		}
	}
	return nil
}

// enter opens the session: the one it replaces is gone, with its commands, before the initiator
// hears of success.
func (l *login) enter() error {
	c, s := l.c, l.c.srv
	if c.params.FirstBurst > c.params.MaxBurst {
		c.params.FirstBurst = c.params.MaxBurst // RFC 7143 §13.14: it must not exceed it; defaults may collide with a small MaxBurst
	}
	c.maxSend.Store(c.params.MaxSend)
	c.since = time.Now()
	if err := s.takePlace(c); err != nil {
		return err
	}
	if !c.discovery {
		if err := s.register(c, l.deadline); err != nil {
			return fail(pdu.LoginUnavailable, "%w", err)
		}
		c.nexus = s.device.OpenNexus(scsi.NexusID{Initiator: c.id.Initiator, ISID: c.id.ISID, Port: c.id.Port})
		c.nexus.Liveness.Answered(s.cfg.Clock())
		c.nexus.Liveness.Bind(c.ask)
		c.opened = true
	}
	s.entered(c)
	s.stats.Logins.Add(1)
	return nil
}

// send writes one login response. During login the connection writes directly, with the login's
// deadline.
func (l *login) send(out pdu.Text, flags byte, status pdu.LoginStatus) error {
	c := l.c
	b := out.Append(make([]byte, pdu.HeaderLen, 512))
	n := len(b) - pdu.HeaderLen
	if n > loginSegment {
		return fail(pdu.LoginInitiatorError, "the answers to the login keys exceed %d bytes", loginSegment)
	}
	req := pdu.BHS(l.head[:])
	h := pdu.BHS(b[:pdu.HeaderLen])
	h.SetOp(pdu.LoginResp, false)
	h.SetFlags(flags)
	h.SetDataLen(n)
	copy(h[pdu.OffISID:], req[pdu.OffISID:pdu.OffISID+6])
	h.PutU16(pdu.OffTSIH, req.U16(pdu.OffTSIH))
	if flags&pdu.Final != 0 && flags&3 == pdu.StageFullFeature {
		h.PutU16(pdu.OffTSIH, max(c.tsih, 1)) // discovery sessions are not kept and all have 1
	}
	h.SetITT(req.ITT())
	h.PutU16(pdu.OffLoginStatus, uint16(status))
	h.PutU32(pdu.OffExpCmdSN, c.expCmdSN)
	h.PutU32(pdu.OffMaxCmdSN, c.maxCmdSN)
	if status == pdu.LoginSuccess {
		h.PutU32(pdu.OffStatSN, c.statSN)
		c.statSN++
	}
	b = append(b, make([]byte, pdu.Pad(n))...)
	_, err := c.sock.nc.Write(b)
	return err
}
