package meta

import (
	"maps"
	"slices"
	"strings"
)

// A group snapshot is taken by numbered attempts (docs/decisions/0070). What is of another attempt
// than the last one that the log has is refused, so that a coordinator that was replaced, and
// continues, changes nothing.

// MaxGroups is the number of group snapshots that a pair remembers. Those that are final make room,
// the oldest one first.
const MaxGroups = 8192

// MaxGroupMembers is the number of members that a group snapshot has on one pair.
const MaxGroupMembers = 64

// Group is what a pair remembers of a group snapshot.
type Group struct {
	UUID    string `json:"uuid"`
	Attempt uint64 `json:"attempt"`         // the highest one
	Void    bool   `json:"void,omitempty"`  // this attempt has no cut, unless it has been
	Final   bool   `json:"final,omitempty"` // there is no other attempt, ever
	Since   uint64 `json:"since"`           // index of the entry that raised the attempt
}

// BeginGroup raises the attempt.
type BeginGroup struct {
	UUID    string `json:"uuid"`
	Attempt uint64 `json:"attempt"`
	Final   bool   `json:"final,omitempty"`
}

// CutGroup is the instant of all members. Seqs are the numbers of the ownership of their LUNs when
// they were held: one that has moved since was not held without a break (R10).
type CutGroup struct {
	UUID    string            `json:"uuid"`
	Attempt uint64            `json:"attempt"`
	Seqs    map[string]uint64 `json:"seqs"`
}

// VoidGroup decides about a cut that may be on its way: it has been, or never will be.
type VoidGroup struct {
	UUID    string `json:"uuid"`
	Attempt uint64 `json:"attempt"`
}

// Members lists the snapshots of a group, by uuid.
func (s *State) Members(group string) (out []*Snapshot) {
	for _, n := range s.Snapshots {
		if n.Group == group {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *Snapshot) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

func (s *State) beginGroup(e *BeginGroup) (out Outcome, fx Effect) {
	switch g := s.Groups[e.UUID]; {
	case !canonical(e.UUID):
		return failed("invalid", "group uuid %q is not in canonical form", e.UUID), fx
	case e.Attempt == 0:
		return failed("invalid", "attempts of group %s begin with 1", e.UUID), fx
	case g == nil:
		if out := s.groupRoom(&fx); out.Code != "" {
			return out, fx
		}
	case g.Final && e.Final, g.Attempt == e.Attempt && !g.Final && !e.Final:
		return Outcome{Noop: true}, fx
	case g.Final:
		return failed("aborted", "group snapshot %s is deleted", e.UUID), fx
	case g.Attempt > e.Attempt && !e.Final:
		return failed("aborted", "attempt %d of group snapshot %s was followed by attempt %d", e.Attempt, e.UUID, g.Attempt), fx
	}
	if s.Groups == nil {
		s.Groups = map[string]*Group{}
	}
	s.Groups[e.UUID] = &Group{UUID: e.UUID, Attempt: e.Attempt, Final: e.Final, Since: s.Index}
	fx.Groups = append(fx.Groups, e.UUID)
	return out, fx
}

// groupRoom forgets the group that has been final for the longest, if there are too many.
func (s *State) groupRoom(fx *Effect) (out Outcome) {
	if len(s.Groups) < MaxGroups {
		return out
	}
	oldest := ""
	for _, id := range slices.Sorted(maps.Keys(s.Groups)) {
		if g := s.Groups[id]; g.Final && (oldest == "" || g.Since < s.Groups[oldest].Since) {
			oldest = id
		}
	}
	if oldest == "" {
		return failed("exhausted", "the pair has reached its limit of %d group snapshots: delete some", MaxGroups)
	}
	delete(s.Groups, oldest)
	fx.Groups = append(fx.Groups, oldest)
	return out
}

// attempt refuses what is not of the last attempt of a group.
func (s *State) attempt(group string, attempt uint64) (out Outcome) {
	switch g := s.Groups[group]; {
	case g == nil:
		return failed("aborted", "group snapshot %s has no attempt on this pair", group)
	case g.Final:
		return failed("aborted", "group snapshot %s is deleted", group)
	case g.Attempt != attempt:
		return failed("aborted", "attempt %d of group snapshot %s is not the last one, which is %d", attempt, group, g.Attempt)
	}
	return out
}

// member judges a snapshot that is to be a new member.
func (s *State) member(n *Snapshot) (out Outcome) {
	if n.Group == "" {
		return out
	}
	all := s.Members(n.Group)
	if len(all) >= MaxGroupMembers {
		return failed("invalid", "group snapshot %s has %d members on this pair already", n.Group, len(all))
	}
	for _, m := range all {
		if m.Source == n.Source {
			return failed("invalid", "LUN %s is a member of group snapshot %s already", n.Source, n.Group)
		}
	}
	return out
}

// cutGroup marks all members, or none.
func (s *State) cutGroup(e *CutGroup) (out Outcome, fx Effect) {
	if out := s.attempt(e.UUID, e.Attempt); out.Code != "" {
		return out, fx
	}
	members := s.Members(e.UUID)
	cut := func(n *Snapshot) bool { return n.Attempt == e.Attempt && (n.Stage == Copying || n.Stage == Ready) }
	switch {
	case len(members) == 0:
		return failed("not_found", "attempt %d of group snapshot %s has no members on this pair", e.Attempt, e.UUID), fx
	case !slices.ContainsFunc(members, func(n *Snapshot) bool { return !cut(n) }):
		return Outcome{Noop: true}, fx
	case s.Groups[e.UUID].Void:
		return failed("aborted", "attempt %d of group snapshot %s was given up", e.Attempt, e.UUID), fx
	}
	var marked []*Marked
	for _, n := range members {
		src := s.LUNs[n.Source]
		switch {
		case n.Attempt != e.Attempt || n.Stage != Empty:
			return failed("aborted", "snapshot %s of group snapshot %s is %s, of attempt %d", n.UUID, e.UUID, n.Stage, n.Attempt), fx
		case src == nil || src.Seq != e.Seqs[n.Source]:
			return failed("aborted", "LUN %s, a member of group snapshot %s, was moved while it was held", n.Source, e.UUID), fx
		}
		x, out := s.markable(n.UUID)
		if out.Code != "" {
			return out, fx
		}
		marked = append(marked, x)
	}
	for _, x := range marked {
		s.marks(x, &fx)
	}
	return out, fx
}

func (s *State) voidGroup(e *VoidGroup) (out Outcome, fx Effect) {
	g := s.Groups[e.UUID]
	if g == nil || g.Attempt != e.Attempt || g.Void {
		return Outcome{Noop: true}, fx
	}
	c := *g
	c.Void = true
	s.Groups[e.UUID], fx.Groups = &c, []string{e.UUID}
	return out, fx
}

// WithoutGroups is the state for a node of a release that knows no group snapshots: their members
// are snapshots like others, and their attempts are forgotten there.
func (s *State) WithoutGroups() *State {
	c := *s
	c.Groups, c.Snapshots = nil, maps.Clone(s.Snapshots)
	for id, n := range s.Snapshots {
		if n.Group != "" {
			x := *n
			x.Group, x.Attempt = "", 0
			c.Snapshots[id] = &x
		}
	}
	return &c
}
