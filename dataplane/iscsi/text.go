package iscsi

import (
	"fmt"
	"strings"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// textRequest takes a Text Request: SendTargets and little else (RFC 7143 §11.10, appendix C).
func (c *conn) textRequest(h pdu.BHS) error {
	data, ok, err := c.segment(h)
	if err != nil || !ok {
		return err
	}
	if in, err := c.inOrder(h); err != nil || !in {
		return err
	}
	more, final := h.Flags()&pdu.Continue != 0, h.Flags()&pdu.Final != 0
	switch {
	case more && final:
		return c.refused(h, pdu.RejectProtocolError)
	case len(c.text)+len(data) > pdu.MaxTextTotal:
		c.text = nil
		return c.refused(h, pdu.RejectNoResources)
	case h.TTT() != pdu.Reserved && h.TTT() != c.answerTTT:
		return c.refused(h, pdu.RejectProtocolError)
	case h.TTT() == pdu.Reserved:
		c.answer, c.answerTTT = nil, pdu.Reserved // a new request: what was left of the last answer is void
	}
	if more {
		c.text = append(c.text, data...)
		return c.textResponse(h, nil, false)
	}
	if len(c.answer) > 0 && len(data) == 0 && len(c.text) == 0 {
		return c.textResponse(h, c.answer, true)
	}
	in, err := pdu.ParseText(append(c.text, data...))
	c.text = nil
	if err != nil {
		return c.refused(h, pdu.RejectProtocolError)
	}
	var out pdu.Text
	for _, p := range in {
		c.textKey(p, &out)
	}
	return c.textResponse(h, out.Append(nil), final)
}

func (c *conn) textKey(p pdu.Pair, out *pdu.Text) {
	s := c.srv
	switch p.Key {
	case "SendTargets":
		name := strings.ToLower(p.Value)
		switch {
		case p.Value == "All" && !c.discovery:
			out.Add(p.Key, "Reject") // RFC 7143 appendix C: not in a normal session
		case c.discovery && (p.Value == "All" || name == s.cfg.TargetName) && !c.mayLogIn():
			// Only targets that the initiator may access are listed (RFC 7143 appendix C).
		case p.Value == "All", p.Value == "" && !c.discovery, name == s.cfg.TargetName:
			out.Add("TargetName", s.cfg.TargetName)
			for _, portal := range *s.portals.Load() {
				out.Add("TargetAddress", fmt.Sprintf("%s,%d", portal.Address, portal.Tag))
			}
		case p.Value == "":
			out.Add(p.Key, "Reject")
		}
		// Another name: it exists not, and the answer is empty.
	case "MaxRecvDataSegmentLength":
		params := pdu.DefaultParams()
		if _, err := params.Respond(p.Key, p.Value, &params); err != nil {
			out.Add(p.Key, "Reject")
			return
		}
		c.maxSend.Store(params.MaxSend)
	default:
		switch {
		case p.Value == "NotUnderstood" || p.Value == "Irrelevant" || p.Value == "Reject":
		case pdu.Known(p.Key):
			out.Add(p.Key, "Reject") // only during login
		default:
			out.Add(p.Key, "NotUnderstood")
		}
	}
}

// textResponse sends as much of answer as fits one PDU and keeps the rest for the initiator to
// fetch with the transfer tag. final is the request's final bit: only a final request gets a final
// answer.
func (c *conn) textResponse(h pdu.BHS, answer []byte, final bool) error {
	n := min(len(answer), int(c.maxSend.Load()))
	c.mu.Lock()
	r := c.begin(pdu.TextResp)
	r.SetITT(h.ITT())
	r.SetLUN(h.LUN())
	flags, ttt := byte(pdu.Final), pdu.Reserved
	if c.answer = append([]byte(nil), answer[n:]...); len(c.answer) > 0 {
		flags = pdu.Continue
	} else if !final {
		flags = 0
	}
	if flags != pdu.Final {
		ttt = c.transferTag()
	}
	c.answerTTT = ttt
	r.SetFlags(flags)
	r.SetTTT(ttt)
	c.status(r)
	c.end(r, answer[:n:n], false)
	c.charge(n + pdu.HeaderLen)
	c.unlockAndSend()
	return nil
}

// mayLogIn reports whether a normal session of the initiator would be admitted, now or, as far as
// this node knows, soon.
func (c *conn) mayLogIn() bool {
	h := c.srv.hosts.Admit(c.id.Initiator)
	return h.LUNs || !h.Sure
}
