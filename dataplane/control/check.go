package control

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// invalid is an error that begins with the name of the field.
func invalid(field, format string, args ...any) error {
	return status.Error(codes.InvalidArgument, field+": "+fmt.Sprintf(format, args...))
}

// firstStatus keeps the first of joined status errors.
func firstStatus(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()[0]
	}
	return err
}

// checkUUID wants the canonical form, which file names and designators are made from.
func checkUUID(field, s string) error {
	if u, err := uuid.Parse(s); err != nil || u.String() != s {
		return invalid(field, "%q is not a uuid in canonical lower-case form", s)
	}
	return nil
}

func checkName(s string) error {
	if s == "" || len(s) > meta.MaxName {
		return invalid("name", "%q must have 1 to %d bytes", s, meta.MaxName)
	}
	return nil
}

func checkLabels(l map[string]string) error {
	if len(l) > meta.MaxLabels {
		return invalid("labels", "%d labels exceed the limit of %d", len(l), meta.MaxLabels)
	}
	for k, v := range l {
		if len(k)+len(v) > meta.MaxLabelSize {
			return invalid("labels", "key and value of %q have more than %d bytes", k, meta.MaxLabelSize)
		}
	}
	return nil
}

func checkSize(size uint64) error {
	switch {
	case size == 0 || size%meta.SizeStep != 0:
		return invalid("size_bytes", "%d is not a positive multiple of %d", size, meta.SizeStep)
	case size > meta.MaxSize:
		return invalid("size_bytes", "%d exceeds the limit of %d", size, int64(meta.MaxSize))
	}
	return nil
}

// checkNode wants a node of the pair, or nothing.
func checkNode(field, s string) error {
	if s == "" {
		return nil
	}
	if _, err := pair.ParseNode(s); err != nil {
		return invalid(field, "%v", err)
	}
	return nil
}

// checkPlace checks where a LUN is to be owned.
func checkPlace(req interface {
	GetPreferredNode() string
	GetPinnedNode() string
}) error {
	preferred, pin := req.GetPreferredNode(), req.GetPinnedNode()
	if err := checkNode("preferred_node", preferred); err != nil {
		return err
	}
	if pin == "" || pin == meta.NoPin {
		return nil
	}
	if _, err := pair.ParseNode(pin); err != nil {
		return invalid("pinned_node", "%v, or %s for no pin", err, meta.NoPin)
	}
	if preferred != "" && preferred != pin {
		return invalid("preferred_node", "is %s, but pinned_node is %s: leave preferred_node out", preferred, pin)
	}
	return nil
}

// checkTier wants a tier, "none" or nothing.
func checkTier(tier string) error {
	switch tier {
	case "", meta.NoPin, meta.TierFast, meta.TierCapacity:
		return nil
	}
	return invalid("pinned_tier", "%q must be %s, %s, or %s for no pin", tier, meta.TierFast, meta.TierCapacity, meta.NoPin)
}

// checkGroup wants the name of a group, or nothing.
func checkGroup(s string) error {
	if len(s) > meta.MaxGroup {
		return invalid("spread_group", "the name has %d bytes, at most %d are possible", len(s), meta.MaxGroup)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return invalid("spread_group", "%q is no name: it has control characters, or is not UTF-8", s)
	}
	return nil
}

// checkNear wants a node of the pair and what a host may have in common with it.
func checkNear(n *targetv1.Near) error {
	switch {
	case n == nil:
		return nil
	case n.Node != "a" && n.Node != "b":
		return invalid("near.node", "%q is not a node of the pair: a or b", n.Node)
	case n.By != meta.NearWorker && n.By != meta.NearZone && n.By != meta.NearRegion:
		return invalid("near.by", "%q is not what a host and a node have in common: worker, zone or region", n.By)
	}
	return nil
}

func checkCHAP(c *targetv1.CHAP) error {
	if c == nil || c.User == "" && c.Secret == "" && c.MutualUser == "" && c.MutualSecret == "" {
		return nil
	}
	length := func(field, s string) error {
		if len(s) < 12 || len(s) > 255 {
			return invalid(field, "a CHAP secret must have 12 to 255 bytes")
		}
		return nil
	}
	if c.User == "" {
		return invalid("chap.user", "is required with a secret")
	}
	if err := length("chap.secret", c.Secret); err != nil {
		return err
	}
	if c.MutualUser == "" && c.MutualSecret == "" {
		return nil
	}
	if c.MutualUser == "" {
		return invalid("chap.mutual_user", "is required with mutual_secret")
	}
	if c.MutualSecret == c.Secret {
		return invalid("chap.mutual_secret", "must differ from secret (RFC 7143 section 12.1.3)")
	}
	return length("chap.mutual_secret", c.MutualSecret)
}
