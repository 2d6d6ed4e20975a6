package control

import (
	"context"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// Work is what hosts have done at a node since its process started.
type Work struct {
	Incarnation uint64                  // of the process
	At          time.Duration           // since the machine started
	LUNs        map[string]count.Totals // by uuid
}

// GetWork implements targetv1.TargetServiceServer. It answers at every node that runs: what is
// counted needs no standing.
func (c *server) GetWork(_ context.Context, req *targetv1.GetWorkRequest) (*targetv1.GetWorkResponse, error) {
	w := c.n.Work()
	r := &targetv1.GetWorkResponse{Node: c.cfg.Self.String(), Incarnation: w.Incarnation, AtUs: uint64(w.At.Microseconds())}
	var sorted []*meta.LUN
	c.n.ReadMetadata(func(s *meta.State) {
		for _, l := range s.SortedLUNs() {
			if t, ok := w.LUNs[l.UUID]; ok && l.Stage == meta.Ready && t != (count.Totals{}) {
				sorted = append(sorted, l)
			}
		}
	})
	list, next := page(sorted, func(l *meta.LUN) string { return l.UUID }, req.AfterUuid, req.Limit)
	r.NextAfterUuid = next
	for _, l := range list {
		owner, _ := c.n.Usage(l.UUID)
		t := w.LUNs[l.UUID]
		r.Luns = append(r.Luns, &targetv1.LUNWork{Uuid: l.UUID, Name: l.Name, Owner: owner, Work: workOf(&t)})
	}
	return r, nil
}

func workOf(t *count.Totals) (out []*targetv1.Work) {
	for k := range count.Kinds {
		for w := range count.Ways {
			c := &t[k][w]
			if n := c.Count(); n > 0 {
				out = append(out, &targetv1.Work{Kind: k.String(), Way: w.String(), Operations: n, Bytes: c.Bytes,
					TookUs: uint64(c.Took.Microseconds()), Histogram: append([]uint64(nil), c.Hist[:]...)})
			}
		}
	}
	return out
}
