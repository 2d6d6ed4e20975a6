package pair

import "github.com/gemel-storage/gemel/target/scsi"

// Units are held still for a transfer of ownership or a snapshot.

// quiesce holds the commands of some units until they are released: for a transfer of ownership, a snapshot.
type quiesce struct {
	id       uint64
	units    []*unit
	deadline int64
	quiet    bool
}

// Quiesce holds new commands of units that this node owns and reports with ActQuiet when none is at work any
// more, or why that can not be within limit (ns). Once quiet it lasts until Release, whatever that takes: what the
// caller has proposed meanwhile may be in effect on the peer already (R10, R14).
func (m *Machine) Quiesce(now int64, id uint64, luns []LUNID, limit int64) {
	q := &quiesce{id: id, deadline: now + limit}
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
		if u.started > 0 {
			return
		}
	}
	q.quiet = true
	m.act(Action{Kind: ActQuiet, ID: q.id, Result: scsi.OK})
}

// quiet is called when a unit may have become quiet.
func (m *Machine) quiet(now int64, u *unit) {
	if u.quiesced == 0 || u.started > 0 {
		return
	}
	for _, id := range sorted(m.quiesces) {
		q := m.quiesces[id]
		for _, v := range q.units {
			if v == u {
				m.quietCheck(q)
				break
			}
		}
	}
}

// Release lets the commands of a quiesce go on, wherever the owner is now.
func (m *Machine) Release(now int64, id uint64) {
	q := m.quiesces[id]
	if q == nil {
		return
	}
	delete(m.quiesces, id)
	for _, u := range q.units {
		u.quiesced--
	}
	m.pump(now)
	m.settle(now)
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
