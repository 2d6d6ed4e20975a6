package pair

import (
	"slices"
	"testing"
)

func TestRegionsAreASet(t *testing.T) {
	var r Regions
	if !r.Empty() || r.Has(5) || r.Next(0) != -1 || r.Count() != 0 {
		t.Fatal("a nil set is empty")
	}
	r.AddAll(62, 66)
	r.Add(300)
	if r.Count() != 6 || !r.HasAll(62, 66) || r.Has(67) || r.Next(67) != 300 || r.Next(301) != -1 {
		t.Fatalf("%v", r.List())
	}
	r.Drop(64)
	r.Drop(10000)
	c := r.Clone()
	c.And(Regions{1 << 62})
	if !slices.Equal(c.List(), []uint32{62}) || r.Count() != 5 {
		t.Fatalf("%v %v", c.List(), r.List())
	}
	c.Or(r)
	got, err := decodeRegions(c.Encode(), 301)
	if err != nil || !slices.Equal(got.List(), []uint32{62, 63, 65, 66, 300}) {
		t.Fatalf("%v %v", got.List(), err)
	}
	for _, bad := range [][]byte{{1}, c.Encode()[:12], make([]byte, 8)} {
		if _, err := decodeRegions(bad, 301); err == nil {
			t.Errorf("% x is accepted", bad)
		}
	}
	if _, err := decodeRegions(c.Encode(), 300); err == nil {
		t.Error("a region beyond the LUN is accepted")
	}
}
