package scsi

import "slices"

// PRAction is a service action of PERSISTENT RESERVE OUT (SPC-4 table 217), or one of the changes
// to the same state that other commands and events make.
type PRAction byte

// Actions.
const (
	PRRegister       PRAction = 0x00
	PRReserve        PRAction = 0x01
	PRRelease        PRAction = 0x02
	PRClear          PRAction = 0x03
	PRPreempt        PRAction = 0x04
	PRPreemptAbort   PRAction = 0x05
	PRRegisterIgnore PRAction = 0x06
	PRRegisterMove   PRAction = 0x07

	PRReserve6 PRAction = 0x80 // RESERVE(6), RESERVE(10)
	PRRelease6 PRAction = 0x81 // RELEASE, or the loss of the nexus
	PRReset    PRAction = 0x82 // a reset ends RESERVE(6) reservations
	PRUnmap    PRAction = 0x83 // the host (Initiator of the nexus) lost its access: all its registrations go
)

// PROut is one change of the reservation state, checked for form.
type PROut struct {
	Action     PRAction `json:"action"`
	Type       byte     `json:"type,omitempty"`
	Key        uint64   `json:"key,omitempty"`         // reservation key
	ServiceKey uint64   `json:"service_key,omitempty"` // service action reservation key
	APTPL      bool     `json:"aptpl,omitempty"`
	Unregister bool     `json:"unregister,omitempty"` // REGISTER AND MOVE
	MoveTo     NexusID  `json:"move_to,omitzero"`     // REGISTER AND MOVE
}

// PRUA is a unit attention that a change raises for a nexus, wherever that is connected.
type PRUA struct {
	Nexus     NexusID
	Attention Attention
}

// ASC and ASCQ are the attention's bytes.
func (u PRUA) ASC() byte  { return byte(u.Attention >> 8) }
func (u PRUA) ASCQ() byte { return byte(u.Attention) }

var prConflict = Outcome{Status: StatusReservationConflict}

// NoRegistrationResources is the outcome of a registration for which there is no room (SPC-4
// §5.13.7.2).
func NoRegistrationResources() Outcome {
	return prFail(ascRegistrationResources>>8, ascRegistrationResources&0xff)
}

func prFail(asc, ascq byte) Outcome {
	return Outcome{Status: StatusCheckCondition, Sense: FixedSense(IllegalRequest, asc, ascq)}
}

// ApplyPROut is the whole of SPC-4 §5.13 as a function: from a state and a request of a nexus to
// the next state, the command's outcome, the unit attentions to raise and the nexuses whose
// commands on the unit are to be aborted. It is deterministic, so that every node that applies the
// log arrives at the same. next is s itself when nothing changes; s is not modified.
func ApplyPROut(s *PRState, nexus NexusID, req *PROut) (next *PRState, out Outcome, uas []PRUA, aborts []NexusID) {
	c := prChange{PRState: *s, nexus: nexus, req: req}
	c.Registrants = slices.Clone(s.Registrants)
	out = c.apply()
	if out.Status != StatusGood || !c.changed {
		return s, out, nil, nil
	}
	return &c.PRState, out, c.uas, c.aborts
}

type prChange struct {
	PRState
	nexus   NexusID
	req     *PROut
	changed bool
	uas     []PRUA
	aborts  []NexusID
}

func (c *prChange) apply() Outcome {
	switch c.req.Action {
	case PRReserve6:
		return c.reserve6()
	case PRRelease6:
		if c.Reserved != nil && *c.Reserved == c.nexus {
			c.Reserved, c.changed = nil, true
		}
		return Outcome{} // from anyone else: nothing happens, successfully (SPC-2 §7.16)
	case PRReset:
		c.changed = c.Reserved != nil
		c.Reserved = nil
		return Outcome{}
	case PRUnmap:
		return c.unmap()
	}
	if c.Reserved != nil {
		return prConflict // RESERVE(6) and persistent reservations exclude each other (SPC-2 §5.5.1)
	}
	switch c.req.Action {
	case PRRegister, PRRegisterIgnore:
		return c.register()
	}
	i := c.find(&c.nexus)
	if i < 0 || c.Registrants[i].Key != c.req.Key {
		return prConflict
	}
	switch c.req.Action {
	case PRReserve:
		return c.reserve()
	case PRRelease:
		return c.releaseCommand()
	case PRClear:
		return c.clear()
	case PRPreempt, PRPreemptAbort:
		return c.preempt()
	case PRRegisterMove:
		return c.move()
	}
	return prFail(0x24, 0x00)
}

func (c *prChange) tell(n NexusID, a Attention) {
	if n != c.nexus {
		c.uas = append(c.uas, PRUA{n, a})
	}
}

func (c *prChange) tellRest(a Attention) {
	for _, r := range c.Registrants {
		c.tell(r.Nexus, a)
	}
}

func (c *prChange) touched() {
	c.changed = true
	c.Generation++
}

// release ends the reservation. The registrants-only and all-registrants types tell those that
// remain registered (SPC-4 §5.13.11.2).
func (c *prChange) release() {
	typ := c.Type
	c.Type, c.Holder = 0, NexusID{}
	c.changed = true
	if registrantsOnly(typ) || allRegistrants(typ) {
		c.tellRest(AttnReservationReleased)
	}
}

// drop removes a registrant, and the reservation with it when it was the (last) holder.
func (c *prChange) drop(i int) {
	n := c.Registrants[i].Nexus
	held := c.holds(&n)
	c.Registrants = slices.Delete(c.Registrants, i, i+1)
	if held && (!allRegistrants(c.Type) || len(c.Registrants) == 0) {
		c.release()
	}
}

