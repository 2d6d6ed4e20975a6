package control

import (
	"testing"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// A list comes in pages, each object once.
func TestListComesInPages(t *testing.T) {
	f := newFake(t)
	want := map[string]bool{}
	for range 7 {
		want[f.lun()] = true
	}
	after, calls := "", 0
	for {
		r, err := f.client().ListLUNs(t.Context(), &targetv1.ListLUNsRequest{AfterUuid: after, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		calls++
		for _, l := range r.Luns {
			if !want[l.Uuid] {
				t.Errorf("%s comes twice or was never made", l.Uuid)
			}
			delete(want, l.Uuid)
		}
		if after = r.NextAfterUuid; after == "" {
			break
		}
	}
	if len(want) > 0 || calls != 3 {
		t.Errorf("%d calls, missing %v", calls, want)
	}
}
