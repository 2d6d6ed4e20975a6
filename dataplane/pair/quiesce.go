package pair

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Units are held still for a transfer of ownership or a snapshot.

// quiesce holds the commands of some units until they are released: for a transfer of ownership, a
// snapshot.
type quiesce struct {
	id       uint64
	turn     uint64 // order of arrival
	units    []*unit
	deadline int64
	quiet    bool
}

// Quiesce holds new commands of units that this node owns and reports with ActQuiet when none is at
// work any more, or why that cannot be within limit (ns). Once quiet it lasts until Release,
// whatever that takes: what the caller has proposed meanwhile may be in effect on the peer already
// (R10, R14). A unit has one at a time: a snapshot whose entry follows the one of a transfer would
// be taken while the new owner's writes run. The next one starts when the one before is released,
// if the unit is still ours.
func (m *Machine) Quiesce(now int64, id uint64, luns []LUNID, limit int64) {
	m.quiesceN++
	q := &quiesce{id: id, turn: m.quiesceN, deadline: now + limit}
	for _, l := range luns {
		u := m.units[l]
		if u == nil || !m.owns(u) || !m.Serving(now) {
			m.act(Action{Kind: ActQuiet, ID: id, Result: scsi.Unavailable})
			return
		}
		q.units = append(q.units, u)
	}
	for _, u := range q.units {
		u.quiesced++
	}
	m.quiesces[id] = q
	m.quietCheck(q)
	m.settle(now)
}

func (m *Machine) quietCheck(q *quiesce) {
	if q.quiet {
		return
	}
	for _, u := range q.units {
		if u.started > 0 || m.heldBefore(u, q) {
			return
		}
	}
	for _, u := range q.units {
		if !m.owns(u) {
			m.drop(q)
			m.act(Action{Kind: ActQuiet, ID: q.id, Result: scsi.Unavailable})
			return
		}
	}
	q.quiet = true
	m.act(Action{Kind: ActQuiet, ID: q.id, Result: scsi.OK})
}

// heldBefore reports whether a unit's turn is another one's.
func (m *Machine) heldBefore(u *unit, q *quiesce) bool {
	for _, p := range m.quiesces {
		if p.turn < q.turn && slices.Contains(p.units, u) {
			return true
		}
	}
	return false
}

// quiet is called when a unit may have become quiet.
func (m *Machine) quiet(now int64, u *unit) {
	if u.quiesced == 0 || u.started > 0 {
		return
	}
	for _, id := range sorted(m.quiesces) {
		if q := m.quiesces[id]; slices.Contains(q.units, u) {
			m.quietCheck(q)
		}
	}
}

// Release lets the commands of a quiesce continue, wherever the owner is now.
func (m *Machine) Release(now int64, id uint64) {
	q := m.quiesces[id]
	if q == nil {
		return
	}
	m.drop(q)
	if q.quiet {
		q.passed(now)
	}
	m.pump(now)
	m.settle(now)
}

func (m *Machine) drop(q *quiesce) {
	delete(m.quiesces, q.id)
	for _, u := range q.units {
		u.quiesced--
	}
}

// passed notes that what a quiesce was for has happened to its units: a host may have continued
// because of it.
func (q *quiesce) passed(now int64) {
	for _, u := range q.units {
		u.starts = unknownStarts(now)
	}
}

func (m *Machine) tickQuiesce(now int64) {
	for _, id := range sorted(m.quiesces) {
		q := m.quiesces[id]
		if now > q.deadline && !q.quiet {
			m.act(Action{Kind: ActQuiet, ID: id, Result: scsi.Busy})
			m.Release(now, id)
		}
	}
}

// Quiesced reports whether a unit's commands are held and none is at work.
func (m *Machine) Quiesced(id LUNID) bool {
	u := m.units[id]
	return u != nil && u.quiesced > 0 && u.started == 0
}
