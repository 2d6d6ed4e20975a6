package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/internal/stripe"
)

// naa is an NAA designator (SPC-4 §7.8.6.6): 8 bytes, or 16 with the extension. The zero value is
// none.
type naa struct {
	b [16]byte
	n int
}

// parseNAA reads hexadecimal digits.
func parseNAA(s string) (id naa, err error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 8 && len(raw) != 16 {
		return naa{}, fmt.Errorf("%q is not an NAA designator of 16 or 32 hexadecimal digits", s)
	}
	id.n = copy(id.b[:], raw)
	return id, nil
}

func (i naa) String() string { return hex.EncodeToString(i.b[:i.n]) }
func (i naa) known() bool    { return i.n > 0 }

// wwid is the name that multipath-tools know the LUN by: the designator after its type, 3.
func (i naa) wwid() string { return "3" + i.String() }

// The prefixes that the kernel and multipath-tools put in front of a designator.
const (
	sysfsPrefix = "naa."
	uuidPrefix  = "mpath-"
)

// stripedPrefix begins the UUIDs of our striped maps.
const stripedPrefix = "gemel-striped-"

// stripedUUID is that of the striped map of a volume. The kernel takes 128 characters, and a
// volume's ID may have as many.
func stripedUUID(volume string) string {
	h := sha256.Sum256([]byte(volume))
	return stripedPrefix + hex.EncodeToString(h[:16])
}

// stripedName is what people see of it in /dev/mapper: the volume, unless that is too long.
func stripedName(volume string) string {
	if name := "gemel-" + volume; len(name) < 128 {
		return name
	}
	return stripedUUID(volume)
}

// parseUUID tells which LUN a device-mapper device is the map of; not ok: of none.
func parseUUID(uuid string) (id naa, ok bool) {
	s, ok := strings.CutPrefix(uuid, uuidPrefix+"3")
	if !ok {
		return naa{}, false
	}
	id, err := parseNAA(s)
	return id, err == nil
}

// hctl is a SCSI address: host, channel, target, LUN in the kernel's own numbering.
type hctl struct {
	host, channel, target int
	lun                   uint64
}

func parseHCTL(s string) (a hctl, err error) {
	f := strings.Split(s, ":")
	if len(f) != 4 {
		return a, fmt.Errorf("%q is not a SCSI address", s)
	}
	for i, p := range []*int{&a.host, &a.channel, &a.target} {
		if *p, err = strconv.Atoi(f[i]); err != nil {
			return hctl{}, fmt.Errorf("%q is not a SCSI address", s)
		}
	}
	if a.lun, err = strconv.ParseUint(f[3], 10, 64); err != nil {
		return hctl{}, fmt.Errorf("%q is not a SCSI address", s)
	}
	return a, nil
}

func (a hctl) String() string { return fmt.Sprintf("%d:%d:%d:%d", a.host, a.channel, a.target, a.lun) }

// kernelLUN is how Linux numbers a LUN: its first two bytes on the wire as they are, which is
// peripheral device addressing below 256 and flat space addressing above (SAM-5 §4.7.5, §4.7.7).
func kernelLUN(lun uint16) uint64 {
	if lun < 256 {
		return uint64(lun)
	}
	return 0x4000 | uint64(lun)
}

// iqn is an iSCSI name in lower case (RFC 7143 §4.2.7.1: names are compared after case folding).
type iqn string

var validIQN = regexp.MustCompile(`^(iqn|eui|naa)\.[a-z0-9.:-]{1,219}$`)

func parseIQN(s string) (iqn, error) {
	l := strings.ToLower(s)
	if !validIQN.MatchString(l) {
		return "", fmt.Errorf("%q is not an iSCSI name", s)
	}
	return iqn(l), nil
}

// unit is an attachment in types that can be compared.
type unit struct {
	volume     string
	generation uint64
	initiator  iqn
	endpoint   // the first one
	further    []endpoint
	perPortal  int // sessions to each portal; 0: one
	leg            // unless it is striped
	legs       []leg
	stripe     int64 // bytes
}

// endpoint is a target, and how a worker logs in to it.
type endpoint struct {
	target  iqn
	portals []netip.AddrPort
	// How the sessions authenticate. chapKnown is false where the secrets were not given: a record
	// of a node that is there then stays.
	auth, mutual *attach.CHAP
	chapKnown    bool
}

// leg is a LUN of an attachment.
type leg struct {
	lun uint64 // the kernel's number
	id  naa
	at  int // in unit.endpoints
}

// count is the number of sessions to each portal.
func (u unit) count() int            { return max(u.perPortal, 1) }
func (u unit) striped() bool         { return len(u.legs) > 0 }
func (u unit) layout() stripe.Layout { return stripe.Layout{Count: len(u.legs), Size: u.stripe} }

// endpoints are the targets of an attachment: one, unless it is striped over several.
func (u unit) endpoints() []endpoint { return append([]endpoint{u.endpoint}, u.further...) }

// each has the LUNs of an attachment, in their order, as attachments of their own: one, unless it
// is striped.
func (u unit) each() []unit {
	if !u.striped() {
		return []unit{u}
	}
	ends := u.endpoints()
	out := make([]unit, len(u.legs))
	for i, l := range u.legs {
		out[i] = u
		out[i].leg, out[i].legs, out[i].stripe = l, nil, 0
		out[i].endpoint, out[i].further = ends[l.at], nil
	}
	return out
}

