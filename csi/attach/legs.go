package attach

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gemel-storage/gemel/internal/stripe"
)

// Leg is one LUN of a striped volume.
type Leg struct {
	LUN  uint16 `json:"lun"`  // 0..MaxLUN
	WWID string `json:"wwid"` // NAA designator, lower-case hexadecimal
	// Target is the number of its target in Attachment.Targets.
	Target int `json:"target,omitempty"`
}

// Target is where LUNs of an attachment are.
type Target struct {
	IQN        string   `json:"iqn"`
	Portals    []string `json:"portals"`        // host:port of every node
	Pair       string   `json:"pair,omitempty"` // as Attachment.Pair
	Auth       *CHAP    `json:"-"`              // as Attachment.Auth
	MutualAuth *CHAP    `json:"-"`              // as Attachment.MutualAuth
}

// same ignores the credentials, as Attachment.Same does.
func (t Target) same(o Target) bool { return t.IQN == o.IQN && slices.Equal(t.Portals, o.Portals) }

// Refusal is an attachment, and a pair that rejects its credentials; empty: the attachment does not
// know the names of pairs, and has one target.
type Refusal struct{ VolumeID, Pair string }

// Keys of the publish context of a striped volume, instead of KeyLUN and KeyWWID: a node plugin
// that knows no striped volumes rejects it, and does not take one LUN for the volume.
const (
	KeyStripe = "stripe" // bytes of a stripe
	KeyLegs   = "legs"   // LUN:WWID of each LUN, in their order, separated by commas
	// KeyLegsAt replaces KeyLegs if the LUNs are on several targets: TARGET:LUN:WWID, where target
	// 0 is that of KeyTarget and the following ones are those of KeyOthers. A node plugin that
	// knows one target of a volume only rejects it.
	KeyLegsAt = "legsAt"
	KeyOthers = "otherTargets" // a JSON array of Target
)

// maxOthers is how many further targets the LUNs of a volume can have.
const maxOthers = stripe.MaxCount - 1

// Striped reports whether the volume is striped over several LUNs.
func (a Attachment) Striped() bool { return a.Stripe != 0 }

// LUNs of the volume, in their order: one unless it is striped.
func (a Attachment) LUNs() []Leg {
	if a.Striped() {
		return a.Legs
	}
	return []Leg{{LUN: a.LUN, WWID: a.WWID}}
}

// Targets of the volume: one, unless it is striped over several.
func (a Attachment) Targets() []Target {
	first := Target{IQN: a.TargetIQN, Portals: a.Portals, Pair: a.Pair, Auth: a.Auth, MutualAuth: a.MutualAuth}
	return append([]Target{first}, a.Others...)
}

// SetCredentials sets those of a target of Targets.
func (a *Attachment) SetCredentials(target int, auth, mutual *CHAP) {
	if target == 0 {
		a.Auth, a.MutualAuth = auth, mutual
		return
	}
	a.Others = slices.Clone(a.Others) // which copies of the attachment share
	a.Others[target-1].Auth, a.Others[target-1].MutualAuth = auth, mutual
}

