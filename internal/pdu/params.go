package pdu

import (
	"fmt"
	"strconv"
)

// Params are the operational parameters of a session with one connection (RFC 7143 §13). Sizes are
// bytes, times seconds.
type Params struct {
	HeaderDigest        bool // CRC32C
	DataDigest          bool
	MaxRecv             uint32 // MaxRecvDataSegmentLength this side declares
	MaxSend             uint32 // MaxRecvDataSegmentLength the peer declared
	MaxBurst            uint32
	FirstBurst          uint32
	InitialR2T          bool
	ImmediateData       bool
	MaxOutstandingR2T   uint32
	MaxConnections      uint32
	DataPDUInOrder      bool
	DataSequenceInOrder bool
	DefaultTime2Wait    uint32
	DefaultTime2Retain  uint32
	ErrorRecoveryLevel  uint32
}

// DefaultParams are the values in force for what is not negotiated.
func DefaultParams() Params {
	return Params{
		MaxRecv: 8192, MaxSend: 8192, MaxBurst: 262144, FirstBurst: 65536, InitialR2T: true, ImmediateData: true,
		MaxOutstandingR2T: 1, MaxConnections: 1, DataPDUInOrder: true, DataSequenceInOrder: true,
		DefaultTime2Wait: 2, DefaultTime2Retain: 20,
	}
}

// kind is how two offers become one value.
type kind byte

const (
	kindMin kind = iota
	kindMax
	kindAnd
	kindOr
	kindDigest
	kindDeclare
)

// spec describes one operational key: its result function and its range.
type spec struct {
	kind   kind
	lo, hi uint32
	num    func(*Params) *uint32
	flag   func(*Params) *bool
}

var specs = map[string]spec{
	"HeaderDigest":             {kind: kindDigest, flag: func(p *Params) *bool { return &p.HeaderDigest }},
	"DataDigest":               {kind: kindDigest, flag: func(p *Params) *bool { return &p.DataDigest }},
	"MaxRecvDataSegmentLength": {kind: kindDeclare, lo: 512, hi: MaxDataSegment, num: func(p *Params) *uint32 { return &p.MaxSend }},
	"MaxBurstLength":           {kind: kindMin, lo: 512, hi: MaxDataSegment, num: func(p *Params) *uint32 { return &p.MaxBurst }},
	"FirstBurstLength":         {kind: kindMin, lo: 512, hi: MaxDataSegment, num: func(p *Params) *uint32 { return &p.FirstBurst }},
	"InitialR2T":               {kind: kindOr, flag: func(p *Params) *bool { return &p.InitialR2T }},
	"ImmediateData":            {kind: kindAnd, flag: func(p *Params) *bool { return &p.ImmediateData }},
	"MaxOutstandingR2T":        {kind: kindMin, lo: 1, hi: 65535, num: func(p *Params) *uint32 { return &p.MaxOutstandingR2T }},
	"MaxConnections":           {kind: kindMin, lo: 1, hi: 65535, num: func(p *Params) *uint32 { return &p.MaxConnections }},
	"DataPDUInOrder":           {kind: kindOr, flag: func(p *Params) *bool { return &p.DataPDUInOrder }},
	"DataSequenceInOrder":      {kind: kindOr, flag: func(p *Params) *bool { return &p.DataSequenceInOrder }},
	"DefaultTime2Wait":         {kind: kindMax, lo: 0, hi: 3600, num: func(p *Params) *uint32 { return &p.DefaultTime2Wait }},
	"DefaultTime2Retain":       {kind: kindMin, lo: 0, hi: 3600, num: func(p *Params) *uint32 { return &p.DefaultTime2Retain }},
	"ErrorRecoveryLevel":       {kind: kindMin, lo: 0, hi: 2, num: func(p *Params) *uint32 { return &p.ErrorRecoveryLevel }},
}

// Known reports whether key is an operational key of RFC 7143 §13 that Negotiate handles.
func Known(key string) bool { _, ok := specs[key]; return ok }

// Irrelevant reports whether a known key has no meaning in a discovery session (RFC 7143 §13,
// "irrelevant when SessionType=Discovery"); its answer is then "Irrelevant".
func Irrelevant(key string) bool {
	switch key {
	case "MaxBurstLength", "FirstBurstLength", "InitialR2T", "ImmediateData", "MaxOutstandingR2T", "MaxConnections",
		"DataPDUInOrder", "DataSequenceInOrder":
		return true
	}
	return false
}

