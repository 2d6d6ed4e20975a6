package pair

import "fmt"

// The end of a life: a node that will never serve again in this one says so, and its process ends,
// to be started again by what supervises it. The next life looks at the record, the peer and the
// store afresh.

// Over is why this life has stopped serving for good; empty as long as that may change. A node that
// leaves waits for its exclusion, by when its hosts have their answers and every frame of its is
// void (R12), but not for longer than LeaveMax: its end is as good a consent, because only one
// process at a time can hold a store (R2b). The life of a node whose record is lost is not over: an
// administrator restores the record or forces a node, and force needs the process. If the record
// comes back, it is.
func (m *Machine) Over(now int64) string {
	switch {
	case m.phase == Fenced && m.leave.why == "" && m.force.fenced:
		if m.recordBack {
			return "the arbiter has the record again: this process ends, and the next one acts on the record"
		}
	case m.phase == Fenced:
		return m.reason
	case m.leave.why != "" && (m.phase != Paired || now-m.leave.at >= int64(m.cfg.LeaveMax)):
		return m.leave.why
	}
	return ""
}

// lookAgain reads the record now and then although this node is fenced because it was lost: it may
// have been restored, or the other node may have been forced.
func (m *Machine) lookAgain(now int64) {
	if m.force.fenced && !m.recordBack && m.leave.why == "" && now-m.lookedAt >= int64(lookAgainEvery) {
		m.lookedAt = now
		m.get(now)
	}
}

// lookAgainEvery is how often.
const lookAgainEvery = 5_000_000_000 // ns

// faults counts the failures of the peer's store, so that a disk that is broken for good does not
// disturb this node and its hosts again and again: each try to copy to it costs them bandwidth, and
// if it hangs, writes wait for it. It knows nothing of how often the peer's process is started:
// whatever runs that may forget its own back-off when a copy takes long.
type faults struct {
	store  string      // whose store
	n      int         // in a row
	by     Incarnation // the last that said so of itself
	joined int64       // when it was readmitted last; 0: not since the last failure
	until  int64       // it is not copied to before
	text   string      // what this node says meanwhile
}

const (
	faultWaitMax = 300_000_000_000 // ns between two tries, at most
	faultForget  = 600_000_000_000 // ns as a member after which a store counts as sound
)

// peerFailed counts a failure. The wait doubles, from a lease to five minutes.
func (m *Machine) peerFailed(now int64) {
	f := &m.faults
	if m.link.peer.Failed && f.by == m.link.peer.Incarnation {
		return // it has said so already
	}
	if f.store != m.link.peer.Store || f.joined != 0 && now-f.joined >= faultForget {
		*f = faults{store: m.link.peer.Store}
	}
	f.by, f.joined = m.link.peer.Incarnation, 0
	f.n++
	wait := min(int64(m.cfg.Lease)<<min(f.n-1, 30), faultWaitMax)
	f.until = now + wait
	if f.n > 1 {
		f.text = fmt.Sprintf("node %s has failed %d times in a row: the next resync begins after %.1f s; check the disk of node %s, or replace it", m.cfg.Self.Peer(), f.n, float64(wait)/1e9, m.cfg.Self.Peer())
		m.event("%s", f.text)
	}
}

// peerWaits tells that the joiner's turn has not come yet.
func (m *Machine) peerWaits(now int64) bool {
	f := &m.faults
	waits := f.store == m.link.peer.Store && now < f.until
	switch {
	case waits && f.text != "":
		m.reason = f.text
	case m.reason == f.text:
		m.reason = ""
	}
	return waits
}

// peerDistrusted tells that the joiner's store had failed when the joiner last reported, whatever
// the joiner remembers of that: the disk may have refused the mark that makes it remember (R12).
func (m *Machine) peerDistrusted() bool {
	return m.link.peer.Untrusted && !m.link.peer.Partial || m.distrust != "" && m.distrust == m.link.peer.Store
}
