package tiering

import (
	"math/rand/v2"
	"testing"
)

const gib = 1 << 30

// apply moves what flows say, and checks that it can be.
func apply(t *testing.T, list []Volume, flows []Flow) []Volume {
	t.Helper()
	list = append([]Volume(nil), list...)
	at := func(n uint8) *Volume {
		for i := range list {
			if list[i].Number == n {
				return &list[i]
			}
		}
		t.Fatalf("no volume %d", n)
		return nil
	}
	for _, f := range flows {
		from, to := at(f.From), at(f.To)
		from.Free, to.Free = from.Free+f.Bytes, to.Free-f.Bytes
		if f.Bytes <= 0 || from.used() < 0 || from.Free > from.Total || to.Free < 0 || to.Draining || f.From == f.To {
			t.Fatalf("%+v of %+v", f, list)
		}
	}
	return list
}

func TestNewVolumeIsFilled(t *testing.T) {
	list := []Volume{{1, Capacity, 100 * gib, 20 * gib, false}, {2, Capacity, 200 * gib, 40 * gib, false}, {3, Capacity, 100 * gib, 100 * gib, false}, {9, Fast, 10 * gib, 0, false}}
	flows, under := Even(list, nil)
	for _, v := range apply(t, list, flows) {
		if s := v.share(); v.Tier == Capacity && (s < 0.59 || s > 0.61) {
			t.Errorf("volume %d is used for %.3f", v.Number, s)
		}
	}
	if !under[Capacity] || under[Fast] || len(flows) != 2 {
		t.Errorf("%v, %v", under, flows)
	}
	list = []Volume{{1, Fast, 100 * gib, 10 * gib, false}, {2, Fast, 100 * gib, 100 * gib, false}, {3, Fast, 100 * gib, 100 * gib, false}}
	flows, _ = Even(list, nil)
	for _, v := range apply(t, list, flows) {
		if s := v.share(); s < 0.29 || s > 0.31 {
			t.Errorf("volume %d of three is used for %.3f", v.Number, s)
		}
	}
}

// What differs a little is left alone, unless it was being made even or a volume is nearly full.
func TestEvenEnough(t *testing.T) {
	list := []Volume{{1, Capacity, 100 * gib, 50 * gib, false}, {2, Capacity, 100 * gib, 56 * gib, false}}
	if flows, under := Even(list, nil); len(flows) > 0 || under[Capacity] {
		t.Errorf("%v", flows)
	}
	if flows, _ := Even(list, map[Tier]bool{Capacity: true}); len(flows) != 1 || flows[0].Bytes != 3*gib {
		t.Errorf("%v", flows)
	}
	list = []Volume{{1, Fast, 100 * gib, 4 * gib, false}, {2, Fast, 100 * gib, 10 * gib, false}}
	if flows, _ := Even(list, nil); len(flows) != 1 || flows[0] != (Flow{1, 2, 3 * gib}) {
		t.Errorf("nearly full: %v", flows)
	}
	if flows, _ := Even([]Volume{{1, Fast, 100 * gib, gib, false}}, nil); len(flows) > 0 {
		t.Errorf("one volume: %v", flows)
	}
}

func TestDrainEmptiesAVolume(t *testing.T) {
	list := []Volume{{1, Capacity, 100 * gib, 40 * gib, true}, {2, Capacity, 100 * gib, 90 * gib, false}, {3, Capacity, 100 * gib, 60 * gib, false}, {4, Fast, 100 * gib, 100 * gib, false}}
	if Lacking(list) != 0 {
		t.Error("it does not fit")
	}
	flows, _ := Even(list, nil)
	after := apply(t, list, flows)
	if after[0].used() != 0 || after[3].used() != 0 {
		t.Errorf("%+v", after)
	}
	if a, b := after[1].share(), after[2].share(); a < 0.54 || a > 0.56 || b < 0.54 || b > 0.56 {
		t.Errorf("shares %.3f and %.3f", a, b)
	}
	// Without room in its tier the rest goes to the other one.
	list[1].Free, list[2].Free = 10*gib, 10*gib
	flows, _ = Even(list, nil)
	if after := apply(t, list, flows); after[0].used() != 0 || after[3].used() < 49*gib || after[1].share() > mostFull {
		t.Errorf("%+v", after)
	}
	list[3].Free = 10 * gib
	if n := Lacking(list); n < 44*gib || n > 46*gib {
		t.Errorf("%d bytes are lacking", n)
	}
}

// Whatever the volumes are like: no volume becomes too full, none has less than nothing, a drain
// that fits ends, and a second look finds nothing to do.
func TestFlowsOfAnyPool(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 20_000 {
		var list []Volume
		for n := range 1 + r.IntN(8) {
			total := int64(1+r.IntN(1000)) * gib
			list = append(list, Volume{Number: uint8(n + 1), Tier: Fast + Tier(r.IntN(2)), Total: total, Free: r.Int64N(total + 1), Draining: r.IntN(4) == 0})
		}
		flows, _ := Even(list, map[Tier]bool{Fast: r.IntN(2) == 0, Capacity: r.IntN(2) == 0})
		after := apply(t, list, flows)
		for _, v := range after {
			if v.Draining && Lacking(list) == 0 && v.used() > gib/1024 {
				t.Fatalf("volume %d keeps %d bytes: %+v, %+v", v.Number, v.used(), list, flows)
			}
		}
		if again, _ := Even(after, nil); Lacking(list) == 0 {
			moved := int64(0)
			for _, f := range again {
				moved += f.Bytes
			}
			if moved > gib {
				t.Fatalf("%d bytes move again: %+v, then %+v, then %+v", moved, list, flows, again)
			}
		}
	}
}
