package balance

import (
	"testing"
	"time"
)

func TestLUNFollowsItsHosts(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.pass(time.Minute)
	r.reach(0, 0, A, false)
	r.one(r.pass(10*time.Second), "p", B, ReasonConnectivity)
	if r.v.LUNs[0].Home != A {
		t.Error("connectivity must not set home")
	}
	r.reach(0, 0, A, true)
	r.none(r.pass(25 * time.Second))
	r.one(r.pass(time.Minute), "p", A, ReasonFailBack)
}

// A login that is replaced is no loss.
func TestLossThatDoesNotCount(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.pass(time.Minute)
	for range 100 {
		r.reach(0, 0, A, false)
		r.v.Now += 2 * sec
		r.none(r.b.Decide(&r.v))
		r.reach(0, 0, A, true)
		r.v.Now += 2 * sec
		r.none(r.b.Decide(&r.v))
	}
}

func TestHostThatOnlyChecksPathsHasNoVote(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	l := &r.v.LUNs[0]
	l.Hosts = append(l.Hosts, Host{Name: "checks", CanUse: [2]bool{true, false}})
	r.pass(time.Minute)
	r.reach(0, 0, A, false)
	r.one(r.pass(10*time.Second), "p", B, ReasonConnectivity)
}

// No host can use either node: there is nothing to follow.
func TestNoNodeIsUsable(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.reach(0, 0, A, false)
	r.reach(0, 0, B, false)
	r.none(r.pass(time.Hour))
}

func disagreeing(t *testing.T, lost float64) *rig {
	r := newRig(t, Policy{}, 2)
	l := &r.v.LUNs[0]
	l.Hosts = append(l.Hosts, Host{Name: "second", Active: true, CanUse: [2]bool{true, true}})
	r.load(0, 0.4)
	r.v.Nodes[A].Use = 0.3 // below the gate: work decides nothing
	r.pass(10 * time.Minute)
	l.Hosts[0].Work, l.Hosts[1].Work = 0.4*lost, 0.4*(1-lost)
	r.reach(0, 0, A, false)
	return r
}

// Of hosts that disagree the LUN follows those that bring most of the work, if that halves what is
// forwarded.
func TestHostsThatDisagree(t *testing.T) {
	r := disagreeing(t, 0.9)
	r.one(r.pass(2*time.Minute), "p", B, ReasonConnectivity)
	r = disagreeing(t, 0.4)
	r.reach(0, 1, B, false) // it would lose what the other one gains
	r.none(r.pass(2 * time.Hour))
	r = disagreeing(t, 0.6)
	r.reach(0, 1, B, false)
	r.none(r.pass(2 * time.Hour)) // from 0.24 to 0.16 is not half
}

// A host that can use the owner's path and does not: one move, and another attempt after an hour.
func TestPathThatIsNotUsed(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.pass(10 * time.Minute)
	h := &r.v.LUNs[0].Hosts[0]
	h.Other = 0.95
	r.one(r.pass(10*time.Second), "p", B, ReasonUnusedPath)
	h.Other = 0
	r.none(r.pass(59 * time.Minute))
	r.one(r.pass(5*time.Minute), "p", A, ReasonFailBack)
	h.Other = 0.95
	r.none(r.pass(time.Minute)) // hosts follow late, and the window lies behind the move
	r.one(r.pass(6*time.Minute), "p", B, ReasonUnusedPath)
}

// However a link flaps, a LUN moves a bounded number of times in an hour.
func TestFlappingIsBounded(t *testing.T) {
	for _, half := range []time.Duration{time.Second, 7 * time.Second, 20 * time.Second, time.Minute, 11 * time.Minute} {
		r := newRig(t, Policy{}, 2)
		h := &r.v.LUNs[0].Hosts[0]
		var times []int64
		for r.v.Now < int64(6*time.Hour) {
			r.v.Now += 5 * sec
			k := r.v.Now / int64(half)
			h.CanUse = [2]bool{k%2 == 0, k%2 == 1}
			h.Since = [2]int64{k * int64(half), k * int64(half)}
			for _, m := range r.b.Decide(&r.v) {
				r.make(m)
				times = append(times, r.v.Now)
				if n := len(times); n > MovesPerHour && times[n-1]-times[n-1-MovesPerHour] < int64(time.Hour) {
					t.Fatalf("half %v: more than %d moves in an hour", half, MovesPerHour)
				}
			}
		}
	}
}
