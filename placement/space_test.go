package placement

import "testing"

func TestSpace(t *testing.T) {
	for _, x := range []struct {
		name     string
		free     int64 // percent of 1000
		promised int64
		before   Space
		want     Space
	}{
		{"half is free", 500, 0, SpaceEnough, SpaceEnough},
		{"at the limit", 100, 0, SpaceEnough, SpaceEnough},
		{"below it", 99, 0, SpaceEnough, SpaceNearFull},
		{"a little more is free again", 105, 0, SpaceNearFull, SpaceNearFull},
		{"enough more is free", 110, 0, SpaceNearFull, SpaceEnough},
		{"full", 9, 0, SpaceNearFull, SpaceFull},
		{"full, and a little is free", 15, 0, SpaceFull, SpaceFull},
		{"full, and more is free", 20, 0, SpaceFull, SpaceNearFull},
		{"much is promised", 500, 1899, SpaceEnough, SpaceEnough},
		{"all is promised", 500, 1900, SpaceEnough, SpaceOvercommitted},
		{"all is promised, and little is free", 50, 2000, SpaceOvercommitted, SpaceNearFull},
		{"it was overcommitted, which is no matter for what is free", 100, 0, SpaceOvercommitted, SpaceEnough},
	} {
		p := Pool{Capacity: 1000, Free: x.free, Promised: x.promised, Promisable: 2000}
		if got := p.Space(x.before); got != x.want {
			t.Errorf("%s: %d, not %d", x.name, got, x.want)
		}
	}
	if got := (&Pool{}).Space(SpaceFull); got != SpaceEnough {
		t.Errorf("nothing is known: %d", got)
	}
	pools := []Pool{{Name: "a", Capacity: 100, Free: 50}, {Name: "b", Capacity: 100, Free: 5}, {Name: "c", Capacity: 100, Free: 6}}
	if p, s := Worst(pools, SpaceEnough); p.Name != "b" || s != SpaceNearFull {
		t.Errorf("%s, %d", p.Name, s)
	}
	if p, s := Worst(nil, SpaceEnough); p != nil || s != SpaceEnough {
		t.Error("no pools")
	}
}
