package meta

import (
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
	// At is the proposer's time. The entry is refused if To is drained then. Without it nothing is
	// refused: a node that has become alone takes every LUN.
	At time.Time `json:"at,omitzero"`
	// Home makes To the home of the LUNs, also of those that it owns already.
	Home bool `json:"home,omitempty"`
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
		moves, home := l.Owner != e.To, e.Home && l.Preferred != e.To
		if !moves && !home {
			continue
		}
		n := s.touch(id, &fx)
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
