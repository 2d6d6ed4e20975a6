package v1alpha1

import "strings"

// DefaultVolume is how targets call the backing volume that holds their metadata too: that of the first pool, whatever its name.
const DefaultVolume = "default"

// Pool finds a pool by its name, nil when there is none; the empty name is that of the first one.
func (s *StorageClusterSpec) Pool(name string) *Pool {
	for i := range s.Pools {
		if name == "" || s.Pools[i].Name == name {
			return &s.Pools[i]
		}
	}
	return nil
}

// PoolNames lists the pools, for people.
func (s *StorageClusterSpec) PoolNames() string {
	var names []string
	for i := range s.Pools {
		names = append(names, s.Pools[i].Name)
	}
	return strings.Join(names, ", ")
}

// Volume is how targets call the backing volume of a pool. Empty is the first pool.
func (s *StorageClusterSpec) Volume(pool string) string {
	if pool == "" || len(s.Pools) > 0 && s.Pools[0].Name == pool {
		return DefaultVolume
	}
	return pool
}

// PoolOf is the pool of what targets call a backing volume; targets that know one only do not call it anything.
func (s *StorageClusterSpec) PoolOf(volume string) string {
	if (volume == "" || volume == DefaultVolume) && len(s.Pools) > 0 {
		return s.Pools[0].Name
	}
	return volume
}
