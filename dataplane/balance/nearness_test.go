package balance

import (
	"strings"
	"testing"
	"time"
)

// attach maps a LUN to one host that has just logged in at both nodes and works: the home of the
// LUN follows that host.
func (r *rig) attach(i int, near Node) {
	l := &r.v.LUNs[i]
	l.Home, l.Near, l.NearBy = near, near, "zone"
	l.Hosts = []Host{{Name: "new", Active: true, Session: [2]bool{true, true}, CanUse: [2]bool{true, true}, Since: [2]int64{r.v.Now, r.v.Now}}}
}

func TestLUNFollowsItsConsumer(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.pass(10 * time.Minute)
	r.attach(0, B)
	made := r.pass(15 * time.Second)
	r.one(made, "p", B, ReasonNearness)
	if made[0].SetsHome || !strings.Contains(made[0].Text, "its zone in common with node b") {
		t.Errorf("%+v", made[0])
	}
	r.none(r.pass(time.Hour))
}

// Before the host has logged in, nothing is held by the move.
func TestLUNFollowsBeforeItsConsumerLogsIn(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.pass(10 * time.Minute)
	r.v.LUNs[1].Owner = A // away, and its host cannot use its home: that is no reason to wait
	r.reach(1, 0, B, false)
	r.attach(0, B)
	r.v.LUNs[0].Hosts = nil
	r.one(r.pass(5*time.Second), "p", B, ReasonNearness)
}

func TestLUNDoesNotFollowAConsumerThatCannotUseTheNode(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.pass(10 * time.Minute)
	r.attach(0, B)
	r.reach(0, 0, B, false)
	r.none(r.pass(10 * time.Minute))
	r.reach(0, 0, B, true)
	r.one(r.pass(15*time.Second), "p", B, ReasonNearness)
}

// A failure takes the LUN away from where its consumer is: it returns as any other does.
func TestLUNAtItsConsumerReturnsAfterAFailure(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	r.v.LUNs[0].Near = A
	r.pass(10 * time.Minute)
	r.v.LUNs[0].Owner = B
	r.v.Nodes[A].Since = r.v.Now
	r.none(r.pass(25 * time.Second))
	r.one(r.pass(10*time.Second), "p", A, ReasonFailBack)
}

// A pod that is moved to and fro all the time does not take its LUN along each time.
func TestLUNRestsHoweverOftenItsConsumerMoves(t *testing.T) {
	r := newRig(t, Policy{}, 2)
	moves := 0
	for range 4 * 60 {
		r.attach(0, r.v.LUNs[0].Home.Peer())
		moves += len(r.pass(time.Minute))
	}
	if moves == 0 || moves > 4*MovesPerHour {
		t.Errorf("%d moves in 4 hours", moves)
	}
}
