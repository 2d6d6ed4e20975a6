package doctor

import (
	"testing"

	"github.com/gemel-storage/gemel/api/v1alpha1"
)

func free(s string) func(*Objects) {
	return func(o *Objects) { o.Pairs[0].Status.Pools[1].Free = quantity(s) }
}

func promised(s string) func(*Objects) {
	return func(o *Objects) {
		x := &o.Pairs[0].Status.Pools[1]
		x.Promised, x.Promisable = quantity(s), quantity("2Ti")
	}
}

var poolCases = []trouble{
	{"no space", "PoolFull", Critical, "TargetPair/main-p0", free("0"), map[string]func(*Objects){"gone": free("500Gi"), "nearly full": free("11Gi")}, []string{"pool fast is full", "0 free of 1Ti"}},
	{"nearly no space", "PoolFull", Critical, "TargetPair/main-p0", free("10Gi"), map[string]func(*Objects){"gone": free("500Gi")}, []string{"10Gi free of 1Ti (1.0%)"}},
	{"little space", "PoolNearlyFull", Warning, "TargetPair/main-p0", free("100Gi"), map[string]func(*Objects){"gone": free("103Gi"), "full": free("0")}, []string{"less than 10% of pool fast"}},
	{"a pair without pools", "PoolNearlyFull", Warning, "TargetPair/main-p0", func(o *Objects) { s := &o.Pairs[0].Status; s.Pools, s.Free = nil, quantity("100Gi") },
		map[string]func(*Objects){"gone": func(o *Objects) { o.Pairs[0].Status.Free = quantity("1Ti") }, "unknown": func(o *Objects) { o.Pairs[0].Status.Capacity = nil }}, []string{"pool default"}},
	{"as much is promised as may be", "PoolOvercommitted", Warning, "TargetPair/main-p0", promised("1950Gi"), map[string]func(*Objects){"gone": promised("1Ti"),
		"nearly full": func(o *Objects) { promised("1950Gi")(o); free("11Gi")(o) }}, []string{"pool fast has promised", "1950Gi promised of at most 2Ti"}},
}

func TestPools(t *testing.T) { check(t, poolCases) }

// Two pools of one pair are two findings.
func TestPoolsOfAPair(t *testing.T) {
	o := healthy(6)
	o.Pairs[0].Status.Pools = []v1alpha1.PoolStatus{{Name: "default", Capacity: quantity("1Ti"), Free: quantity("0")}, {Name: "fast", Capacity: quantity("1Ti"), Free: quantity("0")}}
	if list := Examine(o, now); len(list) != 2 || list[0].Problem == list[1].Problem {
		t.Errorf("%+v", list)
	}
}
