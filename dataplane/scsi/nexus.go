package scsi

import (
	"sync"
	"sync/atomic"
)

// Nexus is an I_T nexus as long as its session lives. Two may share an ID for a moment, while a
// session is being reinstated.
type Nexus struct {
	ID       NexusID
	Liveness Liveness
	server   *Server

	mu          sync.Mutex
	first, last *Task // at a medium or at the cluster, and not complete
	closed      bool
	attentions  map[*Unit][]Attention
	pending     atomic.Int32 // attentions over all units: a quick look for the command path
	askedGroups atomic.Int64
	usesPath    atomic.Int64
	evidence    atomic.Uint32 // commands that count for usesPath, until it is set
}

// AskedGroups is when the last REPORT TARGET PORT GROUPS arrived that was answered, as Task.Arrived
// has it; 0: none was.
func (n *Nexus) AskedGroups() int64 { return n.askedGroups.Load() }

// OpenNexus makes a nexus for a new session. Each unit that the host sees has a 29/00 attention for
// it.
func (s *Server) OpenNexus(id NexusID) *Nexus {
	n := &Nexus{ID: id, server: s, attentions: make(map[*Unit][]Attention)}
	// Known to RaiseUA before the units are listed, so that none slips through between.
	s.mu.Lock()
	s.nexuses[n] = struct{}{}
	s.mu.Unlock()
	for _, u := range s.units(id.Initiator) {
		n.raise(u, AttnPowerOn)
	}
	return n
}

// CloseNexus ends a nexus: commands not yet started never will, and done is called when all the
// others have ended and what the nexus had reserved with RESERVE(6) is free again. Tasks end with
// Aborted set. The transport submits nothing for it any more.
func (s *Server) CloseNexus(n *Nexus, done func()) {
	s.mu.Lock()
	delete(s.nexuses, n)
	s.mu.Unlock()
	n.mu.Lock()
	n.closed = true
	n.attentions = nil
	n.pending.Store(0)
	n.mu.Unlock()
	s.abort([]*Nexus{n}, func(*Task) bool { return true }, silently, false, func() { s.dropReserved(n, done) })
}

// dropReserved proposes the end of the RESERVE(6) reservations that n holds (SPC-2 §5.5.1: a nexus
// loss ends them).
func (s *Server) dropReserved(n *Nexus, done func()) {
	w := &waiter{done: done}
	w.left.Store(1)
	for _, u := range s.units(n.ID.Initiator) {
		if pr := u.pr.Load(); pr == nil || pr.Reserved == nil || *pr.Reserved != n.ID {
			continue
		}
		w.left.Add(1)
		s.cluster.Propose(u, n.ID, Change{PROut: &PROut{Action: PRRelease6}}, func(Outcome) { w.drop() })
	}
	w.drop()
}

// units lists what a host sees.
func (s *Server) units(host string) []*Unit {
	var out []*Unit
	for _, l := range s.cluster.LUNs(host, nil) {
		if u := s.cluster.Lookup(host, l); u != nil {
			out = append(out, u)
		}
	}
	return out
}

// each lists the nexuses that sel takes; nil takes all.
func (s *Server) each(sel func(*NexusID) bool) []*Nexus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Nexus, 0, len(s.nexuses))
	for n := range s.nexuses {
		if sel == nil || sel(&n.ID) {
			out = append(out, n)
		}
	}
	return out
}

// AbortUnit kills the commands of every local nexus on u (nil: on all units) that have not started,
// and calls done when all have ended but those whose change the cluster has: the caller is an entry
// of its log, for which they wait. They end with TASK ABORTED (the control mode page says TAS = 1).
func (s *Server) AbortUnit(u *Unit, done func()) {
	s.AbortUnitFor(u, NexusID{}, done)
}

// AbortUnitFor is AbortUnit at the request of one nexus, whose own commands end without a response:
// its initiator asked for it (SAM-5 §5.6). Those that came after it had asked are answered as other
// nexuses' are.
func (s *Server) AbortUnitFor(u *Unit, by NexusID, done func()) {
	s.abort(s.each(nil), onUnit(u), func(t *Task) bool { return t.Nexus.ID == by && t.serverRef.asked }, true, done)
}

// AbortNexusUnit is AbortUnit for the nexuses of one host (iSCSI name): its access to u is being
// withdrawn.
func (s *Server) AbortNexusUnit(host string, u *Unit, done func()) {
	nexuses := s.each(func(id *NexusID) bool { return id.Initiator == host })
	for _, n := range nexuses {
		n.forget(u)
	}
	s.abort(nexuses, onUnit(u), loudly, true, done)
}

// AbortNexus is AbortUnit for one nexus, as PREEMPT AND ABORT needs it.
func (s *Server) AbortNexus(id NexusID, u *Unit, done func()) {
	s.abort(s.each(func(o *NexusID) bool { return *o == id }), onUnit(u), loudly, true, done)
}

// Drain waits and aborts nothing: done is called when the commands of a host (iSCSI name) that are
// in flight on u now have ended.
func (s *Server) Drain(host string, u *Unit, done func()) {
	w := &waiter{done: done}
	w.left.Store(1)
	for _, n := range s.each(func(id *NexusID) bool { return id.Initiator == host }) {
		n.mu.Lock()
		for t := n.first; t != nil; t = t.serverRef.next {
			if t.unit == u {
				w.left.Add(1)
				t.serverRef.waiters = append(t.serverRef.waiters, w)
			}
		}
		n.mu.Unlock()
	}
	w.drop()
}

func onUnit(u *Unit) func(*Task) bool {
	return func(t *Task) bool { return u == nil || t.unit == u }
}

func silently(*Task) bool { return true }
func loudly(*Task) bool   { return false }

// InFlight is the number of commands on u (nil: all units) that are at a medium or at the cluster.
func (s *Server) InFlight(u *Unit) int {
	total := 0
	for _, n := range s.each(nil) {
		n.mu.Lock()
		for t := n.first; t != nil; t = t.serverRef.next {
			if u == nil || t.unit == u {
				total++
			}
		}
		n.mu.Unlock()
	}
	return total
}
