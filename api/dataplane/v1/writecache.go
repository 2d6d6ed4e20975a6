package targetv1

// Words for write cache modes, as people and Kubernetes objects have them.
const (
	writeBack    = "write-back"
	writeThrough = "write-through"
)

// ParseWriteCache reads the word of a write cache mode; any other one is unspecified.
func ParseWriteCache(word string) WriteCache {
	switch word {
	case writeBack:
		return WriteCache_WRITE_CACHE_WRITE_BACK
	case writeThrough:
		return WriteCache_WRITE_CACHE_WRITE_THROUGH
	}
	return WriteCache_WRITE_CACHE_UNSPECIFIED
}

// Word of a write cache mode; empty for an unspecified one, as targets of an earlier release have
// it.
func (x WriteCache) Word() string {
	switch x {
	case WriteCache_WRITE_CACHE_WRITE_BACK:
		return writeBack
	case WriteCache_WRITE_CACHE_WRITE_THROUGH:
		return writeThrough
	}
	return ""
}
