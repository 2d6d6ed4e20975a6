package v1alpha1

import (
	"math"
	"testing"
)

func TestPoolsAndVolumes(t *testing.T) {
	s := &StorageClusterSpec{Pools: []Pool{{Name: "main"}, {Name: "fast"}}}
	for pool, volume := range map[string]string{"": "default", "main": "default", "fast": "fast"} {
		if got := s.Volume(pool); got != volume {
			t.Errorf("pool %q is volume %q, not %q", pool, got, volume)
		}
	}
	for volume, pool := range map[string]string{"": "main", "default": "main", "fast": "fast", "gone": "gone"} {
		if got := s.PoolOf(volume); got != pool {
			t.Errorf("volume %q is pool %q, not %q", volume, got, pool)
		}
	}
	if s.Pool("").Name != "main" || s.Pool("fast").Name != "fast" || s.Pool("slow") != nil || s.PoolNames() != "main, fast" {
		t.Error("pools")
	}
}

func TestPromisableOf(t *testing.T) {
	for _, x := range []struct {
		percent        int32
		capacity, want int64
	}{{0, 100 << 30, 2000 << 30}, {100, 12345, 12345}, {150, 101, 151}, {10, 1 << 40, 1 << 40 / 10}, {2000, 0, 0}, {100_000, 1 << 60, math.MaxInt64}} {
		if got := (&Pool{OvercommitPercent: x.percent}).PromisableOf(x.capacity); got != x.want {
			t.Errorf("%d%% of %d: %d, not %d", x.percent, x.capacity, got, x.want)
		}
	}
}
