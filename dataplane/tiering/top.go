package tiering

import "slices"

// Top keeps the first of many items, in an order.
type Top[T any] struct {
	most int
	by   func(x, y T) int
	list []T
	bar  *T // there are enough that come before it
}

// NewTop keeps so many, in the order of a function as for slices.SortFunc, in which no two items
// are equal.
func NewTop[T any](most int, by func(x, y T) int) *Top[T] {
	return &Top[T]{most: max(most, 0), by: by}
}

// Add offers an item.
func (t *Top[T]) Add(x T) {
	if t.bar != nil && t.by(x, *t.bar) > 0 {
		return
	}
	if t.list = append(t.list, x); len(t.list) >= 4*t.most+64 {
		t.List()
	}
}

// List returns the items that are kept, in their order. It is valid until the next Add.
func (t *Top[T]) List() []T {
	slices.SortFunc(t.list, t.by)
	if len(t.list) > t.most {
		t.list = t.list[:t.most]
	}
	if t.most > 0 && len(t.list) == t.most {
		last := t.list[t.most-1]
		t.bar = &last
	}
	return t.list
}
