package initiator

import (
	"errors"

	"github.com/gemel-storage/gemel/internal/alua"
)

// This file holds the multipath policy as pure functions: which path serves, and what an outcome
// leads to.

// pathView is what routing knows of a path.
type pathView struct {
	portal  int        // its number; paths to one portal are together, in the order of portals
	up      bool       // logged in and verified to be the right unit
	blocked bool       // refused a command for its access state since that state was last read
	state   alua.State // of its target port group
}

// Ranks of paths; zero is unusable.
const (
	rankNone = iota
	rankTransitioning
	rankNonOptimized
	rankOptimized
)

// rank orders paths. A transitioning one is a last resort that is worth trying: the target holds
// commands for a while and serves them as soon as the transition is decided, sooner than polling
// could find out.
func (v pathView) rank() int {
	switch {
	case !v.up || v.blocked:
		return rankNone
	case v.state == alua.Optimized:
		return rankOptimized
	case v.state == alua.NonOptimized:
		return rankNonOptimized
	case v.state == alua.Transitioning:
		return rankTransitioning
	}
	return rankNone
}

// route picks the paths for the next commands: those of the best rank to one portal. Among equal
// portals it is the current one, since every switch makes the target wait for what the old path
// still holds. It returns nil when none serves. current may be -1.
func route(views []pathView, current int) (carry []int) {
	best, bestRank := -1, rankNone
	for _, v := range views {
		if r := v.rank(); r > bestRank || r == bestRank && r > rankNone && v.portal == current {
			best, bestRank = v.portal, r
		}
	}
	for i, v := range views {
		if v.portal == best && v.rank() == bestRank {
			carry = append(carry, i)
		}
	}
	return carry
}

// outcome is how a command ended.
type outcome struct {
	err    error // the session's, not the logical unit's
	status byte
	sense  Sense
}

// action is what follows from an outcome.
type action byte

const (
	actDone    action = iota
	actFail           // to the caller
	actRetry          // at once: the command was not executed (unit attention)
	actLater          // after a short, jittered delay
	actLimited        // after a short delay, a few times only, then to the caller
	actElsewhere
)

// note is what an outcome says about the path or the unit, beyond the command's own fate.
type note byte

const (
	noteNone       note = iota
	noteLost            // the session is gone
	noteNotServing      // the group's state is in verdict.state
	noteNoUnit          // no such logical unit here
	noteALUA            // states changed: read them again
	noteCapacity        // capacity changed
	noteInventory       // LUN inventory or identity changed: verify
	noteAttention       // another unit attention
)

type verdict struct {
	act   action
	note  note
	state alua.State // with noteNotServing
}

// decide turns an outcome into a verdict.
func decide(o outcome) verdict {
	if o.err != nil {
		switch {
		case errors.Is(o.err, ErrSessionLost):
			return verdict{act: actElsewhere, note: noteLost}
		case errors.Is(o.err, ErrTimeout), errors.Is(o.err, ErrAborted):
			return verdict{act: actLimited} // ended for certain: an abort was confirmed
		}
		return verdict{act: actFail}
	}
	switch o.status {
	case StatusGood:
		return verdict{act: actDone}
	case StatusBusy, StatusTaskSetFull:
		return verdict{act: actLater}
	case StatusTaskAborted:
		return verdict{act: actLimited}
	case StatusCheckCondition:
		return decideSense(o.sense)
	}
	return verdict{act: actFail}
}

func decideSense(s Sense) verdict {
	code := uint16(s.ASC)<<8 | uint16(s.ASCQ)
	switch s.Key {
	case KeyNoSense, KeyRecovered:
		return verdict{act: actDone}
	case KeyUnitAttention:
		v := verdict{act: actRetry, note: noteAttention}
		switch code {
		case 0x2a06, 0x2a07: // ASYMMETRIC ACCESS STATE CHANGED, IMPLICIT ... TRANSITION FAILED
			v.note = noteALUA
		case 0x2a09: // CAPACITY DATA HAS CHANGED
			v.note = noteCapacity
		case 0x3f0e, 0x3f03, 0x3f05: // REPORTED LUNS DATA, INQUIRY DATA, DEVICE IDENTIFIER HAS CHANGED
			v.note = noteInventory
		}
		return v
	case KeyNotReady:
		switch code {
		case 0x040a:
			return verdict{actElsewhere, noteNotServing, alua.Transitioning}
		case 0x040b:
			return verdict{actElsewhere, noteNotServing, alua.Standby}
		case 0x040c:
			return verdict{actElsewhere, noteNotServing, alua.Unavailable}
		case 0x0401, 0x0400, 0x0403: // becoming ready, cause not reportable, until an administrator has done something
			return verdict{act: actLater}
		}
	case KeyIllegalRequest:
		if s.ASC == 0x25 { // LOGICAL UNIT NOT SUPPORTED: unmapped here, or this node does not know it yet
			return verdict{act: actElsewhere, note: noteNoUnit}
		}
	case KeyAborted:
		return verdict{act: actLimited}
	}
	return verdict{act: actFail}
}
