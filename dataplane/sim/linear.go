package sim

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// state is what a block may hold, sorted: more than one value only where an attempt was given up.
// It is never changed.
type state struct{ vals []uint64 }

func (s *state) has(v uint64) bool { return slices.Contains(s.vals, v) }

func (s *state) with(v uint64) *state {
	if s.has(v) {
		return s
	}
	n := append(slices.Clone(s.vals), v)
	slices.Sort(n)
	return &state{n}
}

// step is one attempt taking its place in the order; false: it cannot be here.
func (r *rec) step(s *state) (bool, *state) {
	switch {
	case r.kind == recRead:
		if !s.has(r.value) {
			return false, nil
		}
		return true, &r.one
	case r.kind == recMiss:
		rest := slices.DeleteFunc(slices.Clone(s.vals), func(v uint64) bool { return v == r.verify })
		return len(rest) > 0, &state{rest}
	case r.kind == recSwap && !s.has(r.verify):
		return r.optional, s
	case r.optional:
		return true, s.with(r.value)
	}
	return true, &r.one
}

// checkTime bounds the search for one block; honest histories take a millisecond.
const checkTime = 20 * time.Second

// linearizable judges every block: one disk must have been able to give these answers (porcupine).
// Where both nodes lost power the history is in parts.
func (h *history) linearizable() error {
	for l := range h.blocks {
		for b, recs := range h.blocks[l] {
			start := &state{[]uint64{0}}
			for _, p := range h.parts(l, recs) {
				if p.start != nil {
					start = p.start
				}
				if err := judge(start, p.recs); err != nil {
					return fmt.Errorf("LUN %d block %d %w", l+1, b, err)
				}
			}
		}
	}
	return nil
}

func judge(start *state, recs []rec) error {
	switch possible(start, recs) {
	case porcupine.Illegal:
		return fmt.Errorf("is not linearizable, from %v:\n%s", start.vals, describe(shortest(start, recs)))
	case porcupine.Unknown:
		return fmt.Errorf("has %d attempts, whose check did not end", len(recs))
	}
	return nil
}

func possible(start *state, recs []rec) porcupine.CheckResult {
	model := porcupine.Model{
		Init: func() any { return start },
		Step: func(s, in, _ any) (bool, any) { return in.(*rec).step(s.(*state)) },
		Equal: func(a, b any) bool {
			x, y := a.(*state), b.(*state)
			return x == y || slices.Equal(x.vals, y.vals)
		},
	}
	ops := make([]porcupine.Operation, len(recs))
	for i := range recs {
		r := &recs[i]
		r.own[0] = r.value
		r.one.vals = r.own[:]
		ops[i] = porcupine.Operation{ClientId: r.client, Input: r, Call: r.call, Return: r.ret}
	}
	return porcupine.CheckOperationsTimeout(model, ops, checkTime)
}

// shortest is the beginning of a history that is already impossible: the answer that came last is
// the one that cannot be. Writes that had not returned by then may have happened.
func shortest(start *state, recs []rec) []rec {
	ends := make([]int64, 0, len(recs))
	for i := range recs {
		ends = append(ends, recs[i].ret)
	}
	slices.Sort(ends)
	n := sort.Search(len(ends), func(i int) bool { return possible(start, until(recs, ends[i])) != porcupine.Ok })
	if n == len(ends) {
		return recs
	}
	return until(recs, ends[n])
}

func until(recs []rec, end int64) (out []rec) {
	for _, r := range recs {
		switch {
		case r.ret <= end:
			out = append(out, r)
		case r.call <= end && (r.kind == recWrite || r.kind == recSwap):
			r.optional, r.ret = true, forever
			out = append(out, r)
		}
	}
	return out
}

func (r *rec) String() string {
	mark := ""
	if r.optional {
		mark = "?"
	}
	switch r.kind {
	case recRead:
		return fmt.Sprintf("read %d", r.value)
	case recSwap:
		return fmt.Sprintf("swap%s %d -> %d", mark, r.verify, r.value)
	case recMiss:
		return fmt.Sprintf("not %d (would be %d)", r.verify, r.value)
	}
	return fmt.Sprintf("write%s %d", mark, r.value)
}

func describe(recs []rec) string {
	recs = slices.Clone(recs)
	slices.SortStableFunc(recs, func(a, b rec) int { return int(a.call - b.call) })
	var out strings.Builder
	for i := range recs {
		r := &recs[i]
		ret := "never"
		if r.ret != forever {
			ret = fmt.Sprintf("%.3f", float64(r.ret)/1e6)
		}
		fmt.Fprintf(&out, "  %10.3f..%10sms client %d %s\n", float64(r.call)/1e6, ret, r.client, r)
	}
	return out.String()
}
