package pair

import (
	"testing"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

const secondsNS = 1000 * ms

// A machine that was frozen with its clocks believes in a lease that is over. When the wall clock
// is set right nothing that came before counts: neither the lease nor an answer to an earlier
// heartbeat (R3).
func TestClockStepTakesTheLeaseBack(t *testing.T) {
	for _, by := range []int64{3 * secondsNS, -3 * secondsNS, 20 * ms} {
		r := paired(t, A)
		r.m.Wall(r.now, 77*secondsNS)
		r.pass(60 * ms)
		before := r.sent(MsgHeartbeat)
		if !r.m.Serving(r.now) {
			t.Fatal("no lease")
		}
		r.m.Wall(r.now, 77*secondsNS+by)
		if r.m.Serving(r.now) {
			t.Fatalf("a step of %d ms and it serves", by/ms)
		}
		r.recv(&Msg{Type: MsgHeartbeatAck, ID: before.ID, Aux: r.now - 1})
		if r.m.Serving(r.now) {
			t.Fatal("the answer to a heartbeat of before the step gives a lease")
		}
		r.m.Tick(r.now)
		now := r.sent(MsgHeartbeat) // at once
		r.recv(&Msg{Type: MsgHeartbeatAck, ID: now.ID, Aux: now.Aux})
		if !r.m.Serving(r.now) || r.m.excl.active {
			t.Fatal("confirmed, and it does not serve")
		}
		if r.m.Stats.ClockSteps != 1 {
			t.Fatalf("%d steps", r.m.Stats.ClockSteps)
		}
		// The next one counts as well, however close by this clock: the machine may have been
		// frozen in between.
		r.m.Wall(r.now, 77*secondsNS+2*by)
		if r.m.Serving(r.now) {
			t.Fatal("the second step is passed over")
		}
		r.pass(lease + 20*ms)
		if !r.m.excl.active {
			t.Fatal("nobody confirms it, and it does not exclude")
		}
	}
}

// What both clocks do alike, and what reading them one after the other costs, is no step.
func TestClocksThatRunTogether(t *testing.T) {
	r := paired(t, A)
	off := int64(0)
	for range 100 {
		r.m.Wall(r.now, off)
		off += ms
	}
	if !r.m.Serving(r.now) || r.m.Stats.ClockSteps != 0 {
		t.Fatalf("%d steps", r.m.Stats.ClockSteps)
	}
}

// A command that had not started is as much older as the clock was stopped, hosts prove themselves
// again, and after more than a command may be old their connections go.
func TestClockStepAgesCommands(t *testing.T) {
	for by, want := range map[int64]scsi.Result{900 * ms: scsi.OK, 1100 * ms: scsi.Busy} {
		r := paired(t, A)
		r.m.Wall(r.now, 0)
		r.m.lease.until = r.now
		o := r.submit(r.op(scsi.OpWrite, 0, 512))
		o.Cmd.Liveness = new(scsi.Liveness)
		o.Cmd.Liveness.Answered(r.now)
		r.now += ms
		r.m.Wall(r.now, by)
		_, dropped := r.poll(ActDropHosts)
		if dropped != (by > 1000*ms) {
			t.Fatalf("%d ms: connections are dropped: %v", by/ms, dropped)
		}
		r.beat()
		x := r.next(ActProve)
		r.notSent(MsgMirror)
		o.Cmd.Liveness.Answered(r.now)
		r.m.Proved(r.now, x.Alive)
		if want == scsi.Busy {
			r.ended(o, scsi.Busy)
			continue
		}
		r.mirrorAck(r.sent(MsgMirror), scsi.OK)
		r.stored(scsi.OK)
		r.ended(o, scsi.OK)
	}
}

// Alone, the arbiter has to show the record once more. What was asked before does not count.
func TestClockStepAlone(t *testing.T) {
	r := alone(t, A)
	r.m.Wall(r.now, 0)
	r.m.get(r.now) // under way
	r.m.Wall(r.now, secondsNS)
	if r.m.Serving(r.now) {
		t.Fatal("serves on")
	}
	r.got(record(6, A), "v6")
	if r.m.Serving(r.now) {
		t.Fatal("an answer to what was asked before counts")
	}
	r.pass(20 * ms)
	r.arbiter(Unknown)
	if r.m.Serving(r.now) {
		t.Fatal("no answer counts")
	}
	r.pass(300 * ms)
	r.got(record(6, A), "v6")
	if !r.m.Serving(r.now) {
		t.Fatal("confirmed, and it does not serve")
	}
	r.m.Wall(r.now, 0)
	r.pass(20 * ms)
	r.got(forced(7, 2, B), "v7")
	r.phase(Fenced)
}
