package register

import (
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// simplify removes attempts that cannot change the verdict. The search takes time that grows
// exponentially with the number of operations that are open at once, and after a fault every host
// has attempts whose outcome is unknown. An attempt may have had no effect if no operation has read
// or expected its value. Only a swap that found another value than the expected one may need such
// an attempt, if the expected value was in the block before.
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

// leastAttempts removes every attempt that is not needed to explain what was read: all attempts
// whose value no operation has read, and, of the attempts to write one value, all but one, or all
// if an operation has written that value for certain. An order of the rest is an order of the whole
// history, in which the removed attempts had no effect. If the rest has no order, the whole history
// may still have one.
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
