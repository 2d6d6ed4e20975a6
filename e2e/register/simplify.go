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

// leastAttempts leaves out attempts that may well have had no effect: all whose value nobody has seen, and all but one of those that write a value that no
// operation wrote for certain. An order of what is left is an order of everything, in which the others had no effect. That there is none says nothing.
func leastAttempts(ops []porcupine.Operation) []porcupine.Operation {
	need := map[uint64]bool{}
	for _, o := range ops {
		switch i := o.Input.(Input); {
		case i.Kind == Read:
			need[o.Output.(uint64)] = true
		case i.Kind == Swap && !i.Optional && o.Output.(uint64) == 1:
			need[i.Expected] = true
		}
	}
	for _, o := range ops {
		if i := o.Input.(Input); i.Kind == Write && !i.Optional || i.Kind == Swap && !i.Optional && o.Output.(uint64) == 1 {
			delete(need, i.Value)
		}
	}
	return slices.DeleteFunc(slices.Clone(ops), func(o porcupine.Operation) bool {
		i := o.Input.(Input)
		if i.Kind == Read || !i.Optional {
			return false
		}
		keep := need[i.Value]
		delete(need, i.Value)
		return !keep
	})
}

func earliest(since map[uint64]int64, v uint64, at int64) int64 {
	if old, ok := since[v]; ok {
		return min(old, at)
	}
	return at
}
