package control

import (
	"context"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/count"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

// GetWork implements targetv1.TargetServiceServer. It answers at every node that runs: what is
// counted needs no standing. Only the LUNs of the page are read.
func (c *server) GetWork(_ context.Context, req *targetv1.GetWorkRequest) (*targetv1.GetWorkResponse, error) {
	incarnation, at := c.n.Process()
	r := &targetv1.GetWorkResponse{Node: c.cfg.Self.String(), Incarnation: incarnation, AtUs: uint64(at.Microseconds())}
	var sorted []*meta.LUN
	c.n.ReadMetadata(func(s *meta.State) { sorted = s.SortedLUNs() })
	list, next := page(sorted, func(l *meta.LUN) string { return l.UUID }, req.AfterUuid, req.Limit)
	r.NextAfterUuid = next
	for _, l := range list {
		owner, t := c.n.Work(l.UUID)
		if l.Stage == meta.Ready && t != (count.Totals{}) {
			r.Luns = append(r.Luns, &targetv1.LUNWork{Uuid: l.UUID, Name: l.Name, Owner: owner, Work: workOf(&t)})
		}
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
