package balance

import (
	"cmp"
	"slices"
)

// batchMax is how many LUNs are held at once.
const batchMax = 8

// Batches orders moves for transfer: idle LUNs first, then LUNs of one latency class and one
// backing volume together, a few at a time, so that each batch is held for as long as its own LUNs
// take. Moves that set home are in other batches than those that do not, and urgent ones in others
// than those that can wait.
func Batches(v *View, moves []Move) [][]Move {
	at := make(map[string]*LUN, len(v.LUNs))
	for i := range v.LUNs {
		at[v.LUNs[i].ID] = &v.LUNs[i]
	}
	sorted := make([]alike, 0, len(moves))
	for _, m := range moves {
		sorted = append(sorted, alikeOf(m, at[m.LUN]))
	}
	slices.SortStableFunc(sorted, alike.compare)
	var out [][]Move
	for i, x := range sorted {
		if n := len(out); i > 0 && x.compare(sorted[i-1]) == 0 && len(out[n-1]) < batchMax {
			out[n-1] = append(out[n-1], x.move)
		} else {
			out = append(out, []Move{x.move})
		}
	}
	return out
}

// alike is a move with what it has to have in common with others of its batch.
type alike struct {
	order  int // 0: idle, 1: in use, 2: the LUN is not in the view
	class  uint8
	volume string
	move   Move
}

func alikeOf(m Move, l *LUN) alike {
	x := alike{move: m}
	switch {
	case l == nil:
		x.order = 2
		return x
	case !l.idle():
		x.order = 1
	}
	x.class, x.volume = l.Class, l.Volume
	return x
}

// compare also keeps moves that set home apart, since a batch is one entry of the log, which sets
// home for all of its LUNs or for none.
func (x alike) compare(y alike) int {
	return cmp.Or(cmp.Compare(x.order, y.order), cmp.Compare(x.class, y.class), cmp.Compare(x.volume, y.volume), cmp.Compare(x.move.To, y.move.To),
		compareBool(x.move.SetsHome, y.move.SetsHome), compareBool(y.move.Reason.Urgent(), x.move.Reason.Urgent()))
}

func compareBool(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}
