package balance

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// Two hot LUNs at one node part company; the reason has the figures.
func TestHotLUNsPart(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	r.load(0, 0.35)
	r.load(2, 0.3)
	made := r.pass(30 * time.Minute)
	if len(made) != 1 || made[0].Reason != ReasonBalance || made[0].To != B || r.v.LUNs[0].Owner == r.v.LUNs[2].Owner {
		t.Fatalf("%+v", made)
	}
	if !made[0].SetsHome || made[0].Gain < 3*made[0].Cost || !strings.Contains(made[0].Text, "0.70") {
		t.Errorf("%+v", made[0])
	}
	if s := r.b.Stats(); s.Kept != 1 || s.Broken != 0 {
		t.Errorf("%+v", s)
	}
	r.none(r.pass(3 * time.Hour))
}

// What keeps work where it is. Each case has hot LUNs at one node.
func TestCalm(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		change func(r *rig)
		text   string
	}{
		"off":       {Policy{Mode: Off}, func(*rig) {}, "off"},
		"idle":      {Policy{}, func(r *rig) { r.load(0, 0.15); r.load(2, 0.15) }, "less than 40 %"},
		"saturated": {Policy{}, func(r *rig) { r.load(0, 0.5); r.load(2, 0.5); r.load(1, 1) }, "saturated"},
		"disturbed": {Policy{}, func(r *rig) { r.v.Disturbed = 1 << 60 }, "counted again"},
		"swinging":  {Policy{}, func(r *rig) { r.v.LUNs[0].Fast, r.v.LUNs[2].Fast = 0.05, 0.05 }, "swings"},
		"alone":     {Policy{}, func(r *rig) { r.v.Nodes[B].Member = false }, "only one node"},
		"even":      {Policy{Bound: 0.9}, func(*rig) {}, "differ"},
		"one giant": {Policy{}, func(r *rig) { r.load(0, 0.6); r.load(2, 0) }, "no move pays"},
		"costs":     {Policy{}, func(r *rig) { r.v.LUNs[0].Cold, r.v.LUNs[2].Cold = 1000, 1000 }, "no move pays"},
		"held":      {Policy{}, func(r *rig) { r.v.LUNs[0].Held, r.v.LUNs[2].Held = 1<<62, 1<<62 }, "no move pays"},
		"no path":   {Policy{}, func(r *rig) { r.reach(0, 0, B, false); r.reach(2, 0, B, false) }, "no move pays"},
		"crowding":  {Policy{}, func(r *rig) { r.v.LUNs[0].Crowds, r.v.LUNs[2].Crowds = true, true }, "no move pays"},
		"pinned":    {Policy{}, func(r *rig) { r.v.LUNs[0].Pin, r.v.LUNs[2].Pin = A, A }, "no move pays"},
	} {
		r := newRig(t, c.policy, 4)
		r.load(0, 0.35)
		r.load(2, 0.3)
		c.change(r)
		made := r.pass(20 * time.Minute)
		if len(made) > 0 || !strings.Contains(r.b.Calm(), c.text) {
			t.Errorf("%s: %q, %+v", name, r.b.Calm(), made)
		}
	}
}

// What is said names the resource that work is measured in.
func TestTextsNameTheResource(t *testing.T) {
	for disk, c := range map[string]struct{ its, their string }{"": {"of its CPUs", "of their CPUs"}, "fast": {"of its disk of volume fast", "of their disks of volume fast"}} {
		r := newRig(t, Policy{}, 4)
		r.v.Disk = disk
		r.load(0, 0.35)
		r.load(2, 0.3)
		if made := r.pass(20 * time.Minute); len(made) != 1 || !strings.Contains(made[0].Text, c.its) {
			t.Errorf("%+v", made)
		}
		if text := r.b.Calm(); !strings.Contains(text, c.their) {
			t.Errorf("of nodes that are even: %q", text)
		}
		r.load(0, 0.01)
		r.load(2, 0.01)
		if r.pass(5 * time.Second); !strings.Contains(r.b.Calm(), c.their) {
			t.Errorf("of idle nodes: %q", r.b.Calm())
		}
	}
}

