package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A block is a register: clients write values that are never used twice, read them, and replace one by another with
// COMPARE AND WRITE. A block nobody has written holds 0.

type opKind byte

const (
	opRead opKind = iota
	opWrite
	opSwap // COMPARE AND WRITE; its output is 1 if it wrote, 0 if it found something else
)

// input is an operation as the model sees it. An optional one may have taken effect or not: an attempt that was
// given up, an error, a retry inside the initiator.
type input struct {
	kind     opKind
	value    uint64
	expected uint64 // opSwap
	optional bool
}

func step(state, in, out any) []any {
	i, s := in.(input), state.(uint64)
	switch {
	case i.kind == opRead:
		if s == out.(uint64) {
			return []any{s}
		}
		return nil
	case i.kind == opSwap && i.optional:
		if s == i.expected {
			return []any{s, i.value}
		}
		return []any{s}
	case i.kind == opSwap:
		switch {
		case (s == i.expected) != (out.(uint64) == 1):
			return nil
		case s == i.expected:
			return []any{i.value}
		}
		return []any{s}
	case i.optional && s != i.value:
		return []any{s, i.value}
	}
	return []any{i.value}
}

func describe(in, out any) string {
	i := in.(input)
	mark := ""
	if i.optional {
		mark = "?"
	}
	switch i.kind {
	case opRead:
		return fmt.Sprintf("read %d", out)
	case opSwap:
		return fmt.Sprintf("compare%s %d, write %d: %v", mark, i.expected, i.value, out)
	}
	return fmt.Sprintf("write%s %d", mark, i.value)
}

// modelFrom is a register that holds a value at first.
func modelFrom(value uint64) porcupine.Model {
	m := porcupine.NondeterministicModel{Init: func() []any { return []any{value} }, Step: step, DescribeOperation: describe}
	return m.ToModel()
}

// key is a block of a LUN.
type key struct {
	lun   int
	block int64
}

func (k key) String() string { return fmt.Sprintf("LUN %d block %d", k.lun, k.block) }

// anomaly is a block whose history has no explanation.
type anomaly struct {
	key     key
	unknown bool // the check did not end
	lost    bool // an acknowledged write is gone
	text    string
}

func (a anomaly) String() string {
	what := "is not linearizable"
	switch {
	case a.unknown:
		what = "could not be checked in time"
	case a.lost:
		what = "lost an acknowledged write"
	}
	return fmt.Sprintf("%v %s:\n%s", a.key, what, a.text)
}

// checkLimit bounds the search for one block of one window; histories are short, so it is not met in practice.
const checkLimit = 30 * time.Second

// check judges what happened to one block since it held first.
func check(k key, first uint64, ops []porcupine.Operation) *anomaly {
	switch porcupine.CheckOperationsTimeout(modelFrom(first), ops, checkLimit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return &anomaly{key: k, unknown: true, text: list(first, ops)}
	}
	return &anomaly{key: k, lost: lostWrite(ops), text: list(first, ops)}
}

// lostWrite says that a read brought a value that an acknowledged write had replaced, both written for certain and
// one strictly after the other, before the read began.
func lostWrite(ops []porcupine.Operation) bool {
	for _, r := range ops {
		if r.Input.(input).kind != opRead {
			continue
		}
		for _, old := range ops {
			if i := old.Input.(input); i.kind == opRead || i.value != r.Output.(uint64) || old.Return >= r.Call {
				continue
			}
			for _, w := range ops {
				i := w.Input.(input)
				written := i.kind == opWrite && !i.optional || i.kind == opSwap && !i.optional && w.Output.(uint64) == 1
				if written && w.Call > lastReturn(ops, old) && w.Return < r.Call {
					return true
				}
			}
		}
	}
	return false
}

// lastReturn is the end of the last attempt to write what op wrote.
func lastReturn(ops []porcupine.Operation, op porcupine.Operation) int64 {
	end := op.Return
	for _, o := range ops {
		if i := o.Input.(input); i.kind != opRead && i.value == op.Input.(input).value {
			end = max(end, o.Return)
		}
	}
	return end
}

// list prints a history by time, ms since the run began.
func list(first uint64, ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var s strings.Builder
	fmt.Fprintf(&s, "  held %d at first\n", first)
	for _, o := range ops {
		fmt.Fprintf(&s, "  %12.3f..%12.3f client %d %s\n", float64(o.Call)/1e6, float64(o.Return)/1e6, o.ClientId, describe(o.Input, o.Output))
	}
	return s.String()
}
