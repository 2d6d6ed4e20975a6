package attach

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gemel-storage/gemel/internal/stripe"
)

// Leg is one LUN of a striped volume. All legs are LUNs of one target.
type Leg struct {
	LUN  uint16 `json:"lun"`  // 0..MaxLUN
	WWID string `json:"wwid"` // NAA designator, lower-case hexadecimal
}

// Keys of the publish context of a striped volume, instead of KeyLUN and KeyWWID: a node plugin
// that knows no striped volumes rejects it, and does not take one LUN for the volume.
const (
	KeyStripe = "stripe" // bytes of a stripe
	KeyLegs   = "legs"   // LUN:WWID of each LUN, in their order, separated by commas
)

// Striped reports whether the volume is striped over several LUNs.
func (a Attachment) Striped() bool { return a.Stripe != 0 }

// LUNs of the volume, in their order: one unless it is striped.
func (a Attachment) LUNs() []Leg {
	if a.Striped() {
		return a.Legs
	}
	return []Leg{{a.LUN, a.WWID}}
}

// Layout of a striped volume.
func (a Attachment) Layout() stripe.Layout { return stripe.Layout{Count: len(a.Legs), Size: a.Stripe} }

// Serves reports whether every LUN of the volume has a path that carries I/O.
func (s Status) Serves() bool {
	current := map[int]bool{}
	for _, p := range s.Paths {
		if p.Current {
			current[p.Leg] = true
		}
	}
	return len(current) == len(s.Attachment.LUNs())
}

func (a Attachment) legsContext() string {
	legs := make([]string, len(a.Legs))
	for i, l := range a.Legs {
		legs[i] = fmt.Sprintf("%d:%s", l.LUN, l.WWID)
	}
	return strings.Join(legs, ",")
}

// parseLegs reads KeyStripe and KeyLegs. Two legs that are one LUN are refused: half of the volume
// would be written over the other half.
func (a *Attachment) parseLegs(m map[string]string) (err error) {
	if a.Stripe, err = strconv.ParseInt(m[KeyStripe], 10, 64); err != nil || a.Stripe == 0 {
		return fmt.Errorf("%w: publish context: %s %q is not a number of bytes", ErrInvalid, KeyStripe, m[KeyStripe])
	}
	seen := map[string]bool{}
	for i, s := range strings.Split(m[KeyLegs], ",") {
		number, wwid, ok := strings.Cut(s, ":")
		lun, err := parseLUN(number)
		switch {
		case err != nil || !ok || wwid == "":
			return fmt.Errorf("%w: publish context: %s: leg %d is %q, and must be LUN:WWID with a LUN in 0..%d", ErrInvalid, KeyLegs, i, s, MaxLUN)
		case seen[number] || seen[wwid]:
			return fmt.Errorf("%w: publish context: %s: leg %d is LUN %s with WWID %s, which another leg is as well", ErrInvalid, KeyLegs, i, number, wwid)
		}
		seen[number], seen[wwid] = true, true
		a.Legs = append(a.Legs, Leg{lun, wwid})
	}
	if err := a.Layout().Check(); err != nil {
		return fmt.Errorf("%w: publish context: %s and %s: %w", ErrInvalid, KeyStripe, KeyLegs, err)
	}
	return nil
}

func parseLUN(s string) (uint16, error) {
	lun, err := strconv.ParseUint(s, 10, 16)
	if err == nil && lun > MaxLUN {
		err = strconv.ErrRange
	}
	return uint16(lun), err
}