// OnPair are the numbers of the targets that belong to a pair; an empty name means all.
func (a Attachment) OnPair(pair string) (out []int) {
	for i, t := range a.Targets() {
		if pair == "" || t.Pair == pair {
			out = append(out, i)
		}
	}
	return out
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

// legsContext adds the LUNs of a striped volume to a publish context.
func (a Attachment) legsContext(m map[string]string) {
	m[KeyStripe] = strconv.FormatInt(a.Stripe, 10)
	legs := make([]string, len(a.Legs))
	for i, l := range a.Legs {
		legs[i] = fmt.Sprintf("%d:%s", l.LUN, l.WWID)
		if len(a.Others) > 0 {
			legs[i] = fmt.Sprintf("%d:%s", l.Target, legs[i])
		}
	}
	if len(a.Others) == 0 {
		m[KeyLegs] = strings.Join(legs, ",")
		return
	}
	others, _ := json.Marshal(a.Others) // strings only: it cannot fail
	m[KeyLegsAt], m[KeyOthers] = strings.Join(legs, ","), string(others)
}

// legsKey is the key of a publish context that has the LUNs.
func legsKey(m map[string]string) string {
	if m[KeyLegsAt] != "" || m[KeyOthers] != "" {
		return KeyLegsAt
	}
	return KeyLegs
}

// parseLegs reads the LUNs of a striped volume and their targets.
func (a *Attachment) parseLegs(m map[string]string) (err error) {
	if a.Stripe, err = strconv.ParseInt(m[KeyStripe], 10, 64); err != nil || a.Stripe == 0 {
		return fmt.Errorf("%w: publish context: %s %q is not a number of bytes", ErrInvalid, KeyStripe, m[KeyStripe])
	}
	key := legsKey(m)
	if key == KeyLegsAt {
		if m[KeyLegs] != "" {
			return fmt.Errorf("%w: publish context: %s and %s exclude each other", ErrInvalid, KeyLegs, KeyLegsAt)
		}
		if err := a.parseOthers(m[KeyOthers]); err != nil {
			return err
		}
	}
	for i, s := range strings.Split(m[key], ",") {
		l, err := parseLeg(s, key == KeyLegsAt)
		if err != nil || l.Target > len(a.Others) {
			want := "LUN:WWID"
			if key == KeyLegsAt {
				want = fmt.Sprintf("TARGET:LUN:WWID with a target in 0..%d and", len(a.Others))
			} else {
				want += " with"
			}
			return fmt.Errorf("%w: publish context: %s: leg %d is %q, and must be %s a LUN in 0..%d", ErrInvalid, key, i, s, want, MaxLUN)
		}
		a.Legs = append(a.Legs, l)
	}
	if i := a.Twice(); i > 0 {
		return fmt.Errorf("%w: publish context: %s: leg %d is LUN %d with WWID %s, which another leg is as well", ErrInvalid, key, i, a.Legs[i].LUN, a.Legs[i].WWID)
	}
	if err := a.Layout().Check(); err != nil {
		return fmt.Errorf("%w: publish context: %s and %s: %w", ErrInvalid, KeyStripe, key, err)
	}
	return nil
}

// Twice is the number of a leg that is the same LUN as one before it, by its WWID or by its number
// at a target; 0: none is. With such a leg half of the volume would be written over the other half.
func (a Attachment) Twice() int {
	for i, l := range a.Legs {
		if slices.ContainsFunc(a.Legs[:i], func(o Leg) bool { return o.WWID == l.WWID || o.LUN == l.LUN && o.Target == l.Target }) {
			return i
		}
	}
	return 0
}

// parseOthers reads KeyOthers.
func (a *Attachment) parseOthers(text string) error {
	if err := json.Unmarshal([]byte(text), &a.Others); err != nil {
		return fmt.Errorf("%w: publish context: %s: %w", ErrInvalid, KeyOthers, err)
	}
	if n := len(a.Others); n == 0 || n > maxOthers {
		return fmt.Errorf("%w: publish context: %s has %d targets, and must have 1 to %d", ErrInvalid, KeyOthers, n, maxOthers)
	}
	seen := []string{a.TargetIQN}
	for i, t := range a.Others {
		switch {
		case t.IQN == "" || len(t.Portals) == 0:
			return fmt.Errorf("%w: publish context: %s: target %d lacks its iqn or its portals", ErrInvalid, KeyOthers, i+1)
		case slices.Contains(seen, t.IQN):
			return fmt.Errorf("%w: publish context: %s: target %d, %s, is named twice", ErrInvalid, KeyOthers, i+1, t.IQN)
		case a.Enroll && t.Pair == "":
			return fmt.Errorf("%w: publish context: %s: target %d lacks its pair, which %s requires", ErrInvalid, KeyOthers, i+1, KeyCHAP)
		}
		seen = append(seen, t.IQN)
	}
	return nil
}

func parseLeg(s string, at bool) (l Leg, err error) {
	if at {
		target, rest, _ := strings.Cut(s, ":")
		n, err := strconv.ParseUint(target, 10, 8)
		if err != nil {
			return l, err
		}
		l.Target, s = int(n), rest
	}
	number, wwid, ok := strings.Cut(s, ":")
	if l.LUN, err = parseLUN(number); err == nil && (!ok || wwid == "") {
		err = strconv.ErrSyntax
	}
	l.WWID = wwid
	return l, err
}

func parseLUN(s string) (uint16, error) {
	lun, err := strconv.ParseUint(s, 10, 16)
	if err == nil && lun > MaxLUN {
		err = strconv.ErrRange
	}
	return uint16(lun), err
}
