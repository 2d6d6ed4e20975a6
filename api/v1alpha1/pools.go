package v1alpha1

import (
	"cmp"
	"math"
	"strings"
)

// DefaultVolume is the targets' name of the backing volume with their metadata: that of the first
// pool, whatever its name.
const DefaultVolume = "default"

// Pool returns a pool by its name, nil if it does not exist; the empty name is the first one.
func (s *StorageClusterSpec) Pool(name string) *Pool {
	for i := range s.Pools {
		if name == "" || s.Pools[i].Name == name {
			return &s.Pools[i]
		}
	}
	return nil
}

// PoolNames lists the pools, for messages.
func (s *StorageClusterSpec) PoolNames() string {
	var names []string
	for i := range s.Pools {
		names = append(names, s.Pools[i].Name)
	}
	return strings.Join(names, ", ")
}

// Volume is the targets' name of the backing volume of a pool. Empty is the first pool.
func (s *StorageClusterSpec) Volume(pool string) string {
	if pool == "" || len(s.Pools) > 0 && s.Pools[0].Name == pool {
		return DefaultVolume
	}
	return pool
}

// TierOf is a tier as targets name it, in the words of this API; empty for no tier, and for what
// targets say that know none. The other way is strings.ToLower.
func TierOf(name string) string {
	switch name {
	case "fast":
		return TierFast
	case "capacity":
		return TierCapacity
	}
	return ""
}

// PoolOf returns the pool of a targets' backing volume; targets with one volume only send an empty
// name.
func (s *StorageClusterSpec) PoolOf(volume string) string {
	if (volume == "" || volume == DefaultVolume) && len(s.Pools) > 0 {
		return s.Pools[0].Name
	}
	return volume
}

// PoolName is the name of a pool that an object names; placements of earlier releases do not name
// the first one.
func (s *StorageClusterSpec) PoolName(pool string) string { return s.PoolOf(s.Volume(pool)) }

// DefaultOvercommitPercent is what Pool.OvercommitPercent is if it is not set.
const DefaultOvercommitPercent = 2000

// PromisableOf is how many bytes may be promised to the LUNs of the pool on a pair that has so many
// bytes of it.
func (p *Pool) PromisableOf(capacity int64) int64 {
	percent := int64(cmp.Or(p.OvercommitPercent, DefaultOvercommitPercent))
	if capacity/100 >= math.MaxInt64/percent {
		return math.MaxInt64
	}
	return capacity/100*percent + capacity%100*percent/100
}
