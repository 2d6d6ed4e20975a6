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

// readmitted is a source whose readmission of B has just succeeded; B has not acted on the record.
func readmitted(t *testing.T) *rig {
	t.Helper()
	r := joining(t)
	r.m.lease.graced = true // a handshake under an earlier record came through, and heartbeats did not
	r.copied()
	r.recv(&Msg{Type: MsgFlushAllAck, Aux: 0})
	r.saveState()
	r.won(r.cas(), "v7")
	r.saved()
	r.phase(Paired)
	return r
}

// says has the peer report its standing every half lease for a time.
func (r *rig) says(in SyncInfo, d int64) {
	for end := r.now + d; r.now < end && !r.m.excl.active; {
		r.sync(in)
		r.pass(min(lease/2, end-r.now))
	}
}

// A peer that makes the record durable, or still has to read it, is not excluded after a lease: its
// next readmission would take as long.
func TestPeerThatEntersSlowlyIsNotExcluded(t *testing.T) {
	r := readmitted(t)
	in := r.joiner()
	in.Epoch, in.Durable = 6, 6 // it has not read the record
	r.says(in, 2*lease)
	in.Epoch = 7 // it is making it durable
	r.says(in, 2*lease)
	if r.m.excl.active {
		t.Fatalf("excluded: %s", r.m.excl.why)
	}
	in.Phase, in.Durable = Paired, 7
	r.sync(in)
	r.pass(10 * ms)
	if r.m.excl.active {
		t.Fatalf("excluded at once when it has entered: %s", r.m.excl.why)
	}
	r.beat()
	r.pass(lease / 2)
	r.says(in, 2*lease) // from here on a lease is all that it has: it answers no heartbeat
	if !r.m.excl.active || r.m.faults.n != 0 {
		t.Fatalf("excluding %v, %d failures", r.m.excl.active, r.m.faults.n)
	}
}

// It has Dm, and then the next resync waits longer each time.
func TestPeerThatNeverEntersIsExcluded(t *testing.T) {
	r := readmitted(t)
	in := r.joiner()
	in.Epoch, in.Durable = 7, 6
	from := r.now
	r.says(in, 2*int64(r.m.cfg.MirrorMax))
	if took := r.now - from; !r.m.excl.active || took < int64(r.m.cfg.MirrorMax) || took > int64(r.m.cfg.MirrorMax)+lease {
		t.Fatalf("excluding %v, after %d ms", r.m.excl.active, took/ms)
	}
	if r.m.faults.n != 1 || r.m.faults.until <= r.now {
		t.Fatalf("%+v", r.m.faults)
	}
}

// Only a peer that is about to enter has more than a lease.
func TestSilentPeerIsExcludedAfterALease(t *testing.T) {
	for name, change := range map[string]func(*SyncInfo){
		"fenced":              func(in *SyncInfo) { in.Phase = Fenced },
		"entered":             func(in *SyncInfo) { in.Phase, in.Durable, in.Excluding = Paired, 7, true },
		"a further life":      func(in *SyncInfo) { in.Incarnation.Nonce++ },
		"leaving":             func(in *SyncInfo) { in.Leaving = true },
		"nothing comes of it": nil,
	} {
		r := readmitted(t)
		in := r.joiner()
		in.Epoch, in.Durable = 7, 6
		if change == nil {
			r.pass(lease + 20*ms)
		} else {
			change(&in)
			r.says(in, lease+20*ms)
		}
		if !r.m.excl.active || r.m.faults.n != 0 {
			t.Errorf("%s: excluding %v, %d failures", name, r.m.excl.active, r.m.faults.n)
		}
	}
}