func TestGroupsStaySpread(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	r.v.LUNs[0].Group, r.v.LUNs[1].Group = "g", "g"
	r.v.LUNs[2].Group, r.v.LUNs[3].Group = "h", "h"
	r.load(0, 0.6)
	r.none(r.pass(time.Hour)) // alone it would go, and its group would be at one node
	r.load(2, 0.2)
	r.load(3, 0.02)
	made := r.pass(time.Hour)
	if len(made) != 2 || r.v.LUNs[2].Owner == r.v.LUNs[3].Owner || r.v.LUNs[0].Owner == r.v.LUNs[2].Owner {
		t.Fatalf("two members of a group change places: %+v", made)
	}
}

// Nearness decides between moves that even work alike.
func TestNearnessDecidesBetweenEquals(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	r.v.LUNs[0].Near, r.v.LUNs[0].NearGain = A, 0.05
	r.v.LUNs[2].Near, r.v.LUNs[2].NearGain = B, 0.05
	r.load(0, 0.3)
	r.load(2, 0.3)
	r.one(r.pass(30*time.Minute), "r", B, ReasonBalance)
}

// A LUN that was moved rests, and for twice as long after each relapse.
func TestRestDoublesWithEachRelapse(t *testing.T) {
	m := &memory{back: None}
	b := New(0, Policy{Rest: time.Minute})
	b.luns["x"] = m
	now, rests := int64(0), []time.Duration{}
	for i := range 5 {
		to := Node((i + 1) % 2)
		b.Moved(now, Move{LUN: "x", From: to.Peer(), To: to, Reason: ReasonFailBack})
		rests = append(rests, m.rest)
		now = m.restTill
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16} {
		if rests[i] != want*time.Minute {
			t.Errorf("rests: %v", rests)
		}
	}
	if b.Moved(now+2*int64(time.Hour), Move{LUN: "x", From: B, To: A}); m.rest >= 16*time.Minute {
		t.Errorf("a move long after the last one is no relapse: %v", m.rest)
	}
}

// Work that comes and goes faster than it can be followed makes every move come late: they stop.
func TestFollowingThatDoesNotPayStops(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	r.pass(10 * time.Minute)
	r.make(Move{LUN: "p", From: A, To: B, Reason: ReasonBalance, SetsHome: true})
	r.load(1, 0.6)
	r.none(r.pass(5 * time.Second))
	r.b.regret.paid = 1e6
	r.one(r.pass(5*time.Second), "p", A, ReasonBalance)
	if !strings.Contains(r.b.Calm(), "has cost more") {
		t.Error(r.b.Calm())
	}
}

// What is taken back leaves groups spread as well.
func TestTakingBackKeepsGroupsSpread(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	r.pass(10 * time.Minute)
	r.make(Move{LUN: "p", From: A, To: B, Reason: ReasonBalance, SetsHome: true})
	for _, i := range []int{0, 2} { // one at each node now
		r.v.LUNs[i].Group = "g"
	}
	r.load(1, 0.6)
	r.none(r.pass(5 * time.Second))
	r.b.regret.paid = 1e6
	r.none(r.pass(5 * time.Second))
	r.v.LUNs[1].Group = "g" // two of three are at the node that p leaves
	r.one(r.pass(5*time.Second), "p", A, ReasonBalance)
}

// What another reason has moved is where it belongs: only moves that evened work are taken back.
func TestOnlyBalancingIsTakenBack(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	for i := range r.v.LUNs {
		r.v.LUNs[i].Owner = A // as at the end of a roll
	}
	if made := r.pass(10 * time.Minute); len(made) != 2 || made[0].Reason != ReasonFailBack {
		t.Fatalf("%+v", made)
	}
	r.v.LUNs[0].Owner, r.v.LUNs[0].Home = B, B // a person
	r.load(1, 0.6)
	r.pass(5 * time.Second)
	r.b.regret.paid = 1e6
	r.none(r.pass(5 * time.Minute))
	if !strings.Contains(r.b.Calm(), "has cost more") {
		t.Error(r.b.Calm())
	}
}

