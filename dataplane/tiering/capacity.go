package tiering

import (
	"cmp"
	"slices"
)

// Volume is a backing volume of a pool.
type Volume struct {
	Number      uint8
	Tier        Tier
	Total, Free int64 // bytes
	Draining    bool  // nothing may stay on it
}

func (v *Volume) used() int64 { return max(v.Total-v.Free, 0) }

func (v *Volume) share() float64 {
	if v.Total <= 0 {
		return 1
	}
	return float64(v.used()) / float64(v.Total)
}

// Flow is what has to move between two volumes.
type Flow struct {
	From, To uint8
	Bytes    int64
}

const (
	// Volumes of a tier are made even when the shares that are used differ by unevenStart, or by
	// unevenFull where one is used for more than nearlyFull; until they differ by less than
	// unevenStop from what all of them have.
	unevenStart = 0.10
	unevenFull  = 0.03
	nearlyFull  = 0.90
	unevenStop  = 0.01
	// mostFull is the share up to which a drain may fill other volumes.
	mostFull = 0.95
)

// Even returns what has to move so that volumes that are drained become empty, and the others of
// each tier are used alike. under says whether the tier was being made even the last time; the
// result says so of this time.
func Even(volumes []Volume, under map[Tier]bool) (flows []Flow, now map[Tier]bool) {
	now = map[Tier]bool{}
	list := slices.Clone(volumes)
	slices.SortFunc(list, func(x, y Volume) int { return cmp.Compare(x.Number, y.Number) })
	flows = drain(list)
	for _, t := range []Tier{Fast, Capacity} {
		var of []*Volume
		for i := range list {
			if v := &list[i]; v.Tier == t && !v.Draining && v.Total > 0 {
				of = append(of, v)
			}
		}
		f := even(of, under[t])
		now[t] = len(f) > 0
		flows = append(flows, f...)
	}
	return flows, now
}

// Lacking is how many bytes the other volumes of a pool lack for what is on those that are drained;
// 0: it fits, with a twentieth of each left free.
func Lacking(volumes []Volume) int64 {
	need, room := int64(0), int64(0)
	for i := range volumes {
		if v := &volumes[i]; v.Draining {
			need += v.used()
		} else {
			room += roomOf(v)
		}
	}
	return max(need-room, 0)
}

func roomOf(v *Volume) int64 { return max(int64(mostFull*float64(v.Total))-v.used(), 0) }

// drain empties volumes into those of their tier first, the emptiest first, and then into others.
func drain(list []Volume) (flows []Flow) {
	for i := range list {
		from := &list[i]
		if !from.Draining {
			continue
		}
		for _, same := range []bool{true, false} {
			var to []*Volume
			for j := range list {
				if v := &list[j]; !v.Draining && (v.Tier == from.Tier) == same {
					to = append(to, v)
				}
			}
			flows = append(flows, pour(from, to)...)
		}
	}
	return flows
}

// pour divides what a volume has among others, so that they are used alike afterwards.
func pour(from *Volume, to []*Volume) (flows []Flow) {
	slices.SortStableFunc(to, func(x, y *Volume) int { return cmp.Compare(x.share(), y.share()) })
	for n := len(to); n > 0 && from.used() > 0; n-- { // the fullest may be above what the others come to
		total, used, left := int64(0), from.used(), from.used()
		for _, v := range to[:n] {
			total, used = total+v.Total, used+v.used()
		}
		level := min(float64(used)/float64(max(total, 1)), mostFull)
		if n > 1 && to[n-1].share() > level {
			continue
		}
		for _, v := range to[:n] {
			bytes := min(int64(level*float64(v.Total))-v.used(), roomOf(v), left)
			if v == to[n-1] && level < mostFull {
				bytes = min(left, roomOf(v)) // what rounding has left
			}
			if bytes > 0 {
				flows = append(flows, Flow{from.Number, v.Number, bytes})
				left, v.Free = left-bytes, v.Free-bytes
			}
		}
		from.Free += from.used() - left
		break
	}
	return flows
}

// even moves from volumes that are used more than all of them are to those that are used less.
func even(of []*Volume, under bool) (flows []Flow) {
	if len(of) < 2 {
		return nil
	}
	total, used := int64(0), int64(0)
	for _, v := range of {
		total, used = total+v.Total, used+v.used()
	}
	level := float64(used) / float64(total)
	slices.SortStableFunc(of, func(x, y *Volume) int { return cmp.Compare(y.share(), x.share()) })
	most, least := of[0].share(), of[len(of)-1].share()
	switch {
	case under && (most-level > unevenStop || level-least > unevenStop):
	case most-least > unevenStart, most > nearlyFull && most-least > unevenFull:
	default:
		return nil
	}
	above := func(v *Volume) int64 { return v.used() - int64(level*float64(v.Total)) }
	for i, j := 0, len(of)-1; i < j; {
		give, take := above(of[i]), -above(of[j])
		if give <= 0 || take <= 0 {
			if give <= 0 {
				i++
			} else {
				j--
			}
			continue
		}
		n := min(give, take)
		flows = append(flows, Flow{of[i].Number, of[j].Number, n})
		of[i].Free += n
		of[j].Free -= n
		if n == give {
			i++
		}
		if n == take {
			j--
		}
	}
	return flows
}
