package pdu

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrValue is wrapped by every error about a value's form or range.
var ErrValue = errors.New("bad value")

// ParseNumber reads a decimal or 0x-prefixed number in [lo, hi] (RFC 7143 §6.1 numerical-value).
func ParseNumber(v string, lo, hi uint32) (uint32, error) {
	base, digits := 10, v
	if len(v) > 2 && v[0] == '0' && (v[1] == 'x' || v[1] == 'X') {
		base, digits = 16, v[2:]
	}
	if digits == "" || digits[0] == '+' || digits[0] == '-' || strings.Contains(digits, "_") {
		return 0, fmt.Errorf("%w: %q is not a number", ErrValue, v)
	}
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %q is not a number", ErrValue, v)
	}
	if uint32(n) < lo || uint32(n) > hi {
		return 0, fmt.Errorf("%w: %s not in %d..%d", ErrValue, v, lo, hi)
	}
	return uint32(n), nil
}

// ParseBool reads Yes or No.
func ParseBool(v string) (bool, error) {
	switch v {
	case "Yes":
		return true, nil
	case "No":
		return false, nil
	}
	return false, fmt.Errorf("%w: %q is neither Yes nor No", ErrValue, v)
}

// Bool is Yes or No.
func Bool(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

// DecodeBinary reads a binary value, 0x hexadecimal or 0b base64 (RFC 7143 §6.1), of at most limit
// bytes.
func DecodeBinary(v string, limit int) ([]byte, error) {
	if len(v) < 3 || v[0] != '0' {
		return nil, fmt.Errorf("%w: no 0x or 0b prefix", ErrValue)
	}
	body := v[2:]
	if len(body) > 2*limit+4 {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrValue, limit)
	}
	var out []byte
	var err error
	switch v[1] {
	case 'x', 'X':
		if len(body)%2 == 1 {
			body = "0" + body // a leading zero digit may be left out
		}
		out, err = hex.DecodeString(body)
	case 'b', 'B':
		out, err = base64.RawStdEncoding.DecodeString(strings.TrimRight(body, "="))
	default:
		return nil, fmt.Errorf("%w: no 0x or 0b prefix", ErrValue)
	}
	if err != nil {
		// The decoder's error may quote the value, which may be a secret's digest.
		return nil, fmt.Errorf("%w: not hexadecimal or base64", ErrValue)
	}
	if len(out) == 0 || len(out) > limit {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrValue, len(out), limit)
	}
	return out, nil
}

// EncodeBinary writes a binary value in hexadecimal.
func EncodeBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

// Choose picks the first element of the offered list that is supported (RFC 7143 §6.2.1: the offer
// is in the order of the proposer's preference). ok is false when there is none.
func Choose(offered string, supported ...string) (choice string, ok bool) {
	for rest, more := offered, true; more; {
		var e string
		e, rest, more = strings.Cut(rest, ",")
		for _, s := range supported {
			if e == s {
				return s, true
			}
		}
	}
	return "", false
}

// ValidName reports whether s is an iSCSI name in normal form: iqn., eui. or naa., at most 223
// bytes, only the characters that survive stringprep as ASCII: lower-case letters, digits, '-',
// '.', ':' (RFC 7143 §4.2.7, RFC 3722). Names are compared byte by byte, so lower the case first.
func ValidName(s string) bool {
	if len(s) > 223 || len(s) < 5 {
		return false
	}
	if p := s[:4]; p != "iqn." && p != "eui." && p != "naa." {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != ':' {
			return false
		}
	}
	return true
}
