package scsi

import "sync/atomic"

// TMFunction is a task management function as iSCSI encodes it (RFC 7143 §11.5.1).
type TMFunction byte

// Task management functions. What is not listed is answered TMFNotSupported.
const (
	TMFAbortTask       TMFunction = 1
	TMFAbortTaskSet    TMFunction = 2
	TMFClearACA        TMFunction = 3
	TMFClearTaskSet    TMFunction = 4
	TMFLUNReset        TMFunction = 5
	TMFTargetWarmReset TMFunction = 6
	TMFTargetColdReset TMFunction = 7
	TMFTaskReassign    TMFunction = 8
)

// TMResponse answers a task management function, in the encoding of RFC 7143 §11.6.1.
type TMResponse = byte

// Task management responses.
const (
	TMFComplete         TMResponse = 0
	TMFNoSuchTask       TMResponse = 1
	TMFNoSuchLUN        TMResponse = 2
	TMFNoReassign       TMResponse = 4 // task allegiance reassignment not supported
	TMFNotSupported     TMResponse = 5
	TMFRejected         TMResponse = 255
	abortTaskNotMatched            = 0
)

// TMF is a task management request.
type TMF struct {
	Nexus    *Nexus
	Function TMFunction
	LUN      uint64 // eight-byte field; not looked at by the target resets
	Tag      uint32 // ABORT TASK: initiator task tag of the command
}

// TaskManagement executes r and calls done, once, from any goroutine, when every affected command
// has been delivered (with Task.Aborted where no response follows) or will never start, on both
// nodes where the function reaches both (R11c). A cold reset is executed as a warm one; dropping
// the connections is the transport's part. TMFNoSuchTask for ABORT TASK means that the device
// server does not have the command: the transport may.
func (s *Server) TaskManagement(r TMF, done func(TMResponse)) {
	switch r.Function {
	case TMFTargetWarmReset, TMFTargetColdReset:
		s.reset(r.Nexus, nil, ResetTarget, done)
		return
	case TMFTaskReassign:
		done(TMFNoReassign)
		return
	case TMFAbortTask, TMFAbortTaskSet, TMFClearTaskSet, TMFLUNReset:
	default:
		done(TMFNotSupported)
		return
	}
	var u *Unit
	if number, ok := FlatLUN(r.LUN); ok {
		u = s.cluster.Lookup(r.Nexus.ID.Initiator, number)
	}
	if u == nil {
		done(TMFNoSuchLUN)
		return
	}
	switch r.Function {
	case TMFAbortTask:
		var found atomic.Int32
		s.abort([]*Nexus{r.Nexus}, func(t *Task) bool {
			if t.Tag != r.Tag || t.unit != u {
				return false
			}
			found.Add(1)
			return true
		}, silently, false, func() {
			if found.Load() == abortTaskNotMatched {
				done(TMFNoSuchTask)
				return
			}
			done(TMFComplete)
		})
	case TMFAbortTaskSet:
		s.abort([]*Nexus{r.Nexus}, onUnit(u), silently, false, func() { done(TMFComplete) })
	case TMFClearTaskSet, TMFLUNReset:
		s.reset(r.Nexus, u, ResetUnit, done)
	}
}

// reset has the cluster abort commands on both nodes, then ends what a reset ends: RESERVE(6)
// reservations, and mode parameters that were not saved.
func (s *Server) reset(n *Nexus, u *Unit, scope ResetScope, done func(TMResponse)) {
	n.resetAsked(u)
	s.cluster.Reset(u, scope, n.ID, func(ok bool) {
		if !ok {
			done(TMFRejected)
			return
		}
		units, attention := []*Unit{u}, AttnUnitReset
		if u == nil {
			units, attention = s.units(n.ID.Initiator), AttnTargetReset
		}
		for _, u := range units { // the requesting nexus gets a unit attention too (SAM-5 §6.3.3); the cluster notifies the others
			n.raise(u, attention)
		}
		w := &waiter{done: func() { done(TMFComplete) }}
		w.left.Store(1)
		for _, u := range units {
			if pr := u.pr.Load(); pr != nil && pr.Reserved != nil {
				w.left.Add(1)
				s.cluster.Propose(u, n.ID, Change{PROut: &PROut{Action: PRReset}}, func(Outcome) { w.drop() })
			}
			if m := u.mode.Load(); m.Current != m.Saved {
				w.left.Add(1)
				s.cluster.Propose(u, n.ID, Change{ModeSelect: &ModeSelect{Restore: true}}, func(Outcome) { w.drop() })
			}
		}
		w.drop()
	})
}
