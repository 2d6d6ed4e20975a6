package register

import (
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// simplify leaves out attempts that cannot make a difference: the search takes time that grows exponentially with what is open at once, and after a fault
// every host has attempts of which nobody knows. An attempt whose value nobody has read, and no swap has expected, may have no effect: no operation needs it
// but a swap that found another value than it expected, if that was there before.
func simplify(first uint64, ops []porcupine.Operation) []porcupine.Operation {
	seen, written := map[uint64]bool{}, map[uint64]int64{first: math.MinInt64} // since when a value may have been there
	for _, o := range ops {
		switch i := o.Input.(Input); i.Kind {
		case Read:
			seen[o.Output.(uint64)] = true
			continue
		case Swap:
			seen[i.Expected] = true
			written[i.Value] = earliest(written, i.Value, o.Call)
		default:
			written[i.Value] = earliest(written, i.Value, o.Call)
		}
	}
	var missed []porcupine.Operation // swaps that found something else, where what they expected may have been
	for _, o := range ops {
		if i := o.Input.(Input); i.Kind == Swap && !i.Optional && o.Output.(uint64) == 0 {
			if _, ok := written[i.Expected]; ok {
				missed = append(missed, o)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(ops), func(o porcupine.Operation) bool {
		i := o.Input.(Input)
		if i.Kind == Read || !i.Optional || seen[i.Value] {
			return false
		}
		return !slices.ContainsFunc(missed, func(s porcupine.Operation) bool {
			return o.Call <= s.Return && o.Return >= written[s.Input.(Input).Expected]
		})
	})
}

func earliest(since map[uint64]int64, v uint64, at int64) int64 {
	if old, ok := since[v]; ok {
		return min(old, at)
	}
	return at
}
