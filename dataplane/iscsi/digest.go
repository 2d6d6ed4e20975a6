package iscsi

import (
	"fmt"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// DigestPolicy is what a server requires of CRC32C digests. The initiator's list is in its order of
// preference and the first value that the target takes is the result (RFC 7143 §6.2.1), so a target
// that wants digests of initiators which prefer "None" has to insist on them.
type DigestPolicy byte

// Policies.
const (
	DigestAllow   DigestPolicy = iota // as the initiator prefers
	DigestRequire                     // a login without fails
	DigestRefuse                      // None only
)

// String is the policy's name in flags.
func (d DigestPolicy) String() string {
	return [...]string{"allow", "require", "refuse"}[d]
}

// Set implements pflag.Value and flag.Value.
func (d *DigestPolicy) Set(s string) error {
	for _, p := range []DigestPolicy{DigestAllow, DigestRequire, DigestRefuse} {
		if p.String() == s {
			*d = p
			return nil
		}
	}
	return fmt.Errorf("%q must be allow, require or refuse", s)
}

// Type implements pflag.Value.
func (d *DigestPolicy) Type() string { return "policy" }

// MarshalText and UnmarshalText are for configuration files.
func (d DigestPolicy) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a policy's name.
func (d *DigestPolicy) UnmarshalText(b []byte) error { return d.Set(string(b)) }

// offered narrows an initiator's list to what the policy takes.
func (d DigestPolicy) offered(list string) string {
	if d == DigestRequire {
		if _, ok := pdu.Choose(list, "CRC32C"); ok {
			return "CRC32C"
		}
	}
	return list
}

// satisfied is asked when the login is about to succeed.
func (l *login) satisfied() error {
	cfg, p := &l.c.srv.cfg, &l.c.params
	if l.c.discovery {
		return nil
	}
	if cfg.HeaderDigest == DigestRequire && !p.HeaderDigest {
		return fail(pdu.LoginInitiatorError, "this target requires HeaderDigest=CRC32C")
	}
	if cfg.DataDigest == DigestRequire && !p.DataDigest {
		return fail(pdu.LoginInitiatorError, "this target requires DataDigest=CRC32C")
	}
	return nil
}
