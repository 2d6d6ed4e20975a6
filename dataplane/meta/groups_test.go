package meta

import (
	"encoding/json"
	"strings"
	"testing"
)

func begin(group int, attempt uint64) Entry {
	return Entry{BeginGroup: &BeginGroup{UUID: id(group), Attempt: attempt}}
}

func final(group int) Entry {
	return Entry{BeginGroup: &BeginGroup{UUID: id(group), Attempt: 1, Final: true}}
}

func memberOf(n, lun, group int, attempt uint64) Entry {
	e := later(snap(n, lun))
	e.CreateSnapshot.Snapshot.Group, e.CreateSnapshot.Snapshot.Attempt = id(group), attempt
	return e
}

// cut is the entry that marks a group whose LUNs have not moved since now.
func (s *table) cut(group int, attempt uint64) Entry {
	seqs := map[string]uint64{}
	for _, n := range s.Members(id(group)) {
		seqs[n.Source] = s.LUNs[n.Source].Seq
	}
	return Entry{CutGroup: &CutGroup{UUID: id(group), Attempt: attempt, Seqs: seqs}}
}

func void(group int, attempt uint64) Entry {
	return Entry{VoidGroup: &VoidGroup{UUID: id(group), Attempt: attempt}}
}

// group 9 of snapshots 3 and 4, of LUNs 1 and 2.
func grouped(t *testing.T) *table {
	s := newTable(t)
	s.ready(1, 4)
	s.ready(2, 8)
	s.apply(begin(9, 1))
	s.apply(memberOf(3, 1, 9, 1))
	s.apply(memberOf(4, 2, 9, 1))
	return s
}

// One entry marks every member of a group, once.
func TestGroupIsCutByOneEntry(t *testing.T) {
	s := grouped(t)
	if out, _ := s.apply(memberOf(3, 1, 9, 1)); !out.Noop {
		t.Errorf("a member that is prepared again: %+v", out)
	}
	s.refused(ErrInvalid, Entry{Mark: object(3, s.born(3))})
	_, fx := s.apply(s.cut(9, 1))
	if len(fx.Marked) != 2 || fx.Marked[0].UUID != id(3) || fx.Marked[1].Size != 8<<20 || len(fx.Snapshots) != 2 {
		t.Fatalf("effects: %+v", fx)
	}
	s.stage(3, Copying)
	s.stage(4, Copying)
	if out, fx := s.apply(s.cut(9, 1)); !out.Noop || len(fx.Marked) > 0 {
		t.Errorf("repeated: %+v, %+v", out, fx)
	}
	s.apply(void(9, 1))
	if out, _ := s.apply(s.cut(9, 1)); !out.Noop {
		t.Errorf("a cut that has been, repeated after it was given up: %+v", out)
	}
}

// A cut marks nothing unless all members can be marked.
func TestGroupIsNotCutInPart(t *testing.T) {
	for name, c := range map[string]struct {
		want   error
		before func(s *table, cut *Entry)
	}{
		"an earlier attempt":      {ErrAborted, func(s *table, _ *Entry) { s.apply(begin(9, 2)) }},
		"given up":                {ErrAborted, func(s *table, _ *Entry) { s.apply(void(9, 1)) }},
		"deleted":                 {ErrAborted, func(s *table, _ *Entry) { s.apply(final(9)) }},
		"a LUN has moved":         {ErrAborted, func(s *table, _ *Entry) { s.apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b"}}) }},
		"a LUN has moved twice":   {ErrAborted, func(s *table, _ *Entry) { moveTwice(s, 1) }},
		"a LUN is copied":         {ErrNotReady, func(s *table, _ *Entry) { s.apply(later(snap(5, 2))); s.apply(Entry{Mark: object(5, s.born(5))}) }},
		"a LUN was expanded":      {ErrUnfinished, func(s *table, _ *Entry) { s.apply(Entry{Expand: &Expand{UUID: id(1), Size: 8 << 20}}) }},
		"a LUN is not in the cut": {ErrAborted, func(_ *table, cut *Entry) { delete(cut.CutGroup.Seqs, id(2)) }},
		"no members": {ErrNotFound, func(s *table, _ *Entry) {
			s.apply(Entry{Abort: object(3, s.born(3))})
			s.apply(Entry{Abort: object(4, s.born(4))})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := grouped(t)
			cut := s.cut(9, 1)
			c.before(s, &cut)
			before, _ := json.Marshal(s.Snapshots)
			s.refused(c.want, cut)
			if after, _ := json.Marshal(s.Snapshots); string(after) != string(before) {
				t.Errorf("%s\n%s", before, after)
			}
		})
	}
}

func moveTwice(s *table, lun int) {
	for _, to := range []string{"b", "a"} {
		s.apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(lun)}, To: to}})
	}
}

// The attempts of a group rise, until one is final; what is of another one is refused.
func TestAttemptsRise(t *testing.T) {
	s := newTable(t)
	s.ready(1, 4)
	s.ready(2, 4)
	s.refused(ErrAborted, memberOf(3, 1, 9, 1))
	s.refused(ErrInvalid, begin(9, 0))
	s.refused(ErrInvalid, Entry{BeginGroup: &BeginGroup{UUID: "x", Attempt: 1}})
	s.apply(begin(9, 2))
	if out, _ := s.apply(begin(9, 2)); !out.Noop {
		t.Errorf("repeated: %+v", out)
	}
	s.refused(ErrAborted, begin(9, 1))
	s.refused(ErrAborted, memberOf(3, 1, 9, 1))
	s.refused(ErrAborted, memberOf(3, 1, 9, 3))
	s.apply(memberOf(3, 1, 9, 2))
	s.refused(ErrInvalid, memberOf(4, 1, 9, 2)) // the same LUN
	s.apply(begin(9, 5))
	s.refused(ErrAborted, memberOf(4, 2, 9, 2))
	s.refused(ErrExists, memberOf(3, 1, 9, 5)) // it has not been removed
	s.apply(final(9))
	if out, _ := s.apply(final(9)); !out.Noop {
		t.Errorf("final, repeated: %+v", out)
	}
	s.refused(ErrAborted, begin(9, 6))
	s.refused(ErrAborted, memberOf(4, 2, 9, 5))
	if out, _ := s.apply(void(9, 4)); !out.Noop {
		t.Errorf("an attempt that is over already: %+v", out)
	}
}

// A pair that has too many groups forgets the one that has been final for the longest.
func TestGroupsAreForgotten(t *testing.T) {
	s := newTable(t)
	for i := range MaxGroups {
		s.apply(begin(1000+i, 1))
	}
	s.refused(ErrExhausted, begin(1, 1))
	s.apply(final(1005))
	s.apply(final(1003))
	_, fx := s.apply(begin(1, 1))
	if len(s.Groups) != MaxGroups || s.Groups[id(1005)] != nil || s.Groups[id(1003)] == nil {
		t.Errorf("%d groups", len(s.Groups))
	}
	if strings.Join(fx.Groups, " ") != id(1005)+" "+id(1)+"" {
		t.Errorf("persisted: %v", fx.Groups)
	}
}

// What a node of an earlier release gets says nothing of groups, and this node keeps it.
func TestWithoutGroups(t *testing.T) {
	s := grouped(t)
	raw, _ := json.Marshal(s.WithoutGroups())
	if strings.Contains(string(raw), "group") || strings.Contains(string(raw), "attempt") {
		t.Errorf("%s", raw)
	}
	if s.Snapshots[id(3)].Group != id(9) || s.Groups[id(9)] == nil {
		t.Error("they were taken from this node")
	}
}