func TestBatches(t *testing.T) {
	r := newRig(t, Policy{}, 26)
	var moves []Move
	for i := range r.v.LUNs {
		l := &r.v.LUNs[i]
		l.Owner = A
		if l.Volume = "fast"; i%2 == 0 {
			l.Volume = "slow"
			l.Class = 1
		}
		l.Hosts[0].Active = i >= 4
		moves = append(moves, Move{LUN: l.ID, From: A, To: B})
	}
	seen := 0
	for i, batch := range Batches(&r.v, moves) {
		if len(batch) == 0 || len(batch) > batchMax {
			t.Fatalf("batch of %d", len(batch))
		}
		for _, m := range batch {
			n, first := index(&r.v, m.LUN), index(&r.v, batch[0].LUN)
			if idle := n < 4; idle != (i < 2) || n%2 != first%2 {
				t.Errorf("batch %d has %s", i, m.LUN)
			}
			seen++
		}
	}
	if seen != len(moves) {
		t.Errorf("%d of %d moves", seen, len(moves))
	}
}

func index(v *View, id string) int {
	return slices.IndexFunc(v.LUNs, func(l LUN) bool { return l.ID == id })
}

// A batch is one entry of the log, which sets the home of all of its LUNs or of none.
func TestBatchSetsHomeForAllOrNone(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	var moves []Move
	for i := range r.v.LUNs {
		moves = append(moves, Move{LUN: r.v.LUNs[i].ID, From: A, To: B, SetsHome: i%2 == 0})
	}
	count := 0
	for _, b := range Batches(&r.v, moves) {
		for _, m := range b {
			if count++; m.SetsHome != b[0].SetsHome {
				t.Errorf("%+v", b)
			}
		}
	}
	if count != 4 {
		t.Errorf("%d moves", count)
	}
}

func TestBatchesKeepUrgentMovesApart(t *testing.T) {
	r := newRig(t, Policy{}, 4)
	var moves []Move
	for i, why := range []Reason{ReasonFailBack, ReasonConnectivity, ReasonFailBack, ReasonConnectivity} {
		moves = append(moves, Move{LUN: r.v.LUNs[i].ID, From: A, To: B, Reason: why})
	}
	got := Batches(&r.v, moves)
	if len(got) != 2 || len(got[0]) != 2 || len(got[1]) != 2 || got[0][0].Reason != ReasonConnectivity || got[0][1].Reason != ReasonConnectivity {
		t.Errorf("%+v", got)
	}
}

// Averages climb to work that begins, past several levels. That is one change, and no work that
// lasts for a few minutes each time.
func TestWorkThatBeginsIsEvened(t *testing.T) {
	for _, idle := range []time.Duration{time.Minute, 3 * time.Hour} {
		for _, top := range []float64{0.35, 0.27} {
			r := newRig(t, Policy{}, 4)
			for i := range r.v.LUNs {
				r.load(i, 0)
			}
			r.none(r.pass(idle))
			var made []Move
			for s := 0; s < 900 && len(made) == 0; s += 5 {
				f := 1 - math.Exp(-float64(s)/SlowWindow.Seconds())
				r.load(0, top*f)
				r.load(2, 0.8*top*f)
				r.v.LUNs[0].Fast, r.v.LUNs[2].Fast = top, 0.8*top
				made = r.pass(5 * time.Second)
			}
			if len(made) != 1 || made[0].Reason != ReasonBalance {
				t.Errorf("idle for %v, then %.2f: %+v, %q", idle, top, made, r.b.Calm())
			}
		}
	}
}
