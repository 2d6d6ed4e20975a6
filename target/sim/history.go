package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what hosts saw, per block.
type history struct {
	values uint64
	blocks map[[2]int64][]porcupine.Operation
}

type input struct {
	write    bool
	optional bool // an attempt that was given up: it may have taken effect or not
	value    uint64
}

// add records a finished logical operation. Each attempt of a write may have taken effect once, at any time from its
// start until the operation returned: a host's own retry is at-least-once (R11d). The last one did.
func (h *history) add(client int, l logical, v uint64, end int64) {
	if h.blocks == nil {
		h.blocks = map[[2]int64][]porcupine.Operation{}
	}
	k := [2]int64{int64(l.lun), l.block}
	if !l.write {
		t := l.tries[len(l.tries)-1]
		h.blocks[k] = append(h.blocks[k], porcupine.Operation{ClientId: client, Input: input{}, Output: v, Call: t.start, Return: end})
		return
	}
	for i, t := range l.tries {
		if t.none {
			continue
		}
		last := i == len(l.tries)-1
		h.blocks[k] = append(h.blocks[k], porcupine.Operation{ClientId: client, Input: input{write: true, optional: !last, value: v},
			Output: v, Call: t.start, Return: end})
	}
}

// model is a register whose optional writes may not happen.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{uint64(0)} },
	Step: func(state, in, out any) []any {
		i := in.(input)
		switch {
		case i.optional && state.(uint64) != i.value:
			return []any{state, i.value}
		case i.write:
			return []any{i.value}
		case state.(uint64) == out.(uint64):
			return []any{state}
		}
		return nil
	},
	DescribeOperation: func(in, out any) string {
		i := in.(input)
		switch {
		case i.optional:
			return fmt.Sprintf("write? %d", i.value)
		case i.write:
			return fmt.Sprintf("write %d", i.value)
		}
		return fmt.Sprintf("read %d", out)
	},
}).ToModel()

func (h *history) linearizable() error {
	keys := make([][2]int64, 0, len(h.blocks))
	for k := range h.blocks {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		ops := h.blocks[k]
		switch porcupine.CheckOperationsTimeout(model, ops, 20*time.Second) {
		case porcupine.Illegal:
			return fmt.Errorf("LUN %d block %d is not linearizable:\n%s", k[0]+1, k[1], describe(ops))
		case porcupine.Unknown:
			return fmt.Errorf("LUN %d block %d: the check of %d operations did not end", k[0]+1, k[1], len(ops))
		}
	}
	return nil
}

func describe(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	out := ""
	for _, o := range ops {
		out += fmt.Sprintf("  %10.3f..%10.3fms client %d %s\n", float64(o.Call)/1e6, float64(o.Return)/1e6, o.ClientId,
			model.DescribeOperation(o.Input, o.Output))
	}
	return out
}
