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

// A person's move holds the LUN at the node, for as long as it says, and only there: what moves it
// away leaves the hold, which counts again when the LUN is back. The next move of a person replaces
// it.
func TestTransferHolds(t *testing.T) {
	s, apply := owned(t)
	until := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
	person := Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", Home: true, HeldUntil: until}}
	held := func() bool { return s.LUNs[id(1)].Held(time.Now()) != nil }
	if _, fx := apply(person); !held() || len(fx.LUNs) != 1 || s.LUNs[id(2)].Hold != nil {
		t.Fatalf("%+v %+v", s.LUNs[id(1)], fx)
	}
	if h := s.LUNs[id(1)].Held(until); h != nil {
		t.Error("it does not end")
	}
	if out, _ := apply(person); !out.Noop {
		t.Error("the same again is no change")
	}
	apply(Entry{SetOwner: &SetOwner{All: true, To: "a"}})
	if held() {
		t.Error("it is held where a failure has brought it")
	}
	apply(Entry{SetOwner: &SetOwner{All: true, To: "b"}})
	if !held() {
		t.Error("the failure ended the hold")
	}
	later := Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", Home: true, HeldUntil: until.Add(time.Hour)}}
	if apply(later); !s.LUNs[id(1)].Hold.Until.Equal(until.Add(time.Hour)) {
		t.Error("the hold of a LUN that is there already does not change")
	}
	if _, fx := apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", Home: true}}); s.LUNs[id(1)].Hold != nil || len(fx.LUNs) != 1 {
		t.Error("a transfer that does not hold leaves the former hold")
	}
}

// What a node of release 0.1.0 gets has nothing that it does not know, and is another state.
func TestStateForReleaseBefore(t *testing.T) {
	s, apply := owned(t)
	now := Now()
	apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", Home: true, HeldUntil: now.Add(time.Hour)}})
	apply(Entry{Drain: &Drain{Node: "b", At: now, Until: now.Add(time.Hour)}})
	apply(Entry{Commit: &Object{UUID: id(2)}})
	apply(Entry{Modify: &Modify{UUID: id(2), Pin: "a", Tier: TierFast, Group: "team/db", Quarantine: "why"}})
	apply(Entry{Policy: &Policy{Mode: "off", FailBackDelay: time.Minute, Version: 1}})
	apply(Entry{MapHost: &MapHost{UUID: id(2), Host: "iqn.h", Near: Near{Node: "b", By: NearZone}}})
	b := s.Before()
	if b.LUNs[id(2)].Consumer() != (Near{}) || s.LUNs[id(2)].Consumer() == (Near{}) {
		t.Errorf("%+v", b.LUNs[id(2)])
	}
	if b.Policy != nil || s.Policy == nil {
		t.Errorf("%+v", b.Policy)
	}
	if b.LUNs[id(2)].Pin != "" || s.LUNs[id(2)].Pin != "a" || b.LUNs[id(2)].Group != "" || s.LUNs[id(2)].Group != "team/db" ||
		b.LUNs[id(2)].Quarantine != "" || b.LUNs[id(2)].Tier != "" || s.LUNs[id(2)].Tier != TierFast || s.LUNs[id(2)].Quarantine != "why" {
		t.Errorf("%+v", b.LUNs[id(2)])
	}
	if b.Drain != nil || b.LUNs[id(1)].Hold != nil || b.LUNs[id(1)].Owner != "b" || len(b.LUNs) != 2 || b.Index != s.Index {
		t.Errorf("%+v", b)
	}
	if s.Drain == nil || s.LUNs[id(1)].Hold == nil {
		t.Error("this node's own state was changed")
	}
}

