package meta

import (
	"maps"
	"slices"
)

// Draft is a copy that an entry can be applied to while readers use s. Apply replaces the objects
// that it changes, so the two share the others.
func (s *State) Draft() *State {
	c := *s
	c.LUNs, c.Snapshots, c.Hosts, c.Groups = maps.Clone(s.LUNs), maps.Clone(s.Snapshots), maps.Clone(s.Hosts), maps.Clone(s.Groups)
	return &c
}

// Early reports whether an entry may be made durable before anything of it is seen: applied to a
// draft it changes no file that is there, and it begins and ends no copy.
func (s *State) Early(e *Entry) bool {
	switch {
	case len(e.Batch) > 0:
		return !slices.ContainsFunc(e.Batch, func(part *Entry) bool { return part == nil || !s.Early(part) })
	case e.CreateLUN != nil:
		l := &e.CreateLUN.LUN
		return l.SourceLUN == "" && l.SourceSnapshot == "" && s.LUNs[l.UUID] == nil
	case e.Commit != nil:
		return e.Commit.Born == 0 && s.LUNs[e.Commit.UUID] != nil
	}
	return e.MapHost != nil || e.UnmapHost != nil || e.SetOwner != nil || e.PR != nil || e.Mode != nil
}
