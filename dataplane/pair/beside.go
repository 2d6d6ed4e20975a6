package pair

import "github.com/gemel-storage/gemel/dataplane/scsi"

// Several sessions of one host to one node (R11e). They do not exclude each other, so no path
// switch lies between them, and a host that leaves one of them continues over the next without a
// word to the node. What it had sent over the first may still be on its way, and the first may have
// shown life within proofMax: a connection can break in a moment.
//
// A host that has continued did so by a command (docs/decisions/0015). Here that would be said of
// nearly every write, for hosts use their sessions in turn. But a host that has continued over
// another session has repeated the write there, in the same range. So a write over one of several
// sessions starts only if no other nexus has been given a write to a part of its range since the
// last sign of life of its own. Otherwise its host is asked for a sign, and the write waits for a
// round trip.
//
// The table is of the node where the sessions are, also for what it forwards: a write counts from
// when this node hands it over, which is later than when its host had sent it.

const (
	granules    = 1 << granuleBits // entries of a table
	granuleBits = 13
	besideFor   = 10_000_000_000 // ns for which a host counts as one with several sessions, since it last used another one
	besideUnits = 60_000_000_000 // ns after which what is remembered of a LUN is forgotten, without such a host
	besideIDs   = 1 << 10        // sessions that are told apart
)

// latest is the session over which a host last wrote to a LUN here.
type latest struct {
	nexus   scsi.NexusID
	life    *scsi.Liveness
	at      int64 // 0: it has not written yet
	seen    int64 // a command of it has asked for this
	several int64 // it has several sessions here, until then
}

func (l *latest) same(o *Op) bool { return l.nexus == o.Cmd.Nexus && l.life == o.Cmd.Liveness }

// wroteHere notes that a write of a host is started or forwarded here.
func (m *Machine) wroteHere(now int64, o *Op) {
	if o.internal() || !o.Cmd.Kind.Writes() {
		return
	}
	if !o.remote {
		l := m.latestOf(now, o)
		if !l.same(o) {
			if l.at != 0 {
				l.several = now + besideFor
			}
			l.nexus, l.life = o.Cmd.Nexus, o.Cmd.Liveness
		}
		l.at = now
	}
	if w := o.unit.wrote; w != nil {
		w.note(now, o.Cmd)
	}
}

// latestOf is what is known of a host's sessions here. The op keeps it: no write that is as old as
// what is forgotten starts (R11b).
func (m *Machine) latestOf(now int64, o *Op) *latest {
	if o.latest == nil {
		k := pathKey{o.LUN, o.Cmd.Nexus.Initiator}
		l := m.hosts.latest[k]
		if l == nil {
			l = &latest{}
			m.hosts.latest[k] = l
		}
		l.seen, o.latest = now, l
	}
	return o.latest
}

// besides reports whether the host of a write may have left its session for another one to this
// node.
func (m *Machine) besides(now int64, o *Op) bool {
	l := m.latestOf(now, o)
	return l.at != 0 && (!l.same(o) || now < l.several)
}

// overwritten reports whether another nexus has been given a write to a part of o's range since the
// last sign of life of o's host. o is a host's write that arrived here.
func (m *Machine) overwritten(now int64, o *Op) bool {
	if o.remote || o.internal() || o.Cmd.Liveness == nil || !o.Cmd.Kind.Writes() || !m.besides(now, o) {
		return false
	}
	u := o.unit
	if u.wrote == nil {
		u.wrote = newWrote(now, m.cfg.Granule)
	}
	u.wrote.used = now
	return !u.wrote.calm(o.Cmd, o.Cmd.Liveness.At())
}

// tickBeside forgets what nothing has been asked of for long.
func (m *Machine) tickBeside(now int64) {
	if now-m.hosts.besideAt < besideFor {
		return
	}
	m.hosts.besideAt = now
	for k, l := range m.hosts.latest {
		if now-l.seen > besideUnits {
			delete(m.hosts.latest, k)
		}
	}
	for _, u := range m.units {
		if u.wrote != nil && now-u.wrote.used > besideUnits {
			u.wrote = nil
		}
	}
}

// wrote is when writes to a LUN were handed over, and of which nexus. It is a table of fixed size,
// in which ranges may share an entry: then a host is asked once more than is needed.
type wrote struct {
	size  int64 // bytes of a granule
	since int64 // anybody may have written anywhere until then
	used  int64
	ids   map[nexusLife]uint32
	slots [granules]wroteSlot
}

type nexusLife struct {
	nexus scsi.NexusID
	life  *scsi.Liveness
}

// wroteSlot is the last write to a granule, and the last one of any other nexus.
type wroteSlot struct {
	at, other int64
	id        uint32
}

// beside is when a nexus other than this one wrote there last.
func (x *wroteSlot) beside(id uint32) int64 {
	if x.id == id {
		return x.other
	}
	return x.at
}

func newWrote(now, granule int64) *wrote {
	return &wrote{size: granule, since: now, used: now, ids: map[nexusLife]uint32{}}
}

func (w *wrote) id(s *scsi.Op) uint32 {
	k := nexusLife{s.Nexus, s.Liveness}
	id, ok := w.ids[k]
	if !ok {
		id = uint32(len(w.ids) + 1)
		w.ids[k] = id
	}
	return id
}

func (w *wrote) note(now int64, s *scsi.Op) {
	if len(w.ids) >= besideIDs {
		*w = *newWrote(now, w.size)
	}
	id := w.id(s)
	if !w.each(s, func(i uint64) bool {
		x := &w.slots[i]
		if x.id != id {
			x.other, x.id = x.at, id
		}
		x.at = now
		return true
	}) {
		w.since = now
	}
}

// calm reports whether no other nexus has written to a part of the range after a sign of life of
// this one.
func (w *wrote) calm(s *scsi.Op, sign int64) bool {
	if w.since > sign {
		return false
	}
	id, ok := w.id(s), true
	wide := !w.each(s, func(i uint64) bool {
		ok = w.slots[i].beside(id) <= sign
		return ok
	})
	if !wide || !ok {
		return ok
	}
	for i := range w.slots {
		if w.slots[i].beside(id) > sign {
			return false
		}
	}
	return true
}

// each calls f with the entry of each granule of a write, until f returns false. It returns false
// if there are more granules than entries.
func (w *wrote) each(s *scsi.Op, f func(i uint64) bool) bool {
	total := int64(0)
	for _, r := range s.Ranges {
		total += r.Len/w.size + 2
	}
	if total+s.Len/w.size+2 > granules {
		return false
	}
	span := func(off, length int64) bool {
		for g := off / w.size; g*w.size < off+length; g++ {
			if !f(uint64(g) * 0x9e3779b97f4a7c15 >> (64 - granuleBits)) {
				return false
			}
		}
		return true
	}
	if s.Kind != scsi.OpUnmap {
		span(s.Off, s.Len)
		return true
	}
	for _, r := range s.Ranges {
		if !span(r.Off, r.Len) {
			break
		}
	}
	return true
}
