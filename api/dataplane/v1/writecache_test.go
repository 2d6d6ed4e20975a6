package targetv1_test

import (
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/api/v1alpha1"
)

// The words are those of LogicalUnits.
func TestWriteCacheWords(t *testing.T) {
	for word, mode := range map[string]targetv1.WriteCache{
		v1alpha1.WriteBack:    targetv1.WriteCache_WRITE_CACHE_WRITE_BACK,
		v1alpha1.WriteThrough: targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH,
		"":                    targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED,
	} {
		if targetv1.ParseWriteCache(word) != mode || mode.Word() != word {
			t.Errorf("%q is %v, which is %q", word, targetv1.ParseWriteCache(word), mode.Word())
		}
	}
}
