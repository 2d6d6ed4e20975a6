package scsi

import "sync/atomic"

// taskState is the device server's part of a Task. The first group is guarded by the nexus, the
// second belongs to the command's own steps.
//
// A task on its way is pinned by everyone who may still touch it: the goroutine that submits its
// operation, and each aborter. A task that completes while pinned is delivered by the one who takes
// the last pin away. That is what lets an aborter call Medium.Abort on an operation without holding
// a lock and without finding the task reused.
type taskState struct {
	next, prev *Task
	pins       int
	tracked    bool
	submitted  bool      // the medium has the operation and Submit has returned: Medium.Abort may be called
	round      uint16    // counts the operations of a command of several steps
	finished   bool      // complete, but pinned
	killed     bool      // an abort reached it
	silent     bool      // by the wish of its own nexus: no response follows
	asked      bool      // its own nexus has asked for a reset since it came
	waiters    []*waiter // notified after delivery
	atCluster  bool      // its change is being handed to the cluster, or has been
	handed     bool      // it has been
	handing    []*waiter // notified when it has been

	after   func(*Server, *Task) bool // what to do with the result of a command of several steps; true = complete
	srv     *Server
	want    []byte // VERIFY: what the medium must hold; ORWRITE: the operand
	buf     []byte // VERIFY: a piece of the medium; ORWRITE: what the medium holds, then what it shall hold
	at      int    // VERIFY: bytes looked at
	total   int    // VERIFY: bytes to look at
	durable bool   // ORWRITE: FUA
	tries   uint8  // ORWRITE: what is left
}

// waiter counts what must end before done is called.
type waiter struct {
	left atomic.Int64
	done func()
}

func (w *waiter) drop() {
	if w.left.Add(-1) == 0 {
		w.done()
	}
}

// track enters a task, pinned once, before it leaves the command path. False: the nexus is closed,
// so the task has ended as aborted.
func (n *Nexus) track(t *Task) bool {
	st := &t.serverRef
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		t.Aborted = true
		return false
	}
	st.tracked, st.pins = true, 1
	if st.prev = n.last; n.last != nil {
		n.last.serverRef.next = t
	} else {
		n.first = t
	}
	n.last = t
	n.mu.Unlock()
	return true
}

// resetAsked marks the commands that a reset is asked for on behalf of: those on a unit (nil: all)
// that are there. A later one, which the reset may meet as well when its entry in the log is
// applied, has a greater CmdSN than the function, and its initiator waits for a response (RFC 7143
// §4.2.2.3.3).
func (n *Nexus) resetAsked(u *Unit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t := n.first; t != nil; t = t.serverRef.next {
		if u == nil || t.unit == u {
			t.serverRef.asked = true
		}
	}
}

// finishInline ends a task whose submitter holds a pin. True: it is complete and the caller returns
// it as such. False: it has been or will be delivered by Done.
func (n *Nexus) finishInline(t *Task) bool {
	st := &t.serverRef
	n.mu.Lock()
	st.pins--
	if st.pins > 0 {
		st.finished = true
		n.mu.Unlock()
		return false
	}
	waiters := n.unlink(t)
	n.mu.Unlock()
	if waiters == nil {
		return true
	}
	deliver(t, waiters) // before the waiters are notified, so not by returning true
	return false
}

// finish ends a task from a goroutine that holds no pin.
func (n *Nexus) finish(t *Task) {
	n.mu.Lock()
	if t.serverRef.pins > 0 {
		t.serverRef.finished = true
		n.mu.Unlock()
		return
	}
	waiters := n.unlink(t)
	n.mu.Unlock()
	deliver(t, waiters)
}

// unpin takes a pin away and delivers the task if that was what it waited for.
func (n *Nexus) unpin(t *Task) {
	n.mu.Lock()
	t.serverRef.pins--
	if t.serverRef.pins > 0 || !t.serverRef.finished {
		n.mu.Unlock()
		return
	}
	waiters := n.unlink(t)
	n.mu.Unlock()
	t.Ends = nil // it was another goroutine's
	deliver(t, waiters)
}

func deliver(t *Task, waiters []*waiter) {
	t.Done(t) // t may be in use for another command from here on
	for _, w := range waiters {
		w.drop()
	}
}

func (n *Nexus) unlink(t *Task) []*waiter {
	st := &t.serverRef
	if st.prev != nil {
		st.prev.serverRef.next = st.next
	} else {
		n.first = st.next
	}
	if st.next != nil {
		st.next.serverRef.prev = st.prev
	} else {
		n.last = st.prev
	}
	st.next, st.prev, st.tracked = nil, nil, false
	if st.killed {
		t.Aborted = t.Aborted || st.silent
		t.Status, t.Sense, t.DataIn, t.Transfer = StatusTaskAborted, nil, nil, 0
	}
	return st.waiters
}

