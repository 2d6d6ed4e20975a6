package pair

import (
	"slices"

	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// Units are held still for a transfer of ownership, a snapshot, or a cut through many of them.

// quiesce holds the commands of some units until they are released.
type quiesce struct {
	id       uint64
	turn     uint64 // order of arrival
	units    []*unit
	deadline int64
	quiet    bool

	changes bool // only commands that change data are held
	fixed   bool // a quiesce of changes that does not end at the deadline
}

// quiescing are those of this node, by their numbers.
type quiescing struct {
	open  map[uint64]*quiesce
	turns uint64 // counts them
}

// Quiesce holds new commands of units that this node owns and reports with ActQuiet when none is at
// work any more, or why that cannot be within limit (ns). Once quiet it lasts until Release,
// whatever that takes: what the caller has proposed meanwhile may be in effect on the peer already
// (R10, R14). A unit has one at a time: a snapshot whose entry follows the one of a transfer would
// be taken while the new owner's writes run. The next one starts when the one before is released,
// if the unit is still ours.
func (m *Machine) Quiesce(now int64, id uint64, luns []LUNID, limit int64) {
	m.startQuiesce(now, &quiesce{id: id, deadline: now + limit}, luns)
}

// QuiesceChanges is Quiesce for commands that change data: it holds those, and waits for those
// only, so that a slow flush or read does not make it long.
func (m *Machine) QuiesceChanges(now int64, id uint64, luns []LUNID, limit int64) {
	m.startQuiesce(now, &quiesce{id: id, deadline: now + limit, changes: true, fixed: true}, luns)
}

// Hold is QuiesceChanges for the members of a cut. It ends by itself after limit (ns), whether it
// became quiet or not, unless it is fixed before. A unit that is held already is refused at once:
// of two cuts through the same units neither waits for the other one while it holds some.
func (m *Machine) Hold(now int64, id uint64, luns []LUNID, limit int64) {
	for _, l := range luns {
		if u := m.units[l]; u != nil && u.quiesced+u.kept > 0 {
			m.act(Action{Kind: ActQuiet, ID: id, Result: scsi.Unavailable})
			return
		}
	}
	m.startQuiesce(now, &quiesce{id: id, deadline: now + limit, changes: true}, luns)
}

// Fix has a quiesce of changes stand until it is released. False: it has ended, or is not quiet, or
// a unit of it is not this node's any more.
func (m *Machine) Fix(now int64, id uint64) bool {
	q := m.quiescing.open[id]
	if q == nil || !q.changes || !q.quiet || !m.Serving(now) || !q.fixed && now > q.deadline {
		return false
	}
	for _, u := range q.units {
		if !m.owns(u) {
			return false
		}
	}
	q.fixed = true
	return true
}

func (m *Machine) startQuiesce(now int64, q *quiesce, luns []LUNID) {
	m.quiescing.turns++
	q.turn = m.quiescing.turns
	for _, l := range luns {
		u := m.units[l]
		if u == nil || !m.owns(u) || !m.Serving(now) {
			m.act(Action{Kind: ActQuiet, ID: q.id, Result: scsi.Unavailable})
			return
		}
		q.units = append(q.units, u)
	}
	for _, u := range q.units {
		u.count(q, 1)
	}
	m.quiescing.open[q.id] = q
	m.quietCheck(q)
	m.settle(now)
}

// count notes that one more quiesce holds the unit's commands, or one less.
func (u *unit) count(q *quiesce, n int) {
	if q.changes {
		u.kept += n
	} else {
		u.quiesced += n
	}
}

// holds reports whether a command of a unit has to wait for a quiesce.
func (u *unit) holds(o *Op) bool { return u.quiesced > 0 || u.kept > 0 && o.changes() }

// changes reports whether an op changes what a unit holds. A copy to a joiner does not.
func (o *Op) changes() bool { return !o.internal() && o.Cmd.Kind.Writes() }

// atWork counts the ops that a quiesce waits for.
func (u *unit) atWork(q *quiesce) int {
	if q.changes {
		return u.changing
	}
	return u.started
}

func (m *Machine) quietCheck(q *quiesce) {
	if q.quiet {
		return
	}
	for _, u := range q.units {
		if u.atWork(q) > 0 || m.heldBefore(u, q) {
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
	for _, p := range m.quiescing.open {
		if p.turn < q.turn && slices.Contains(p.units, u) {
			return true
		}
	}
	return false
}

// quiet is called when a unit may have become quiet.
func (m *Machine) quiet(now int64, u *unit) {
	if u.quiesced+u.kept == 0 {
		return
	}
	for _, id := range sorted(m.quiescing.open) {
		if q := m.quiescing.open[id]; q != nil && slices.Contains(q.units, u) && u.atWork(q) == 0 {
			m.quietCheck(q)
		}
	}
}

// Release lets the commands of a quiesce continue, wherever the owner is now.
func (m *Machine) Release(now int64, id uint64) {
	q := m.quiescing.open[id]
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
	delete(m.quiescing.open, q.id)
	for _, u := range q.units {
		u.count(q, -1)
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
	for _, id := range sorted(m.quiescing.open) {
		q := m.quiescing.open[id]
		switch {
		case q == nil || now <= q.deadline:
		case !q.quiet:
			m.act(Action{Kind: ActQuiet, ID: id, Result: scsi.Busy})
			m.Release(now, id)
		case q.changes && !q.fixed:
			m.Release(now, id)
		}
	}
}

// Quiesced reports whether a unit's commands are held and none is at work.
func (m *Machine) Quiesced(id LUNID) bool {
	u := m.units[id]
	return u != nil && u.quiesced > 0 && u.started == 0
}

// Kept reports whether a unit's changes are held.
func (m *Machine) Kept(id LUNID) bool {
	u := m.units[id]
	return u != nil && u.kept > 0
}
