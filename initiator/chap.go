package initiator

import (
	"crypto/md5" //nolint:gosec // CHAP_A=5 is what every target must support (RFC 7143 §12.1.3)
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // CHAP_A=6
	"crypto/sha256"
	"crypto/sha3"
	"crypto/subtle"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// maxChallenge bounds binary values of the peer, in bytes (RFC 7143 §12.1.3).
const maxChallenge = 1024

// chapAlgorithms is what is offered by default, best first: SHA-256 and MD5, which every target has
// (RFC 7143 §12.1.3, IANA's PPP authentication algorithm numbers). SHA3-256 (8) and SHA-1 (6) can
// be asked for.
var chapAlgorithms = []int{7, 5}

func chapHash(algorithm string) func() hash.Hash {
	switch algorithm {
	case "5":
		return md5.New
	case "6":
		return sha1.New
	case "7":
		return sha256.New
	case "8":
		return func() hash.Hash { return sha3.New256() }
	}
	return nil
}

// chapResponse is H(id || secret || challenge) (RFC 1994 §4.1).
func chapResponse(h func() hash.Hash, id byte, secret string, challenge []byte) []byte {
	d := h()
	d.Write([]byte{id})
	d.Write([]byte(secret))
	d.Write(challenge)
	return d.Sum(nil)
}

// chapExchange is the initiator's side of the security stage.
type chapExchange struct {
	auth, mutual *CHAP
	offer        []int // algorithms, best first
	hash         func() hash.Hash
	id           byte   // ours, for the target to answer
	challenge    []byte // ours
	answered     bool   // our response has been sent
	verified     bool   // the target has proved itself
}

// step answers a target that stays in the security stage. transit asks to leave it.
func (x *chapExchange) step(keys pdu.Text) (send pdu.Text, transit bool, err error) {
	if x.auth == nil {
		return nil, true, nil // the target wants another round
	}
	_, challenged := keys.Get("CHAP_C")
	method, _ := keys.Get("AuthMethod")
	switch {
	case challenged && !x.answered:
		send, err = x.reply(keys)
		return send, true, err
	case x.answered:
		if _, ok := keys.Get("CHAP_R"); ok && x.mutual != nil && !x.verified {
			err = x.verify(keys)
		}
		return nil, true, err
	case method == "CHAP":
		send.Add("CHAP_A", x.list())
		return send, false, nil
	}
	return nil, false, fmt.Errorf("%w: the target does not accept CHAP (AuthMethod=%.32q)", ErrAuth, method)
}

func (x *chapExchange) list() string {
	s := make([]string, len(x.offer))
	for i, a := range x.offer {
		s[i] = strconv.Itoa(a)
	}
	return strings.Join(s, ",")
}

// finished judges the answer with which the target left the security stage.
func (x *chapExchange) finished(keys pdu.Text) error {
	switch {
	case x.auth == nil:
		return nil
	case !x.answered:
		return fmt.Errorf("%w: the target skipped CHAP", ErrAuth)
	case x.mutual != nil && !x.verified:
		return x.verify(keys)
	}
	return nil
}

// reply answers the target's CHAP_A, CHAP_I, CHAP_C.
func (x *chapExchange) reply(keys pdu.Text) (send pdu.Text, err error) {
	algorithm, _ := keys.Get("CHAP_A")
	if _, ok := pdu.Choose(x.list(), algorithm); ok {
		x.hash = chapHash(algorithm)
	}
	if x.hash == nil {
		return nil, fmt.Errorf("%w: the target chose CHAP algorithm %.8q, which was not offered", ErrAuth, algorithm)
	}
	ident, _ := keys.Get("CHAP_I")
	id, err := pdu.ParseNumber(ident, 0, 255)
	if err != nil {
		return nil, fmt.Errorf("%w: CHAP_I: %w", ErrAuth, err)
	}
	c, _ := keys.Get("CHAP_C")
	challenge, err := pdu.DecodeBinary(c, maxChallenge)
	if err != nil {
		return nil, fmt.Errorf("%w: CHAP_C: %w", ErrAuth, err)
	}
	send.Add("CHAP_N", x.auth.User)
	send.Add("CHAP_R", pdu.EncodeBinary(chapResponse(x.hash, byte(id), x.auth.Secret, challenge)))
	x.answered = true
	if x.mutual == nil {
		return send, nil
	}
	// Fresh per login, so that a response is good only once.
	var b [17]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAuth, err)
	}
	x.id, x.challenge = b[16], b[:16]
	send.Add("CHAP_I", strconv.Itoa(int(x.id)))
	send.Add("CHAP_C", pdu.EncodeBinary(x.challenge))
	return send, nil
}

// verify checks the target's CHAP_N and CHAP_R. A target that reflects our own response is caught
// because the secrets differ (checkCHAP).
func (x *chapExchange) verify(keys pdu.Text) error {
	name, _ := keys.Get("CHAP_N")
	r, _ := keys.Get("CHAP_R")
	got, err := pdu.DecodeBinary(r, maxChallenge)
	want := chapResponse(x.hash, x.id, x.mutual.Secret, x.challenge)
	sameName := subtle.ConstantTimeCompare([]byte(name), []byte(x.mutual.User))
	if err != nil || subtle.ConstantTimeCompare(got, want)&sameName != 1 {
		return fmt.Errorf("%w: the target failed mutual CHAP as %q: check the mutual secret", ErrAuth, x.mutual.User)
	}
	x.verified = true
	return nil
}
