package iscsi

import (
	"strings"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// ownParams is what this server wishes for in operational negotiation.
func (s *Server) ownParams() pdu.Params {
	p := pdu.DefaultParams()
	l := s.cfg.Limits
	p.HeaderDigest, p.DataDigest = s.cfg.HeaderDigest != DigestRefuse, s.cfg.DataDigest != DigestRefuse
	p.MaxRecv, p.FirstBurst, p.MaxBurst = uint32(l.RecvSegment), uint32(l.FirstBurst), uint32(l.MaxBurst)
	p.InitialR2T, p.ImmediateData = false, true
	p.DefaultTime2Wait, p.DefaultTime2Retain = 0, 0 // nothing of a session outlives its connection
	return p
}

// negotiate answers every key of one request.
func (l *login) negotiate(in pdu.Text, out *pdu.Text) error {
	chapDone := false
	for _, p := range in {
		if l.seen[p.Key] {
			return fail(pdu.LoginInitiatorError, "key %s appears twice", p.Key)
		}
		if len(l.seen) > pdu.MaxPairs {
			return fail(pdu.LoginInitiatorError, "%w", pdu.ErrTextTooLong)
		}
		l.seen[p.Key] = true
		switch p.Key {
		case "InitiatorName", "SessionType", "TargetName":
			if l.pdus > 1 && !strings.EqualFold(p.Value, l.c.id.Initiator) && p.Key == "InitiatorName" {
				return fail(pdu.LoginInitiatorError, "InitiatorName changed")
			}
		case "InitiatorAlias":
		case "AuthMethod":
			if err := l.method(p.Value, out); err != nil {
				return err
			}
		case "CHAP_A":
			if l.chap == nil {
				return fail(pdu.LoginAuthFailed, "CHAP_A before AuthMethod")
			}
			if err := l.chap.start(p.Value, out); err != nil {
				return fail(pdu.LoginAuthFailed, "%w", err)
			}
		case "CHAP_N", "CHAP_R", "CHAP_I", "CHAP_C":
			if chapDone {
				continue
			}
			if l.chap == nil || l.authed {
				return fail(pdu.LoginAuthFailed, "%s before AuthMethod", p.Key)
			}
			if err := l.chap.finish(in, out); err != nil {
				return fail(pdu.LoginAuthFailed, "%w", err)
			}
			chapDone, l.authed = true, true
		default:
			if err := l.operational(p, out); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *login) method(offered string, out *pdu.Text) error {
	if l.stage != pdu.StageSecurity {
		return fail(pdu.LoginInitiatorError, "AuthMethod outside security negotiation")
	}
	want := "None"
	if l.creds.Secret != "" {
		want = "CHAP"
	}
	if _, ok := pdu.Choose(offered, want); !ok {
		return fail(pdu.LoginAuthFailed, "AuthMethod %s is required, but the initiator offers %q", want, offered)
	}
	out.Add("AuthMethod", want)
	if want == "CHAP" {
		l.chap = &chap{creds: l.creds}
	} else {
		l.authed = true
	}
	return nil
}

func (l *login) operational(p pdu.Pair, out *pdu.Text) error {
	answer := "NotUnderstood"
	switch {
	case !pdu.Known(p.Key):
		switch p.Value {
		case "NotUnderstood", "Irrelevant", "Reject":
			return nil // an answer to nothing: never answer an answer
		}
	case l.creds.Secret != "" && !l.authed:
		return fail(pdu.LoginAuthFailed, "%s before authentication", p.Key)
	case l.c.discovery && pdu.Irrelevant(p.Key):
		answer = "Irrelevant"
	default:
		var err error
		offered := p.Value
		switch p.Key {
		case "HeaderDigest":
			offered = l.c.srv.cfg.HeaderDigest.offered(offered)
		case "DataDigest":
			offered = l.c.srv.cfg.DataDigest.offered(offered)
		}
		if answer, err = l.c.params.Respond(p.Key, offered, &l.own); err != nil {
			answer = "Reject"
		}
	}
	if answer != "" {
		out.Add(p.Key, answer)
	}
	return nil
}
