package pair

import "testing"

// A tick at the deadline is never too late and never too soon: just before it nothing happens, and
// at it the machine acts.
func TestDeadlineIsTheMomentToAct(t *testing.T) {
	for name, heard := range map[string]int64{"nothing comes": 0, "heartbeats are not answered": 100 * ms} {
		r := paired(t, B)
		r.now += 20 * ms
		if heard > 0 { // the peer speaks on, and its answers are lost
			r.now += heard
			r.recv(&Msg{Type: MsgHeartbeat, ID: 1})
		}
		d := r.m.Deadline()
		if d <= r.now || d > r.now+lease+1 {
			t.Fatalf("%s: a deadline %d ms from now", name, (d-r.now)/ms)
		}
		r.m.Tick(d - 1)
		if r.m.excl.active {
			t.Fatalf("%s: excluded before the deadline", name)
		}
		r.m.Tick(d)
		if !r.m.excl.active {
			t.Fatalf("%s: not excluded at the deadline", name)
		}
		r.queue = nil
		next := r.m.Deadline()
		if next != r.m.excl.until || next <= d {
			t.Fatalf("%s: the next deadline is %d, want %d", name, next, r.m.excl.until)
		}
		r.m.Tick(next - 1)
		r.none(ActArbiterCAS)
		r.m.Tick(next)
		r.now = next
		x := r.cas()
		if d := r.m.Deadline(); d != 0 {
			t.Fatalf("%s: a deadline %d while the arbiter is asked", name, d)
		}
		r.m.ArbiterDone(r.now, Unknown, nil, "", "lost")
		again := r.m.Deadline()
		r.m.Tick(again - 1)
		r.none(ActArbiterGet)
		r.m.Tick(again)
		r.next(ActArbiterGet)
		r.now = again
		r.won(x, "v6")
		r.saved()
		r.phase(Alone)
		if d, q := r.m.Deadline(), r.m.Quiet(r.now); d != 0 || q != 0 {
			t.Fatalf("%s: alone, a deadline %d and a silence of %v", name, d, q)
		}
	}
}

func TestQuietIsSinceTheLastMessage(t *testing.T) {
	r := paired(t, A)
	r.now += 70 * ms
	if q := r.m.Quiet(r.now); q.Milliseconds() < 70 {
		t.Fatalf("quiet for %v", q)
	}
	r.recv(&Msg{Type: MsgHeartbeat, ID: 1})
	if q := r.m.Quiet(r.now + 3*ms); q.Milliseconds() != 3 {
		t.Fatalf("quiet for %v after a message", q)
	}
}