// reaches tells whether an attachment has a session to a portal, or should have.
func (u unit) reaches(portal netip.AddrPort) bool {
	return slices.ContainsFunc(u.endpoints(), func(e endpoint) bool { return slices.Contains(e.portals, portal) })
}

// know marks the secrets of all targets as given.
func (u *unit) know() {
	u.chapKnown = true
	for i := range u.further {
		u.further[i].chapKnown = true
	}
}

// parseLUNs checks the LUNs of an attachment. Two legs that are one LUN are refused: half of the
// volume would be written over the other half.
func (u *unit) parseLUNs(a attach.Attachment) error {
	key := attach.KeyWWID
	if a.Striped() {
		key = attach.KeyLegs
		if err := a.Layout().Check(); err != nil {
			return fmt.Errorf("%w: %s: %w", attach.ErrInvalid, key, err)
		}
	}
	for _, l := range a.LUNs() {
		if l.LUN > attach.MaxLUN {
			return fmt.Errorf("%w: %s: %d is above %d", attach.ErrInvalid, attach.KeyLUN, l.LUN, attach.MaxLUN)
		}
		if l.Target < 0 || l.Target > len(a.Others) {
			return fmt.Errorf("%w: %s: LUN %d is at target %d, and there are %d", attach.ErrInvalid, attach.KeyLegsAt, l.LUN, l.Target, len(a.Others)+1)
		}
		id, err := parseNAA(l.WWID)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", attach.ErrInvalid, key, err)
		}
		u.leg = leg{kernelLUN(l.LUN), id, l.Target}
		if !a.Striped() {
			return nil
		}
		if slices.ContainsFunc(u.legs, func(o leg) bool { return o.lun == u.lun && o.at == u.at || o.id == u.id }) {
			return fmt.Errorf("%w: %s: LUN %d with the WWID %s is named twice", attach.ErrInvalid, key, l.LUN, l.WWID)
		}
		u.legs = append(u.legs, u.leg)
	}
	u.leg, u.stripe = leg{}, a.Stripe
	return nil
}

// parse checks an attachment; the error is ErrInvalid.
func parse(a attach.Attachment) (u unit, err error) {
	bad := func(key string, err error) error { return fmt.Errorf("%w: %s: %w", attach.ErrInvalid, key, err) }
	u = unit{volume: a.VolumeID, generation: a.Generation, perPortal: a.Sessions}
	if a.Sessions < 0 || a.Sessions > attach.MaxSessions {
		return u, bad(attach.KeySessions, fmt.Errorf("%d is not in 1..%d", a.Sessions, attach.MaxSessions))
	}
	if err = u.parseLUNs(a); err != nil {
		return u, err
	}
	if u.initiator, err = parseIQN(a.HostIQN); err != nil {
		return u, bad(attach.KeyHost, err)
	}
	var seen []iqn
	var portals []netip.AddrPort
	for i, t := range a.Targets() {
		keyTarget, keyPortals := attach.KeyTarget, attach.KeyPortals
		if i > 0 {
			keyTarget, keyPortals = attach.KeyOthers, attach.KeyOthers
		}
		e := endpoint{auth: t.Auth, mutual: t.MutualAuth}
		if e.target, err = parseIQN(t.IQN); err != nil {
			return u, bad(keyTarget, err)
		}
		if slices.Contains(seen, e.target) {
			return u, bad(keyTarget, fmt.Errorf("%s is named twice", e.target))
		}
		seen = append(seen, e.target)
		if e.portals, err = parsePortals(t.Portals, portals); err != nil {
			return u, bad(keyPortals, err)
		}
		portals = append(portals, e.portals...)
		if err := checkCHAP(t.Auth, t.MutualAuth); err != nil {
			return u, err
		}
		if i == 0 {
			u.endpoint = e
			continue
		}
		u.further = append(u.further, e)
	}
	return u, nil
}

// parsePortals reads those of a target; before are those of the targets before it, since a session
// is recognised by its portal.
func parsePortals(texts []string, before []netip.AddrPort) (out []netip.AddrPort, err error) {
	for _, s := range texts {
		// Addresses only: a name could resolve to another node's portal tomorrow.
		p, err := netip.ParseAddrPort(s)
		if err != nil || p.Port() == 0 {
			return nil, fmt.Errorf("%q is not an address and a port", s)
		}
		p = netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
		if slices.Contains(out, p) || slices.Contains(before, p) {
			return nil, fmt.Errorf("%s is named twice", p)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("none")
	}
	return out, nil
}

// checkCHAP: credentials become lines of a file.
func checkCHAP(credentials ...*attach.CHAP) error {
	for _, c := range credentials {
		if c != nil && (strings.ContainsFunc(c.User+c.Secret, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(c.User) > 255 || len(c.Secret) > 255 ||
			strings.TrimSpace(c.User) != c.User || strings.TrimSpace(c.Secret) != c.Secret) {
			return fmt.Errorf("%w: secrets: a CHAP user or secret has control characters, outer blanks or more than 255 bytes", attach.ErrInvalid)
		}
	}
	return nil
}