func (c *prChange) register() Outcome {
	i := c.find(&c.nexus)
	if c.req.Action == PRRegister {
		var have uint64
		if i >= 0 {
			have = c.Registrants[i].Key
		}
		if c.req.Key != have {
			return prConflict
		}
	}
	switch {
	case i < 0 && c.req.ServiceKey == 0:
		return Outcome{}
	case i < 0:
		if len(c.Registrants) >= maxRegistrants {
			return NoRegistrationResources()
		}
		c.Registrants = append(c.Registrants, Registrant{c.nexus, c.req.ServiceKey})
	case c.req.ServiceKey == 0:
		c.drop(i)
	default:
		c.Registrants[i].Key = c.req.ServiceKey
	}
	c.APTPL = c.req.APTPL
	c.touched()
	return Outcome{}
}

func (c *prChange) reserve() Outcome {
	if c.Type != 0 {
		if c.holds(&c.nexus) && c.Type == c.req.Type {
			return Outcome{}
		}
		return prConflict
	}
	c.Type, c.changed = c.req.Type, true
	if !allRegistrants(c.Type) {
		c.Holder = c.nexus
	}
	return Outcome{}
}

func (c *prChange) releaseCommand() Outcome {
	if !c.holds(&c.nexus) {
		return Outcome{}
	}
	if c.Type != c.req.Type {
		return prFail(ascInvalidRelease>>8, ascInvalidRelease&0xff)
	}
	c.release()
	return Outcome{}
}

func (c *prChange) clear() Outcome {
	c.tellRest(AttnReservationPreempted)
	c.Registrants, c.Type, c.Holder = nil, 0, NexusID{}
	c.touched()
	return Outcome{}
}

func (c *prChange) preempt() Outcome {
	key := c.req.ServiceKey
	takes := false // the reservation changes hands
	switch {
	case c.Type != 0 && allRegistrants(c.Type):
		takes = key == 0
	case c.Type != 0:
		if key == 0 {
			return prFail(ascInvalidFieldParam>>8, ascInvalidFieldParam&0xff)
		}
		holder := c.find(&c.Holder)
		takes = holder >= 0 && c.Registrants[holder].Key == key
	case key == 0:
		return prFail(ascInvalidFieldParam>>8, ascInvalidFieldParam&0xff)
	}
	removed, matched := c.remove(func(r Registrant) bool { return takes && key == 0 || r.Key == key })
	if !matched && !takes {
		return prConflict
	}
	for _, n := range removed {
		c.tell(n, AttnRegistrationPreempt)
		if c.req.Action == PRPreemptAbort {
			c.aborts = append(c.aborts, n)
		}
	}
	if takes {
		if c.Type != c.req.Type {
			c.tellRest(AttnReservationReleased)
		}
		c.Type, c.Holder = c.req.Type, NexusID{}
		if !allRegistrants(c.Type) {
			c.Holder = c.nexus
		}
	}
	c.touched()
	return Outcome{}
}

// remove takes away the other nexuses' registrations that match. matched also counts the asking
// nexus's own, which stays (SPC-4 §5.13.11.4.4).
func (c *prChange) remove(match func(Registrant) bool) (removed []NexusID, matched bool) {
	c.Registrants = slices.DeleteFunc(c.Registrants, func(r Registrant) bool {
		if !match(r) {
			return false
		}
		matched = true
		if r.Nexus == c.nexus {
			return false
		}
		removed = append(removed, r.Nexus)
		return true
	})
	return removed, matched
}

// move registers another nexus and gives it the reservation (SPC-4 §5.13.8).
func (c *prChange) move() Outcome {
	if c.Type == 0 || !c.holds(&c.nexus) || allRegistrants(c.Type) {
		return prConflict
	}
	if c.req.ServiceKey == 0 || c.req.MoveTo == c.nexus {
		return prFail(ascInvalidFieldParam>>8, ascInvalidFieldParam&0xff)
	}
	if i := c.find(&c.req.MoveTo); i >= 0 {
		c.Registrants[i].Key = c.req.ServiceKey
	} else if len(c.Registrants) >= maxRegistrants {
		return NoRegistrationResources()
	} else {
		c.Registrants = append(c.Registrants, Registrant{c.req.MoveTo, c.req.ServiceKey})
	}
	c.Holder = c.req.MoveTo
	if c.req.Unregister {
		c.drop(c.find(&c.nexus))
	}
	c.APTPL = c.req.APTPL
	c.touched()
	return Outcome{}
}

// reserve6 follows SPC-4 §5.13.3 (CRH = 1): beside persistent reservations a RESERVE of a nexus
// that is allowed everything anyway succeeds without effect; any other conflicts.
func (c *prChange) reserve6() Outcome {
	if len(c.Registrants) > 0 {
		if c.find(&c.nexus) >= 0 && (c.holds(&c.nexus) || registrantsOnly(c.Type)) {
			return Outcome{}
		}
		return prConflict
	}
	if c.Reserved != nil {
		if *c.Reserved == c.nexus {
			return Outcome{}
		}
		return prConflict
	}
	n := c.nexus
	c.Reserved, c.changed = &n, true
	return Outcome{}
}

// unmap forgets a host: its registrations, and the reservation if it held it.
func (c *prChange) unmap() Outcome {
	if c.Reserved != nil && c.Reserved.Initiator == c.nexus.Initiator {
		c.Reserved, c.changed = nil, true
	}
	for i := 0; i < len(c.Registrants); {
		if c.Registrants[i].Nexus.Initiator == c.nexus.Initiator {
			c.drop(i)
			c.touched()
			continue
		}
		i++
	}
	return Outcome{}
}
