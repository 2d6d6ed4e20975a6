// Package rangelock is a table of locks of byte ranges, as each LUN has one. It is a plain data
// structure: no mutex, no clock and no goroutine, so that a state machine may have one.
package rangelock

import "iter"

// Request asks for one byte range [Off, End). The zero value of the unexported part is ready for
// use; a request may be reused once it has been released or cancelled.
type Request struct {
	Off, End int64
	Shared   bool // readers share; a writer excludes
	// Granted is called by the Release (or Cancel) that made room, with the caller's mutex held, so
	// it must only queue work. It is not called when Acquire returned true.
	Granted func(*Request)
	// Of is the caller's: what asks, so that one Granted serves all requests.
	Of any

	held       bool
	prev, next *Request
	in         *Table
}

// Held reports whether the lock is held now.
func (r *Request) Held() bool { return r.held }

// Queued reports whether the request waits.
func (r *Request) Queued() bool { return r.in != nil && !r.held }

// Table is the table of range locks of one logical unit. It is fair: a request waits for every
// earlier request, held or waiting, that overlaps it and conflicts, so writers are not starved by
// readers and overlapping writes take effect in the order they were asked for. It is a plain data
// structure: the caller brings the mutex (and in the simulator, the determinism). Cost is linear in
// the requests at hand, which the queue depth bounds.
type Table struct {
	head, tail *Request
	n          int
}

// Len is the number of requests held or waiting.
func (l *Table) Len() int { return l.n }

// All lists the requests held or waiting, oldest first.
func (l *Table) All() iter.Seq[*Request] {
	return func(yield func(*Request) bool) {
		for r := l.head; r != nil && yield(r); r = r.next {
		}
	}
}

// conflicts says whether b, which is later, must wait for a.
func conflicts(a, b *Request) bool {
	return a.Off < b.End && b.Off < a.End && !(a.Shared && b.Shared)
}

// blocked reports whether an earlier request conflicts with r.
func (l *Table) blocked(r *Request) bool {
	for q := r.prev; q != nil; q = q.prev {
		if conflicts(q, r) {
			return true
		}
	}
	return false
}

// Acquire asks for a range. It returns true when the lock is held on return, false when the request
// is queued and Granted will be called. A request that is held or queued already must not be passed
// again.
func (l *Table) Acquire(r *Request) bool {
	if r.in != nil {
		panic("rangelock: a lock request was used twice")
	}
	r.in, r.prev, r.next = l, l.tail, nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
	l.n++
	r.held = l.n == 1 || !l.blocked(r)
	return r.held
}

// Release gives a held range back and grants what waited for it.
func (l *Table) Release(r *Request) {
	if r.in != l || !r.held {
		panic("rangelock: release of a lock that is not held")
	}
	l.remove(r)
}

// Cancel withdraws a request that still waits and reports whether it did: false means it is held
// (or unknown here).
func (l *Table) Cancel(r *Request) bool {
	if r.in != l || r.held {
		return false
	}
	l.remove(r)
	return true
}

func (l *Table) remove(r *Request) {
	after := r.next
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.in, r.prev, r.next, r.held = nil, nil, nil, false
	l.n--
	// Only later requests that overlap r can have waited for it. Granted must not change the table
	// (it runs inside the walk), which is why it only queues work.
	for q := after; q != nil; q = q.next {
		if !q.held && q.Off < r.End && r.Off < q.End && !l.blocked(q) {
			q.held = true
			if q.Granted != nil {
				q.Granted(q)
			}
		}
	}
}
