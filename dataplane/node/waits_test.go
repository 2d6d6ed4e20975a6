package node

import "testing"

// An answer goes to who waits for its number, once; when all waits fail, each ends without an
// answer.
func TestWaitersTakeTheirAnswerOnce(t *testing.T) {
	var w waiters[int]
	if w.take(1) != nil {
		t.Error("a number without a waiter has one")
	}
	w.fail()
	c, d := make(chan int, 1), make(chan int, 1)
	w.add(1, c)
	w.add(2, d)
	if w.take(1) != c || w.take(1) != nil {
		t.Error("the answer of number 1")
	}
	w.fail()
	if _, ok := <-d; ok || w.take(2) != nil {
		t.Error("the wait for number 2 goes on")
	}
	close(c) // it was taken before
}

// A change wakes all who asked before it, and none who asks after it.
func TestSignalWakesWhoAskedBefore(t *testing.T) {
	var s signal
	s.changed()
	a, b := s.next(), s.next()
	select {
	case <-a:
		t.Error("nothing has changed since")
	default:
	}
	s.changed()
	<-a
	<-b
	select {
	case <-s.next():
		t.Error("nothing has changed since")
	default:
	}
}
