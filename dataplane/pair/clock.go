package pair

import "time"

// The machine's clock counts the time for which the operating system is suspended. It does not
// count the time for which a virtual machine is frozen together with its clocks: paused, saved,
// moved. A node that continues after that takes a lease for valid that its partner has waited out.
// It cannot know until a program sets the wall clock right: both clocks run at one rate, so a step
// of the one against the other is that or an administrator's, and is taken for the worse (R3).

// clockState is what is known of the wall clock.
type clockState struct {
	known     bool
	wall      int64 // ns by which it is ahead of this one
	steppedAt int64 // when a step was last reported
	signsAt   int64 // earlier signs of life count for nothing
}

// sayStep is how long after an event for a step of the clock the next step gets one (ns).
const sayStep = 10_000_000_000

// Wall sets how far the wall clock is ahead of CLOCK_BOOTTIME, in ns, before Tick. A step of more
// than the margin of an excluder takes back what confirms this node: it serves again when a
// heartbeat that it sends now is answered, or, alone, when the arbiter shows its record. A step
// forward is time that the commands here have waited, and their hosts been silent.
func (m *Machine) Wall(now, offset int64) {
	by := offset - m.clock.wall
	first := !m.clock.known
	m.clock.wall, m.clock.known = offset, true
	if first || -int64(m.cfg.Margin) <= by && by <= int64(m.cfg.Margin) {
		return
	}
	if by > 0 {
		m.stood(now, by)
	}
	// None is passed over because another came before it: by this clock the two may seem close,
	// whatever lies between them.
	m.Stats.ClockSteps++
	if m.clock.steppedAt == 0 || now-m.clock.steppedAt > sayStep {
		m.clock.steppedAt = now
		m.event("the wall clock stepped by %v: this node waits until the arbiter confirms its record", time.Duration(by))
	}
	m.unsure = m.arb.calls + 1
	m.watchAt = min(m.watchAt, now)
	m.resync.admitAt = min(m.resync.admitAt, now-int64(m.cfg.Lease))
	if m.phase != Paired {
		return
	}
	m.lease.beatFrom = m.lease.beatN + 1
	m.lease.until = min(m.lease.until, now)
	if !m.lease.graced {
		m.lease.graced, m.lease.graceUntil = true, now+int64(m.cfg.Lease)
	}
	m.lease.nextBeat = now
}

// stood accounts for time that the clock has not counted: what has not started may be older than it
// seems, and the one that sent it may have continued elsewhere (R11).
func (m *Machine) stood(now, by int64) {
	m.clock.signsAt = now
	for o := range m.eachOp() {
		if !o.began && !o.internal() {
			o.Cmd.Arrived -= by
		}
	}
	if by > int64(m.cfg.AgeMax) {
		m.act(Action{Kind: ActDropHosts, Text: "the clock stopped for a while, or the wall clock was set"})
	}
}

// confirmed: the arbiter has answered a call that was made since the step, or since the end of the
// wait for the node that was replaced, and this node is still what it was.
func (m *Machine) confirmed(now int64) {
	if m.unsure == 0 || m.arb.calls < m.unsure {
		return
	}
	m.unsure = 0
	if m.phase != Alone {
		return
	}
	if m.reason == unconfirmed {
		m.reason = ""
	}
	if m.holdTill == 0 && m.saved.state.Replaces {
		m.saved.state.Replaces = false
		m.saveState(thenNothing)
	}
	m.pump(now)
}

// A sign of life that is old, for a write that is forwarded. The owner has to know when it was, by
// the owner's clock, to tell whether another nexus has started a command since. The nodes' clocks
// do not agree, and what a message takes is not known, but heartbeats carry the time at which they
// were sent: whatever the owner did before it sent one, it did before everything that happened here
// after it came. So the time in the last heartbeat that had come when the ping was sent is never
// later than the sign.

const (
	beatEvery = 250_000_000 // ns between the heartbeats that are remembered
	beatsMax  = 64          // for as long as a sign may be old: a round trip, and the time between attempts of a host
)

// beat is when a heartbeat came, and the peer's clock in it.
type beat struct{ here, there int64 }

// noteBeat remembers the peer's clock, for the life of a link: that is with one process.
func (m *Machine) noteBeat(now, there int64) {
	if n := len(m.lease.beats); n > 0 && (now-m.lease.beats[n-1].here < beatEvery || there < m.lease.beats[n-1].there) {
		return
	}
	if len(m.lease.beats) == beatsMax {
		m.lease.beats = append(m.lease.beats[:0], m.lease.beats[1:]...)
	}
	m.lease.beats = append(m.lease.beats, beat{now, there})
}

// signed is a time by the peer's clock, not later than a time by the clock here; 0: none is known,
// or the peer could not use it.
func (m *Machine) signed(at int64) int64 {
	if !m.link.known || !m.link.peer.Signs {
		return 0
	}
	for i := len(m.lease.beats) - 1; i >= 0; i-- {
		if m.lease.beats[i].here <= at {
			return m.lease.beats[i].there
		}
	}
	return 0
}
