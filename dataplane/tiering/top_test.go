package tiering

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTopKeepsTheFirst(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	for _, most := range []int{0, 1, 7, 100, 5000} {
		list := r.Perm(3000)
		top := NewTop(most, cmp.Compare[int])
		for _, x := range list {
			top.Add(x)
		}
		slices.Sort(list)
		if got, want := top.List(), list[:min(most, len(list))]; !slices.Equal(got, want) {
			t.Errorf("the first %d: %v", most, got[:min(len(got), 10)])
		}
	}
}
