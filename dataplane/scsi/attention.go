package scsi

import "slices"

// Attention is the additional sense of a unit attention condition, ASC in the high byte (SAM-5
// §5.14).
type Attention uint16

// Unit attentions that Gemel raises.
const (
	AttnPowerOn              Attention = 0x2900 // also: a new nexus
	AttnTargetReset          Attention = 0x2902
	AttnUnitReset            Attention = 0x2903
	AttnNexusLoss            Attention = 0x2907
	AttnModeChanged          Attention = 0x2a01
	AttnReservationPreempted Attention = 0x2a03
	AttnReservationReleased  Attention = 0x2a04
	AttnRegistrationPreempt  Attention = 0x2a05
	AttnALUAChanged          Attention = 0x2a06 // asymmetric access state changed
	AttnALUAFailed           Attention = 0x2a07 // implicit transition failed
	AttnCapacityChanged      Attention = 0x2a09
	AttnCommandsCleared      Attention = 0x2f00
	AttnLUNsChanged          Attention = 0x3f0e // reported LUNs data has changed
)

// RaiseUA establishes a unit attention on a unit (nil: on every unit that the host of the nexus
// sees) for every local nexus but except, as far as only takes it. except and only may be nil.
func (s *Server) RaiseUA(unit *Unit, except *NexusID, only func(NexusID) bool, asc, ascq byte) {
	a := Attention(asc)<<8 | Attention(ascq)
	nexuses := s.each(func(id *NexusID) bool {
		return (except == nil || *id != *except) && (only == nil || only(*id))
	})
	for _, n := range nexuses {
		if unit != nil {
			n.raise(unit, a)
			continue
		}
		for _, u := range s.units(n.ID.Initiator) {
			n.raise(u, a)
		}
	}
}

// raise queues an attention: in order, once each, and bounded.
func (n *Nexus) raise(u *Unit, a Attention) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := n.attentions[u]
	if n.closed || slices.Contains(q, a) {
		return
	}
	if len(q) >= maxUnitAttnPend {
		// More different events than there are codes here cannot be; if there were, the most
		// general one tells the host to look at everything again.
		n.pending.Add(int32(1 - len(q)))
		n.attentions[u] = append(q[:0], AttnPowerOn)
		return
	}
	n.attentions[u] = append(q, a)
	n.pending.Add(1)
}

// take removes and returns the oldest attention for u.
func (n *Nexus) take(u *Unit) (Attention, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := n.attentions[u]
	if len(q) == 0 {
		return 0, false
	}
	a := q[0]
	if len(q) == 1 {
		delete(n.attentions, u)
	} else {
		n.attentions[u] = q[1:]
	}
	n.pending.Add(-1)
	return a, true
}

// takeAttention reports the oldest attention as the outcome of t, if there is one.
func (n *Nexus) takeAttention(t *Task) bool {
	a, ok := n.take(t.unit)
	return ok && t.check(UnitAttention, uint16(a))
}

// dropAttention withdraws an attention on all units: REPORT LUNS answers 3F/0E (SPC-4 §6.33).
func (n *Nexus) dropAttention(a Attention) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for u, q := range n.attentions {
		if i := slices.Index(q, a); i >= 0 {
			n.pending.Add(-1)
			if q = slices.Delete(q, i, i+1); len(q) == 0 {
				delete(n.attentions, u)
			} else {
				n.attentions[u] = q
			}
		}
	}
}

// forget drops what is pending for a unit that the host loses.
func (n *Nexus) forget(u *Unit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending.Add(-int32(len(n.attentions[u])))
	delete(n.attentions, u)
}
