package pair

import (
	"slices"
	"testing"
)

func TestChainKeepsItsOrder(t *testing.T) {
	type element struct {
		n     int
		place hook[element]
	}
	var c chain[element]
	is := func(want ...int) {
		t.Helper()
		var got, back []int
		for e := range c.all() {
			got = append(got, e.n)
		}
		for h := c.tail; h != nil; h = h.prev {
			back = append(back, h.of.n)
		}
		slices.Reverse(back)
		if !slices.Equal(got, want) || !slices.Equal(back, want) {
			t.Fatalf("%v, from the end %v, want %v", got, back, want)
		}
		if e := c.first(); len(want) == 0 && e != nil || len(want) > 0 && (e == nil || e.n != want[0]) {
			t.Fatalf("the first is %v", e)
		}
	}
	is()
	e := make([]element, 4)
	for i := range e {
		e[i].n = i
		c.push(&e[i].place, &e[i])
	}
	is(0, 1, 2, 3)
	e[1].place.drop()
	e[1].place.drop() // it is in none any more
	is(0, 2, 3)
	c.push(&e[1].place, &e[1])
	is(0, 2, 3, 1)
	for x := range c.all() {
		if x.n == 0 || x.n == 1 {
			x.place.drop()
		}
	}
	is(2, 3)
	c.push(&e[0].place, &e[0])
	for x := range c.all() {
		if x.n == 2 {
			e[3].place.drop() // the walk continues behind it
		}
		x.n += 10
	}
	is(12, 10)
	for range c.all() {
		e[2].place.drop()
		e[0].place.drop()
	}
	is()
}
