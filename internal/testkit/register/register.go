// Package register judges what hosts saw of one block. Tests with hosts under faults share it.
package register

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// ErrTorn is a block that holds parts of two writes: a write of one block is atomic.
var ErrTorn = errors.New("the block is torn")

// Fill writes a value over the whole of a block; Parse reads it.
func Fill(b []byte, v uint64) []byte {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], v)
	}
	return b
}

// Parse is the inverse of Fill.
func Parse(b []byte) (uint64, error) {
	v := binary.BigEndian.Uint64(b)
	for i := 8; i+8 <= len(b); i += 8 {
		if w := binary.BigEndian.Uint64(b[i:]); w != v {
			return 0, fmt.Errorf("%w: %d at its beginning, %d at byte %d", ErrTorn, v, w, i)
		}
	}
	return v, nil
}

// A block is a register: clients write values that are never used twice, read them, and replace one
// by another with COMPARE AND WRITE. A block that was never written holds 0.

// Kind of an operation.
type Kind byte

// Kinds.
const (
	Read Kind = iota
	Write
	Swap // COMPARE AND WRITE; its output is 1 if it wrote, 0 if it found something else
)

// Input is an operation as the model sees it. An optional one may have taken effect or not: an
// attempt that was given up, an error, a retry inside the initiator.
type Input struct {
	Kind     Kind
	Value    uint64
	Expected uint64 // Swap
	Optional bool
}

func step(state, in, out any) []any {
	i, s := in.(Input), state.(uint64)
	switch {
	case i.Kind == Read:
		if s == out.(uint64) {
			return []any{s}
		}
		return nil
	case i.Kind == Swap && i.Optional:
		if s == i.Expected {
			return []any{s, i.Value}
		}
		return []any{s}
	case i.Kind == Swap:
		switch {
		case (s == i.Expected) != (out.(uint64) == 1):
			return nil
		case s == i.Expected:
			return []any{i.Value}
		}
		return []any{s}
	case i.Optional && s != i.Value:
		return []any{s, i.Value}
	}
	return []any{i.Value}
}

func describe(in, out any) string {
	i := in.(Input)
	mark := ""
	if i.Optional {
		mark = "?"
	}
	switch i.Kind {
	case Read:
		return fmt.Sprintf("read %d", out)
	case Swap:
		return fmt.Sprintf("compare%s %d, write %d: %v", mark, i.Expected, i.Value, out)
	}
	return fmt.Sprintf("write%s %d", mark, i.Value)
}

// modelFrom is a register that holds a value at first.
func modelFrom(value uint64) porcupine.Model {
	m := porcupine.NondeterministicModel{Init: func() []any { return []any{value} }, Step: step, DescribeOperation: describe}
	return m.ToModel()
}

// Anomaly is a history that has no explanation.
type Anomaly struct {
	Unknown bool // the check did not end
	Lost    bool // an acknowledged write is gone
	Text    string
}

// checkLimit bounds each search for one block of one window; histories are short, so it is not met
// in practice.
const checkLimit = 30 * time.Second

// Check judges what happened to one block since it held first.
func Check(first uint64, ops []porcupine.Operation) *Anomaly {
	if porcupine.CheckOperationsTimeout(modelFrom(first), leastAttempts(ops), checkLimit) == porcupine.Ok {
		return nil
	}
	switch porcupine.CheckOperationsTimeout(modelFrom(first), simplify(first, ops), checkLimit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return &Anomaly{Unknown: true, Text: list(first, ops)}
	}
	return &Anomaly{Lost: lostWrite(ops), Text: list(first, ops)}
}

// lostWrite says that a read brought a value that an acknowledged write had replaced, both written
// for certain and one strictly after the other, before the read began.
func lostWrite(ops []porcupine.Operation) bool {
	for _, r := range ops {
		if r.Input.(Input).Kind != Read {
			continue
		}
		for _, old := range ops {
			if i := old.Input.(Input); i.Kind == Read || i.Value != r.Output.(uint64) || old.Return >= r.Call {
				continue
			}
			for _, w := range ops {
				i := w.Input.(Input)
				written := i.Kind == Write && !i.Optional || i.Kind == Swap && !i.Optional && w.Output.(uint64) == 1
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
		if i := o.Input.(Input); i.Kind != Read && i.Value == op.Input.(Input).Value {
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
