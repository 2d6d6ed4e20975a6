package control

import (
	"testing"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/count"
)

// What is counted is listed for LUNs that are there, page by page; one without a command is left
// out.
func TestWorkIsListedByLUN(t *testing.T) {
	f := newFake(t)
	var used []string
	f.work = map[string]count.Totals{}
	for range 3 {
		var l count.LUN
		l.Add(count.Write, count.Forwarded, 8192, 100*time.Microsecond)
		id := f.lun()
		used = append(used, id)
		f.work[id] = l.Read()
	}
	f.work[f.lun()] = count.Totals{}
	f.work["deleted meanwhile"] = f.work[used[0]]
	c := f.client()
	seen := map[string]bool{}
	for after := ""; ; {
		r, err := c.GetWork(t.Context(), &targetv1.GetWorkRequest{AfterUuid: after, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		if r.Node != "b" || r.Incarnation != 42 || r.AtUs != 3e6 || len(r.Luns) > 2 {
			t.Errorf("%v", r)
		}
		for _, l := range r.Luns {
			seen[l.Uuid] = true
			if len(l.Work) != 1 || l.Owner != "b" || l.Name == "" {
				t.Fatalf("%v", l)
			}
			w := l.Work[0]
			if w.Kind != "write" || w.Way != "forwarded" || w.Operations != 1 || w.Bytes != 8192 || w.TookUs != 100 || len(w.Histogram) != count.Buckets || w.Histogram[2] != 1 {
				t.Errorf("%v", w)
			}
		}
		if after = r.NextAfterUuid; after == "" {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("%v of %v", seen, used)
	}
}