// Respond is the responder's half: it joins the offer to own, this side's wish, stores the result
// in p and returns the answer to send ("" for a declaration, which has none). A value out of its
// range is an error, to be answered with "Reject". Digests are accepted in the order of the offer:
// own true permits CRC32C, but None wins when it stands first.
func (p *Params) Respond(key, offered string, own *Params) (string, error) {
	s, ok := specs[key]
	if !ok {
		return "", fmt.Errorf("%w: key %s", ErrValue, key)
	}
	switch s.kind {
	case kindDigest:
		supported := []string{"None", "CRC32C"}
		if !*s.flag(own) {
			supported = supported[:1]
		}
		c, ok := Choose(offered, supported...)
		if !ok {
			return "", fmt.Errorf("%w: %s=%s", ErrValue, key, offered)
		}
		*s.flag(p) = c == "CRC32C"
		return c, nil
	case kindAnd, kindOr:
		b, err := ParseBool(offered)
		if err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
		if s.kind == kindAnd {
			b = b && *s.flag(own)
		} else {
			b = b || *s.flag(own)
		}
		*s.flag(p) = b
		return Bool(b), nil
	}
	n, err := ParseNumber(offered, s.lo, s.hi)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	switch s.kind {
	case kindMin:
		n = min(n, *s.num(own))
	case kindMax:
		n = max(n, *s.num(own))
	}
	*s.num(p) = n
	if s.kind == kindDeclare {
		return "", nil
	}
	return strconv.FormatUint(uint64(n), 10), nil
}

// Offer adds own, the proposer's wishes, to t. Keys that equal the protocol's default are offered
// too, so that the outcome does not hang on the responder's idea of a default. In a discovery
// session only the relevant ones are.
func (own *Params) Offer(t *Text, discovery bool) {
	digest := func(on bool) string {
		if on {
			return "CRC32C,None"
		}
		return "None"
	}
	for _, key := range []string{"HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength", "InitialR2T", "ImmediateData",
		"MaxBurstLength", "FirstBurstLength", "MaxOutstandingR2T", "MaxConnections", "DataPDUInOrder",
		"DataSequenceInOrder", "DefaultTime2Wait", "DefaultTime2Retain", "ErrorRecoveryLevel"} {
		if discovery && Irrelevant(key) {
			continue
		}
		s := specs[key]
		switch {
		case key == "MaxRecvDataSegmentLength":
			t.Add(key, strconv.FormatUint(uint64(own.MaxRecv), 10))
		case s.kind == kindDigest:
			t.Add(key, digest(*s.flag(own)))
		case s.flag != nil:
			t.Add(key, Bool(*s.flag(own)))
		default:
			t.Add(key, strconv.FormatUint(uint64(*s.num(own)), 10))
		}
	}
}

// Accept is the proposer's half: it checks an answer to what own offered and stores it in p. An
// answer that the offer does not permit is an error (RFC 7143 §6.2), except "Irrelevant", which
// leaves the default.
func (p *Params) Accept(key, answer string, own *Params) error {
	s, ok := specs[key]
	switch {
	case !ok:
		return fmt.Errorf("%w: answer to %s, which was not offered", ErrValue, key)
	case answer == "Irrelevant":
		return nil
	case answer == "Reject" || answer == "NotUnderstood":
		return fmt.Errorf("%w: peer answers %s=%s", ErrValue, key, answer)
	}
	switch s.kind {
	case kindDigest:
		if answer != "None" && (answer != "CRC32C" || !*s.flag(own)) {
			return fmt.Errorf("%w: %s=%s", ErrValue, key, answer)
		}
		*s.flag(p) = answer == "CRC32C"
		return nil
	case kindAnd, kindOr:
		b, err := ParseBool(answer)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if mine := *s.flag(own); s.kind == kindAnd && b && !mine || s.kind == kindOr && !b && mine {
			return fmt.Errorf("%w: %s=%s against our %s", ErrValue, key, answer, Bool(mine))
		}
		*s.flag(p) = b
		return nil
	}
	n, err := ParseNumber(answer, s.lo, s.hi)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if mine := *s.num(own); s.kind == kindMin && n > mine || s.kind == kindMax && n < mine {
		return fmt.Errorf("%w: %s=%d against our %d", ErrValue, key, n, mine)
	}
	*s.num(p) = n
	return nil
}