// abort kills the tasks of nexuses that match: those that have not started end at once, the others
// run to their end. done is called, once, when all of them have been delivered. It returns how many
// there were.
//
// With entry, an entry of the log is what ends them. It must not wait for a task whose change is a
// later entry of the same log: that one waits for it. Such a task is killed and waited for only
// until its change has been handed over, which waits for nothing; the caller that proposed the
// entry waits for the rest by a second entry (Cluster.Reset, R11c).
func (s *Server) abort(nexuses []*Nexus, match, silent func(*Task) bool, entry bool, done func()) int {
	w := &waiter{done: done}
	w.left.Store(1)
	total := 0
	var atMedium []*Task
	for _, n := range nexuses {
		var victims []*Task
		atMedium = atMedium[:0]
		n.mu.Lock()
		for t := n.first; t != nil; t = t.serverRef.next {
			if !match(t) {
				continue
			}
			st := &t.serverRef
			st.killed = true
			st.silent = st.silent || silent(t)
			if entry && st.atCluster {
				if !st.handed {
					st.handing = append(st.handing, w)
					w.left.Add(1)
				}
				total++
				continue
			}
			st.pins++
			st.waiters = append(st.waiters, w)
			w.left.Add(1)
			victims = append(victims, t)
			// One that is not submitted yet is aborted by its submitter, who looks at killed.
			if st.submitted {
				atMedium = append(atMedium, t)
			}
		}
		n.mu.Unlock()
		for _, t := range atMedium {
			t.unit.medium.Abort(&t.op)
		}
		for _, t := range victims {
			n.unpin(t)
		}
		total += len(victims)
	}
	w.drop()
	return total
}

// execute hands t.op to the medium. after, if not nil, looks at a good result before the task ends;
// it returns false when it has prepared t.op for another operation.
func (s *Server) execute(t *Task, after func(*Server, *Task) bool) bool {
	st := &t.serverRef
	st.after, st.srv = after, s
	if !t.Nexus.track(t) {
		return true
	}
	t.op.Starts = t.Starts
	for {
		if round := st.round; !t.submitOp() {
			t.opened(round)
			return false
		}
		if t.step() {
			return t.Nexus.finishInline(t)
		}
	}
}

// opDone is Op.Done of every operation that a task submits.
func opDone(op *Op) {
	t := op.Task
	n := t.Nexus
	t.Ends, op.Starts = op.Ends, op.Ends
	for {
		if t.step() {
			n.finish(t)
			return
		}
		n.mu.Lock()
		t.serverRef.pins++
		n.mu.Unlock()
		if round := t.serverRef.round; !t.submitOp() {
			t.opened(round)
			return
		}
		n.mu.Lock()
		t.serverRef.pins--
		n.mu.Unlock()
	}
}

func (t *Task) submitOp() bool {
	op := &t.op
	op.Nexus, op.Liveness, op.Arrived, op.Task, op.Done, op.Ends = t.Nexus.ID, &t.Nexus.Liveness, t.Arrived, t, opDone, nil
	return t.unit.medium.Submit(op)
}

// opened lets aborters at the operation, now that Submit has returned, and makes up for one that
// came too early. If another operation has followed already, that one's submitter does it.
func (t *Task) opened(round uint16) {
	n, st := t.Nexus, &t.serverRef
	n.mu.Lock()
	late := false
	if st.round == round && !st.finished {
		st.submitted = true
		late = st.killed
	}
	n.mu.Unlock()
	if late {
		t.unit.medium.Abort(&t.op)
	}
	n.unpin(t)
}

// step turns the result of an operation into the task's outcome. False: another operation is
// prepared. Before a command of several steps touches its operation again it takes it back from
// aborters: one that comes from here on only marks the task, one that came before keeps it from
// starting.
func (t *Task) step() bool {
	n, st := t.Nexus, &t.serverRef
	if st.after != nil && (t.op.Result == OK || t.op.Result == Miscompare && st.tries > 0) {
		n.mu.Lock()
		st.submitted = false
		st.round++
		killed := st.killed
		n.mu.Unlock()
		return killed || st.after(st.srv, t)
	}
	t.finishOp()
	return true
}

// propose hands a change to the cluster and ends the task with its outcome. A task that was killed
// before has none: what an entry of the log has ended must not come after it.
func (s *Server) propose(t *Task, c Change) bool {
	n, st := t.Nexus, &t.serverRef
	if !n.track(t) {
		return true
	}
	n.mu.Lock()
	killed := st.killed
	st.atCluster = !killed
	n.mu.Unlock()
	if killed {
		return n.finishInline(t)
	}
	s.cluster.Propose(t.unit, n.ID, c, func(o Outcome) {
		t.Status = o.Status
		if len(o.Sense) > 0 {
			t.setSense(o.Sense)
		}
		n.finish(t)
	})
	n.mu.Lock()
	st.handed = true
	waiting := st.handing
	st.handing = nil
	n.mu.Unlock()
	for _, w := range waiting {
		w.drop()
	}
	n.unpin(t)
	return false
}
