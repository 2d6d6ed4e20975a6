package v1alpha1

import "testing"

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
