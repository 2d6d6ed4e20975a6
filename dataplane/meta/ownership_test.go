package meta

import (
	"errors"
	"testing"
	"time"
)

func owned(t *testing.T) (s *State, apply func(Entry) (Outcome, Effect)) {
	t.Helper()
	s = NewState()
	apply = func(e Entry) (Outcome, Effect) {
		t.Helper()
		d, err := DecodeEntry(e.Encode()) // as the log has it
		if err != nil {
			t.Fatal(err)
		}
		return s.Apply(s.Index+1, d)
	}
	for _, i := range []int{1, 2} {
		if out, _ := apply(Entry{CreateLUN: &CreateLUN{LUN: LUN{UUID: id(i), Name: id(i), Size: SizeStep, Preferred: "a"}}}); out.Code != "" {
			t.Fatal(out)
		}
	}
	return s, apply
}

// A decision that is late moves nothing: the LUN has moved since it was made.
func TestLateMoveDoesNothing(t *testing.T) {
	s, apply := owned(t)
	move := Entry{SetOwner: &SetOwner{UUIDs: []string{id(1), id(2)}, To: "b", Seqs: map[string]uint64{id(1): 1, id(2): 1}}}
	apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b"}})
	apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "a"}})
	_, fx := apply(move)
	if s.LUNs[id(1)].Owner != "a" || s.LUNs[id(1)].Seq != 3 || s.LUNs[id(2)].Owner != "b" || len(fx.Moved) != 1 {
		t.Errorf("%+v %+v", s.LUNs[id(1)], fx)
	}
}

// Nothing moves to a node that is drained, except where a node is alone. The drain ends by itself,
// or when it is ended, and no other node's end ends it.
func TestNoLUNMovesToDrainedNode(t *testing.T) {
	s, apply := owned(t)
	now := Now()
	to := func(at time.Time) error {
		out, _ := apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", At: at}})
		return out.Err()
	}
	apply(Entry{Drain: &Drain{Node: "b", At: now, Until: now.Add(time.Minute), Reason: "restart"}})
	if err := to(now); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	if out, _ := apply(Entry{Drain: &Drain{Node: "a", At: now, Until: now}}); !out.Noop || !s.Drained("b", now) || s.Drained("a", now) {
		t.Error("the end of another drain ended it")
	}
	if s.Drained("b", now.Add(time.Minute)) {
		t.Error("it does not end by itself")
	}
	if _, fx := apply(Entry{SetOwner: &SetOwner{All: true, To: "b"}}); len(fx.Moved) != 2 {
		t.Error("a node that is alone cannot take the LUNs")
	}
	apply(Entry{SetOwner: &SetOwner{All: true, To: "a"}})
	apply(Entry{Drain: &Drain{Node: "b", At: now, Until: now}})
	if err := to(now); err != nil || s.Drain != nil || s.LUNs[id(1)].Owner != "b" {
		t.Error(err)
	}
	if out, _ := apply(Entry{Drain: &Drain{Node: "c", At: now, Until: now}}); !errors.Is(out.Err(), ErrInvalid) {
		t.Error(out)
	}
}

// A person's move makes the node the home, also of a LUN that it owns already.
func TestMoveSetsHome(t *testing.T) {
	s, apply := owned(t)
	if _, fx := apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", Home: true}}); s.LUNs[id(1)].Preferred != "b" || len(fx.PreferredLUNs) != 1 {
		t.Errorf("%+v", fx)
	}
	apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(2)}, To: "b"}})
	if s.LUNs[id(2)].Preferred != "a" {
		t.Error("a failure moved the home")
	}
	if _, fx := apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(2)}, To: "b", Home: true}}); s.LUNs[id(2)].Preferred != "b" || len(fx.Moved) != 0 || len(fx.PreferredLUNs) != 1 {
		t.Errorf("%+v", fx)
	}
}
