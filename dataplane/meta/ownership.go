package meta

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// SetOwner moves LUNs; all of them when UUIDs is nil.
//
// The fields after To are of nodes that decide themselves who owns what. A node of an earlier
// release cannot apply an entry that has one of them.
type SetOwner struct {
	UUIDs []string `json:"uuids,omitempty"`
	All   bool     `json:"all,omitempty"`
	To    string   `json:"to"`

	// Seqs are the numbers of the ownership that the decision was made on. A LUN that has moved
	// since has another one, and stays: the decision is late (R10).
	Seqs map[string]uint64 `json:"seqs,omitempty"`
	// Policy is the version of the policy that the decision was made under. Under another one the
	// entry is refused; nil: a person or a failure has decided.
	Policy *uint64 `json:"policy,omitempty"`
	// At is the proposer's time. The entry is refused if To is drained then. Without it nothing is
	// refused: a node that has become alone takes every LUN.
	At time.Time `json:"at,omitzero"`
	// Home makes To the home of the LUNs, also of those that it owns already.
	Home bool `json:"home,omitempty"`
	// HeldUntil, with Home, is until when the LUNs stay there (Hold). Without it, a hold of before
	// ends.
	HeldUntil time.Time `json:"held_until,omitzero"`
}

// NoPin is the pin of a LUN that may be owned by either node, as it is asked for.
const NoPin = "none"

// PinName is the pin of a LUN in words.
func PinName(pin string) string { return cmp.Or(pin, NoPin) }

// PinOf is what a LUN says of its pin.
func PinOf(name string) string {
	if name == NoPin {
		return ""
	}
	return name
}

// The tiers of a backing volume that a LUN can be pinned to.
const (
	TierFast     = "fast"
	TierCapacity = "capacity"
)

func badTier(name string) bool { return name != TierFast && name != TierCapacity }

// Hold is how long a transfer by a person counts: until then nothing but a pin, a drain or
// connectivity moves the LUN away from the node. A LUN that one of them, or a failure, has moved
// away is not held where it is then, and is held again when it is back.
//
// It is on disk with the LUN, unlike a drain: it is a wish about one LUN, which the end of both
// nodes does not answer, and 0.1.0 passes over a field of a LUN on disk. It is not sent to a node
// of that release, which moves no LUN by itself.
type Hold struct {
	Node  string    `json:"node"`
	Until time.Time `json:"until"` // by the clock of the node that was asked, in whole seconds
}

// Held is the hold that keeps the LUN at its owner at a time, nil if none does.
func (l *LUN) Held(at time.Time) *Hold {
	if l.Hold == nil || l.Hold.Node != l.Owner || !l.Hold.Until.After(at) {
		return nil
	}
	return l.Hold
}

// Drain forbids a node to become an owner while it stands. It replaces the one before. Until not
// after At: the drain of that node ends.
//
// It is not kept on disk: a node that joins gets it with the rest of the state, and where both
// nodes were down at once nothing is left to drain. Neither is it sent to a node of an earlier
// release, which moves no LUN by itself.
type Drain struct {
	Node   string    `json:"node"`
	At     time.Time `json:"at"` // the proposer's time
	Until  time.Time `json:"until"`
	Reason string    `json:"reason,omitempty"`
}

// Stands reports whether there is a drain that has not ended at a time.
func (d *Drain) Stands(at time.Time) bool { return d != nil && d.Until.After(at) }

// Drained reports whether a node may not become an owner at a time.
func (s *State) Drained(node string, at time.Time) bool {
	return s.Drain.Stands(at) && s.Drain.Node == node
}

