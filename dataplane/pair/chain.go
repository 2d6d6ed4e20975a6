package pair

import "iter"

// chain is a list in order of arrival, whose links lie in its elements: nothing is allocated where
// commands go through. An element has a hook for each chain that it may be in.
type chain[T any] struct{ head, tail *hook[T] }

// hook is an element's place in a chain. The zero value is in none.
type hook[T any] struct {
	in         *chain[T]
	of         *T
	prev, next *hook[T]
}

// push puts an element at the end. It must not be in a chain by this hook.
func (c *chain[T]) push(h *hook[T], of *T) {
	*h = hook[T]{in: c, of: of, prev: c.tail}
	if c.tail == nil {
		c.head = h
	} else {
		c.tail.next = h
	}
	c.tail = h
}

// drop takes an element out of its chain, if it is in one.
func (h *hook[T]) drop() {
	c := h.in
	if c == nil {
		return
	}
	if h.prev == nil {
		c.head = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		c.tail = h.prev
	} else {
		h.next.prev = h.prev
	}
	*h = hook[T]{}
}

// first is the oldest element, nil if there is none.
func (c *chain[T]) first() *T {
	if c.head == nil {
		return nil
	}
	return c.head.of
}

// all walks the elements, oldest first. Those of the walk may be dropped, the one at hand and
// others; if the one at hand goes with the one after it, the walk ends.
func (c *chain[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for h := c.head; h != nil; {
			next := h.next
			if !yield(h.of) {
				return
			}
			if next != nil && next.in != c {
				if h.in != c {
					return
				}
				next = h.next
			}
			h = next
		}
	}
}
