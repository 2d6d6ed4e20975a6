package mutate

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestChooseByTitle(t *testing.T) {
	all := []string{"one", "two", "three"}
	for only, want := range map[string][]string{"": all, "o": {"one", "two"}, "three": {"three"}, "four": nil} {
		got, err := Choose(all, only, strings.Clone)
		if !slices.Equal(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%q: %v %v", only, got, err)
		}
	}
}

func TestEachKeepsTheOrder(t *testing.T) {
	var running atomic.Int32
	got := Each(make([]struct{}, 50), func(i int, _ struct{}) int {
		if n := running.Add(1); int(n) > runtime.GOMAXPROCS(0) {
			t.Errorf("%d at a time", n)
		}
		defer running.Add(-1)
		return i
	})
	for i, n := range got {
		if n != i {
			t.Fatalf("%v", got)
		}
	}
}

func TestProblemsAreJoined(t *testing.T) {
	errs := Problems([]int{1, 2, 3}, func(n *int) error {
		if *n == 2 {
			return nil
		}
		return fmt.Errorf("%d is odd", *n)
	})
	if len(errs) != 2 || errs[1].Error() != "3 is odd" {
		t.Error(errs)
	}
}
