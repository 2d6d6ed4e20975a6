package pdu

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Limits of login and text negotiation (RFC 7143 §6.1, §6.2).
const (
	MaxKey       = 63       // bytes of a key
	MaxSimple    = 255      // bytes of one value, or of one element of a list
	MaxValue     = 8192     // bytes of a list or of a binary value as encoded
	MaxTextTotal = 64 << 10 // bytes of all the text of one negotiation request, over all its PDUs
	MaxPairs     = 512      // keys in one request
)

// Errors of ParseText.
var (
	ErrTextTooLong = errors.New("text too long")
	ErrTextSyntax  = errors.New("malformed key=value text")
)

// Pair is one key=value.
type Pair struct{ Key, Value string }

// Text is the key=value pairs of a login or text PDU, in order. Keys may repeat (SendTargets
// answers do).
type Text []Pair

// ParseText splits a complete text (that is, after joining PDUs with the C bit) into pairs. Keys
// and values that exceed their limits are errors, as is text that does not end with a NUL. The
// result does not alias data.
func ParseText(data []byte) (Text, error) {
	if len(data) > MaxTextTotal {
		return nil, fmt.Errorf("%w: %d bytes", ErrTextTooLong, len(data))
	}
	var t Text
	for len(data) > 0 {
		end := bytes.IndexByte(data, 0)
		if end < 0 {
			return nil, fmt.Errorf("%w: no NUL at the end", ErrTextSyntax)
		}
		item := data[:end]
		data = data[end+1:]
		if end == 0 {
			continue // some initiators send extra NULs as padding inside the segment
		}
		eq := bytes.IndexByte(item, '=')
		switch {
		case eq <= 0:
			return nil, fmt.Errorf("%w: no key", ErrTextSyntax)
		case eq > MaxKey:
			return nil, fmt.Errorf("%w: key of %d bytes", ErrTextTooLong, eq)
		case !validKey(item[:eq]):
			return nil, fmt.Errorf("%w: key %q", ErrTextSyntax, item[:eq])
		case len(t) == MaxPairs:
			return nil, fmt.Errorf("%w: more than %d keys", ErrTextTooLong, MaxPairs)
		}
		p := Pair{Key: string(item[:eq]), Value: string(item[eq+1:])}
		if err := checkValue(p); err != nil {
			return nil, err
		}
		t = append(t, p)
	}
	return t, nil
}

// validKey follows the standard-label of RFC 7143 §6.1, with the characters that X- and X# names
// add.
func validKey(k []byte) bool {
	for _, c := range k {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte(".-+@_#:", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func checkValue(p Pair) error {
	if len(p.Value) > MaxValue {
		return fmt.Errorf("%w: %s has %d bytes", ErrTextTooLong, p.Key, len(p.Value))
	}
	switch p.Key {
	case "CHAP_C", "CHAP_R", "SPKM_REQ", "SRP_A", "SRP_B", "SRP_s", "SRP_M", "SRP_HM", "KRB_AP_REQ", "KRB_AP_REP":
		return nil // binary values
	}
	for rest, more := p.Value, len(p.Value) > MaxSimple; more; {
		var element string
		element, rest, more = strings.Cut(rest, ",")
		if len(element) > MaxSimple {
			return fmt.Errorf("%w: %s has an element of %d bytes", ErrTextTooLong, p.Key, len(element))
		}
	}
	return nil
}

// Get is the first value of key.
func (t Text) Get(key string) (string, bool) {
	for _, p := range t {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// Repeated is a key that occurs twice, or "" (a protocol error in login, RFC 7143 §6.2).
func (t Text) Repeated() string {
	seen := make(map[string]bool, len(t))
	for _, p := range t {
		if seen[p.Key] {
			return p.Key
		}
		seen[p.Key] = true
	}
	return ""
}

// Add appends a pair.
func (t *Text) Add(key, value string) { *t = append(*t, Pair{key, value}) }

// Append writes the pairs to b as a data segment, without padding.
func (t Text) Append(b []byte) []byte {
	for _, p := range t {
		b = append(b, p.Key...)
		b = append(b, '=')
		b = append(b, p.Value...)
		b = append(b, 0)
	}
	return b
}
