package balance

import (
	"testing"
	"time"
)

func TestPinComesFirst(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.v.LUNs[0].Pin = B
	r.v.LUNs[0].Held = 1 << 62
	r.reach(0, 0, B, false) // its only host cannot use b: a pin is a rule
	r.one(r.pass(5*time.Second), "p", B, ReasonPin)
	if r.v.LUNs[0].Home != B {
		t.Error("a pin sets home")
	}
	r.none(r.pass(time.Hour))
}

func TestNothingMovesToANodeThatMayNotOwn(t *testing.T) {
	for name, change := range map[string]func(n *NodeView){
		"no member": func(n *NodeView) { n.Member = false },
		"drained":   func(n *NodeView) { n.Drained = true },
	} {
		r := newRig(t, Policy{}, 4)
		r.pass(10 * time.Minute)
		for i := range r.v.LUNs {
			r.v.LUNs[i].Owner = A
		}
		change(&r.v.Nodes[B])
		r.v.LUNs[0].Pin = B
		r.reach(1, 0, A, false)
		r.load(2, 0.8)
		r.load(3, 0.3)
		if made := r.pass(time.Hour); len(made) > 0 {
			t.Errorf("%s: %+v", name, made)
		}
	}
}

// A node whose process has just crashed is given no LUN, unless the other one is drained, or hosts
// can use no other one: what ended the process may do so once more.
func TestNothingMovesToANodeThatHasJustCrashed(t *testing.T) {
	r := newRig(t, Policy{FailBackDelay: 5 * time.Second}, 4)
	r.pass(10 * time.Minute)
	for i := range r.v.LUNs {
		r.v.LUNs[i].Owner, r.v.LUNs[i].Home = A, A
	}
	r.v.Nodes[B].Crashed = true
	r.v.LUNs[0].Pin, r.v.LUNs[1].Home = B, B
	r.load(2, 0.8)
	r.load(3, 0.3)
	r.none(r.pass(time.Hour))
	r.reach(2, 0, A, false)
	r.one(r.pass(time.Minute), "r", B, ReasonConnectivity)
	r.v.Nodes[B].Crashed = false
	if made := r.pass(time.Minute); len(made) < 2 || made[0].Reason != ReasonPin || made[1].Reason != ReasonFailBack {
		t.Errorf("once it has been up for a minute: %+v", made)
	}
	r.v.Nodes[B].Crashed, r.v.Nodes[A].Drained = true, true
	r.one(r.pass(time.Minute), "s", B, ReasonDrain)
}

func TestDrainedOwnerGivesAway(t *testing.T) {
	r := newRig(t, Policy{Mode: Off}, 2)
	r.v.Nodes[A].Drained = true
	r.one(r.pass(5*time.Second), "p", B, ReasonDrain)
	r.v.Nodes[A].Drained = false
	r.b.SetPolicy(Policy{})
	r.v.Nodes[A].Since = r.v.Now
	r.one(r.pass(time.Minute), "p", A, ReasonFailBack)
}

// Home is where a LUN goes once its node has been a member for the delay, without interruption.
func TestFailBackWaitsForTheDelay(t *testing.T) {
	r := newRig(t, Policy{FailBackDelay: time.Minute}, 2)
	r.pass(10 * time.Minute)
	r.v.LUNs[0].Owner = B
	r.v.Nodes[A].Since = r.v.Now
	r.none(r.pass(50 * time.Second))
	r.v.Nodes[A].Since = r.v.Now // it was away again
	r.none(r.pass(55 * time.Second))
	r.one(r.pass(10*time.Second), "p", A, ReasonFailBack)
}

// A chair that has just begun does not know for how long anything has been as it is.
func TestNewChairBeginsEveryDelayAgain(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.v.Now = int64(time.Hour)
	r.b = New(r.v.Now, Policy{})
	r.v.LUNs[0].Owner = B
	r.v.LUNs[0].Hosts = nil // nothing but the chair has just begun
	r.none(r.pass(25 * time.Second))
	r.one(r.pass(10*time.Second), "p", A, ReasonFailBack)
}

func TestHostsThatArePartlyBackKeepTheirLUN(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	l := &r.v.LUNs[0]
	l.Owner = B
	l.Hosts = append(l.Hosts, Host{Name: "second", Active: true, CanUse: [2]bool{true, true}})
	r.reach(0, 1, A, false)
	r.none(r.pass(2 * time.Hour))
	r.reach(0, 1, A, true)
	r.none(r.pass(25 * time.Second))
	r.one(r.pass(10*time.Second), "p", A, ReasonFailBack)
}

// A LUN without hosts shows nothing: it goes home when the others are there.
func TestLUNWithoutHostsGoesHomeLast(t *testing.T) {
	r := newRig(t, Policy{}, 3)
	r.v.LUNs[0].Owner, r.v.LUNs[2].Owner = B, B
	r.v.LUNs[0].Hosts = nil
	r.reach(2, 0, A, false)
	r.none(r.pass(10 * time.Minute))
	r.reach(2, 0, A, true)
	made := r.pass(2 * time.Minute)
	if len(made) != 2 || made[0].LUN != "r" || made[1].LUN != "p" {
		t.Fatalf("%+v", made)
	}
}

// Hosts that are logged in and show nothing for an hour: one idle LUN goes home to find out.
func TestOneIdleLUNGoesHomeAsAProbe(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	for _, i := range []int{0, 2} {
		r.v.LUNs[i].Owner = B
		r.v.LUNs[i].Hosts[0].Active = false
		r.reach(i, 0, A, false)
		r.v.LUNs[i].Hosts[0].Session[A] = true
	}
	r.none(r.pass(59 * time.Minute))
	r.one(r.pass(30*time.Minute), "p", A, ReasonProbe)
	r.reach(0, 0, A, true)
	r.v.LUNs[0].Hosts[0].Active = true // it was used: the next one may go
	r.one(r.pass(5*time.Second), "r", A, ReasonProbe)
}

func TestAPersonsMoveHolds(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.v.LUNs[0].Owner = B
	r.v.LUNs[0].Held = int64(30 * time.Minute)
	r.none(r.pass(29 * time.Minute))
	r.one(r.pass(2*time.Minute), "p", A, ReasonFailBack)
}

func TestObserveSaysAndDoesNothing(t *testing.T) {
	r := newRig(t, Policy{Mode: Observe}, 2)
	r.v.LUNs[0].Owner = B
	made := r.pass(time.Minute)
	if len(made) == 0 || r.v.LUNs[0].Owner != B {
		t.Fatal(made)
	}
	for _, m := range made {
		if !m.Dry || m.Reason != ReasonFailBack {
			t.Fatalf("%+v", m)
		}
	}
	r.v.LUNs[0].Pin = A
	r.pass(5 * time.Second)
	if r.v.LUNs[0].Owner != A {
		t.Error("a pin is a rule of an administrator, in every mode")
	}
}

func TestLUNsThatAreGoneAreForgotten(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	r.pass(time.Minute)
	r.v.LUNs = r.v.LUNs[:1]
	r.pass(5 * time.Second)
	if len(r.b.luns) != 1 {
		t.Errorf("%d LUNs are remembered", len(r.b.luns))
	}
	r.b.Moved(r.v.Now, Move{LUN: "gone", To: B})
}