// A pin makes its node the home once the LUN is there, another preferred node is refused while it
// stands, and a person cannot move the LUN away; failures and drains can. NoPin ends it.
func TestPin(t *testing.T) {
	s, apply := owned(t)
	apply(Entry{Commit: &Object{UUID: id(1)}})
	modify := func(m Modify) (Outcome, Effect) {
		m.UUID = id(1)
		return apply(Entry{Modify: &m})
	}
	l := func() *LUN { return s.LUNs[id(1)] }
	if _, fx := modify(Modify{Pin: "b"}); l().Pin != "b" || l().Preferred != "a" || len(fx.LUNs) != 1 || len(fx.PreferredLUNs) != 0 {
		t.Fatalf("%+v %+v", l(), fx)
	}
	if out, _ := modify(Modify{Pin: "b"}); !out.Noop {
		t.Error("the same again is no change")
	}
	if out, _ := modify(Modify{Preferred: "a"}); !errors.Is(out.Err(), ErrInvalid) {
		t.Error("a LUN that is pinned to node b prefers node a")
	}
	if out, _ := modify(Modify{Pin: "c"}); !errors.Is(out.Err(), ErrInvalid) || l().Pin != "b" {
		t.Error(out)
	}
	apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: "b", Home: true}}) // the chair carries it out
	if l().Owner != "b" || l().Preferred != "b" {
		t.Fatalf("%+v", l())
	}
	if out, _ := apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1), id(2)}, To: "a", Home: true}}); out.Code != "" || l().Owner != "b" {
		t.Error("a person moved it away from where it is pinned")
	}
	if apply(Entry{SetOwner: &SetOwner{All: true, To: "a"}}); l().Owner != "a" || l().Preferred != "b" || l().Pin != "b" {
		t.Errorf("a failure: %+v", l())
	}
	if _, fx := modify(Modify{Pin: "a"}); l().Preferred != "a" || len(fx.PreferredLUNs) != 1 {
		t.Errorf("a pin where the LUN is: %+v", l())
	}
	if modify(Modify{Pin: NoPin, Preferred: "b"}); l().Pin != "" || l().Preferred != "b" {
		t.Errorf("%+v", l())
	}
	create := func(i int, l LUN) error {
		l.UUID, l.Name, l.Size = id(i), id(i), SizeStep
		out, _ := apply(Entry{CreateLUN: &CreateLUN{LUN: l}})
		return out.Err()
	}
	if err := create(3, LUN{Pin: "b"}); err != nil || s.LUNs[id(3)].Owner != "b" || s.LUNs[id(3)].Preferred != "b" {
		t.Error(err)
	}
	for _, bad := range []LUN{{Tier: "warm"}, {Tier: NoPin}, {Pin: "c"}, {Pin: NoPin}, {Pin: "b", Preferred: "a"}} {
		if err := create(4, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A decision of another policy than the one that stands moves nothing; persons and failures need
// none. Another version replaces a policy, also a lower one: the object that it came from was made
// again.
func TestMoveOfAnotherPolicyDoesNothing(t *testing.T) {
	s, apply := owned(t)
	set := func(mode string, delay time.Duration, version uint64) Outcome {
		out, _ := apply(Entry{Policy: &Policy{Mode: mode, FailBackDelay: delay, Version: version}})
		return out
	}
	move := func(version *uint64, to string) error {
		out, _ := apply(Entry{SetOwner: &SetOwner{UUIDs: []string{id(1)}, To: to, Policy: version}})
		return out.Err()
	}
	if err := move(new(uint64(0)), "b"); err != nil || s.LUNs[id(1)].Owner != "b" {
		t.Fatal(err)
	}
	if out := set("observe", time.Minute, 7); out.Code != "" || s.PolicyVersion() != 7 {
		t.Fatal(out)
	}
	if out := set("observe", time.Minute, 7); !out.Noop {
		t.Error("the same again is no change")
	}
	for _, v := range []uint64{0, 6, 8} {
		if err := move(&v, "a"); !errors.Is(err, ErrNotReady) || s.LUNs[id(1)].Owner != "b" {
			t.Errorf("version %d: %v", v, err)
		}
	}
	if err := move(new(uint64(7)), "a"); err != nil || s.LUNs[id(1)].Owner != "a" {
		t.Error(err)
	}
	if err := move(nil, "b"); err != nil || s.LUNs[id(1)].Owner != "b" {
		t.Error(err)
	}
	if out := set("auto", time.Second, 2); out.Code != "" || s.Policy.Mode != "auto" {
		t.Error(out)
	}
	for _, out := range []Outcome{set("on", time.Second, 3), set("auto", 0, 3), set("auto", time.Second, 0)} {
		if !errors.Is(out.Err(), ErrInvalid) || s.PolicyVersion() != 2 {
			t.Error(out)
		}
	}
}
