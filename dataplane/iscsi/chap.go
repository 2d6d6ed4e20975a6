package iscsi

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strconv"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// CHAP algorithms (RFC 7143 §12.1.3; 7 is IANA's number for SHA-256 in PPP authentication).
const (
	chapMD5    = 5
	chapSHA256 = 7
)

// strongCHAP are the algorithms among which the initiator's order decides.
var strongCHAP = []string{strconv.Itoa(chapSHA256)}

const chapChallengeLen = 16 // bytes we send; at most 1024 are accepted

var errAuth = errors.New("authentication failed")

// chap is the target's side of one CHAP exchange.
type chap struct {
	creds     Credentials
	algorithm int
	id        byte
	challenge []byte
}

// chapDigest is the response of RFC 1994 §4.1: hash(identifier | secret | challenge).
func chapDigest(algorithm int, id byte, secret string, challenge []byte) []byte {
	in := append(append([]byte{id}, secret...), challenge...)
	if algorithm == chapSHA256 {
		sum := sha256.Sum256(in)
		return sum[:]
	}
	sum := md5.Sum(in) // RFC 7143 requires every implementation to have MD5
	return sum[:]
}

// start answers the initiator's list of algorithms with a fresh challenge. The first of the list
// that this target knows is taken (RFC 7143 §6.2.1), but MD5, wherever it is in the list, only when
// nothing stronger is offered: docs/decisions/0043-chap-order.md.
func (c *chap) start(offered string, out *pdu.Text) error {
	if c.challenge != nil {
		return fmt.Errorf("%w: CHAP_A twice", errAuth)
	}
	a, ok := pdu.Choose(offered, strongCHAP...)
	if !ok {
		a, ok = pdu.Choose(offered, strconv.Itoa(chapMD5))
	}
	if !ok {
		return fmt.Errorf("%w: no common CHAP algorithm", errAuth)
	}
	c.algorithm, _ = strconv.Atoi(a) // one of ours
	c.challenge = make([]byte, chapChallengeLen+1)
	rand.Read(c.challenge) // never fails since Go 1.24
	c.id, c.challenge = c.challenge[chapChallengeLen], c.challenge[:chapChallengeLen]
	out.Add("CHAP_A", strconv.Itoa(c.algorithm))
	out.Add("CHAP_I", strconv.Itoa(int(c.id)))
	out.Add("CHAP_C", pdu.EncodeBinary(c.challenge))
	return nil
}

// finish checks the initiator's response and, when it sent a challenge of its own, answers that.
func (c *chap) finish(in pdu.Text, out *pdu.Text) error {
	name, ok1 := in.Get("CHAP_N")
	r, ok2 := in.Get("CHAP_R")
	if c.challenge == nil || !ok1 || !ok2 {
		return fmt.Errorf("%w: the CHAP keys are out of order", errAuth)
	}
	response, err := pdu.DecodeBinary(r, 64)
	if err != nil {
		return fmt.Errorf("%w: CHAP_R: %w", errAuth, err)
	}
	want := chapDigest(c.algorithm, c.id, c.creds.Secret, c.challenge)
	okName := subtle.ConstantTimeCompare([]byte(name), []byte(c.creds.User))
	if subtle.ConstantTimeCompare(response, want)&okName != 1 || c.creds.Secret == "" {
		return errAuth
	}
	ids, hasID := in.Get("CHAP_I")
	cs, hasC := in.Get("CHAP_C")
	if !hasID && !hasC {
		return nil
	}
	id, err := pdu.ParseNumber(ids, 0, 255)
	if err != nil || !hasC {
		return fmt.Errorf("%w: CHAP_I or CHAP_C", errAuth)
	}
	theirs, err := pdu.DecodeBinary(cs, 1024)
	if err != nil {
		return fmt.Errorf("%w: CHAP_C: %w", errAuth, err)
	}
	switch {
	case subtle.ConstantTimeCompare(theirs, c.challenge) == 1:
		// The initiator sent our own challenge back, to get our answer to it (RFC 7143 §12.1.3).
		return fmt.Errorf("%w: reflected challenge", errAuth)
	case c.creds.MutualSecret == "":
		return fmt.Errorf("%w: the initiator requests mutual CHAP, but no mutual secret is set", errAuth)
	case c.creds.MutualSecret == c.creds.Secret:
		return fmt.Errorf("%w: both directions have the same secret, which RFC 7143 does not allow", errAuth)
	}
	out.Add("CHAP_N", c.creds.MutualUser)
	out.Add("CHAP_R", pdu.EncodeBinary(chapDigest(c.algorithm, byte(id), c.creds.MutualSecret, theirs)))
	return nil
}