func (s *State) setOwner(e *SetOwner) (out Outcome, fx Effect) {
	if badNode(e.To) {
		return failed("invalid", "ownership cannot move to node %q", e.To), fx
	}
	if !e.At.IsZero() && s.Drained(e.To, e.At) {
		return failed("in_use", "node %s is drained until %s: %s", e.To, s.Drain.Until.Format(time.TimeOnly), s.Drain.Reason), fx
	}
	if now := s.Policy.version(); e.Policy != nil && *e.Policy != now {
		return failed("not_ready", "the move was decided under version %d of the policy, and this is version %d", *e.Policy, now), fx
	}
	ids := e.UUIDs
	if e.All {
		ids = slices.Sorted(maps.Keys(s.LUNs))
	}
	for _, id := range ids {
		l := s.LUNs[id]
		if l == nil {
			continue
		}
		if seq, ok := e.Seqs[id]; ok && seq != l.Seq {
			continue
		}
		if e.Home && l.Pin != "" && l.Pin != e.To {
			continue // it would be moved back at once: a pin is a rule
		}
		moves, home, held := l.Owner != e.To, e.Home && l.Preferred != e.To, e.Home && !l.heldAs(e)
		if !moves && !home && !held {
			continue
		}
		n := s.touch(id, &fx)
		if held {
			n.Hold = e.hold()
		}
		if home {
			n.Preferred = e.To
			fx.PreferredLUNs = append(fx.PreferredLUNs, id)
		}
		if moves {
			n.Owner = e.To
			n.Seq++
			fx.Moved = append(fx.Moved, id)
			fx.UnitsChanged = true
		}
	}
	return Outcome{Noop: len(fx.LUNs) == 0}, fx
}

// hold is what the entry makes the hold of each of its LUNs.
func (e *SetOwner) hold() *Hold {
	if e.HeldUntil.IsZero() {
		return nil
	}
	return &Hold{Node: e.To, Until: e.HeldUntil}
}

// heldAs reports whether the LUN has the hold of an entry already.
func (l *LUN) heldAs(e *SetOwner) bool {
	want := e.hold()
	if l.Hold == nil || want == nil {
		return l.Hold == want
	}
	return l.Hold.Node == want.Node && l.Hold.Until.Equal(want.Until)
}

// Before is the state as a node of release 0.1.0 gets it: without what such a node does not know,
// and would lose while this one keeps it. It moves no LUN by itself, so it needs none of it.
func (s *State) Before() *State {
	c := *s
	c.Drain, c.Policy, c.LUNs, c.Hosts = nil, nil, make(map[string]*LUN, len(s.LUNs)), make(map[string]*Host, len(s.Hosts))
	for iqn, h := range s.Hosts {
		if h.Profile != "" {
			x := *h
			x.Profile, h = "", &x
		}
		c.Hosts[iqn] = h
	}
	for id, l := range s.LUNs {
		l = l.clone()
		l.Hold, l.Pin, l.Tier, l.Group, l.Quarantine = nil, "", "", "", ""
		for h, m := range l.Maps {
			m.Near = Near{}
			l.Maps[h] = m
		}
		c.LUNs[id] = l
	}
	return &c
}

func (s *State) setDrain(e *Drain) (out Outcome, fx Effect) {
	switch {
	case badNode(e.Node):
		return failed("invalid", "node %q cannot be drained", e.Node), fx
	case e.Until.After(e.At):
		d := *e
		s.Drain = &d
	case s.Drain == nil || s.Drain.Node != e.Node:
		return Outcome{Noop: true}, fx
	default:
		s.Drain = nil
	}
	return out, fx
}

// Policy is how the chair decides who owns what. It is on disk, beside the index: the pair keeps to
// it when both nodes were down and the operator is not there to set it again, and 0.1.0 passes over
// the field. It is not sent to a node of that release, which decides nothing.
type Policy struct {
	Mode          string        `json:"mode"` // auto, observe or off
	FailBackDelay time.Duration `json:"fail_back_delay"`
	Version       uint64        `json:"version"` // of who sets it, from 1 on; another one, also a lower one, replaces it
}

func (p *Policy) version() uint64 {
	if p == nil {
		return 0
	}
	return p.Version
}

// PolicyVersion is the version of the policy, 0 if none was ever set.
func (s *State) PolicyVersion() uint64 { return s.Policy.version() }

func (s *State) setPolicy(e *Policy) (out Outcome, fx Effect) {
	switch {
	case !slices.Contains([]string{"auto", "observe", "off"}, e.Mode) || e.FailBackDelay <= 0 || e.Version == 0:
		return failed("invalid", "the policy has mode %q, fail-back delay %v and version %d", e.Mode, e.FailBackDelay, e.Version), fx
	case s.Policy != nil && *s.Policy == *e:
		return Outcome{Noop: true}, fx
	}
	p := *e
	s.Policy = &p
	return out, fx
}
