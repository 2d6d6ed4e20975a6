package balance

import "slices"

// batchMax is how many LUNs are held at once.
const batchMax = 8

// Batches orders moves for transfer: idle LUNs first, then LUNs of one latency class and one
// backing volume together, a few at a time, so that each batch is held for as long as its own LUNs
// take.
func Batches(v *View, moves []Move) [][]Move {
	at := make(map[string]*LUN, len(v.LUNs))
	for i := range v.LUNs {
		at[v.LUNs[i].ID] = &v.LUNs[i]
	}
	key := func(m Move) (idle int, class uint8, volume string) {
		l := at[m.LUN]
		if l == nil {
			return 2, 0, ""
		}
		if !l.idle() {
			idle = 1
		}
		return idle, l.Class, l.Volume
	}
	sorted := slices.Clone(moves)
	slices.SortStableFunc(sorted, func(x, y Move) int {
		xi, xc, xv := key(x)
		yi, yc, yv := key(y)
		switch {
		case xi != yi:
			return xi - yi
		case xc != yc:
			return int(xc) - int(yc)
		case xv < yv:
			return -1
		case xv > yv:
			return 1
		}
		return int(x.To) - int(y.To)
	})
	var out [][]Move
	for _, m := range sorted {
		mi, mc, mv := key(m)
		if n := len(out); n > 0 {
			last := out[n-1]
			li, lc, lv := key(last[0])
			if len(last) < batchMax && li == mi && lc == mc && lv == mv && last[0].To == m.To {
				out[n-1] = append(last, m)
				continue
			}
		}
		out = append(out, []Move{m})
	}
	return out
}
