package logicalunit

import (
	"context"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// modify gives the LUN the write cache mode and the preferred node of the spec. What the pair says it has is compared each time, so
// that neither a crash nor a status that was lost leaves anything undone; what the spec does not name stays.
func (p *pass) modify(ctx context.Context) error {
	q := &targetv1.ModifyLUNRequest{Uuid: p.lun.Uuid}
	if want := targetv1.ParseWriteCache(p.lu.Spec.WriteCache); want != p.lun.WriteCache {
		q.WriteCache = want
	}
	if want := p.lu.Spec.PreferredNode; want != p.lun.PreferredNode {
		q.PreferredNode = want
	}
	if q.WriteCache == targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED && q.PreferredNode == "" {
		return nil
	}
	lun, err := rpc(ctx, p, "modify the LUN", service.ModifyLUN, q)
	if err != nil {
		return err
	}
	p.lun.WriteCache, p.lun.PreferredNode = lun.WriteCache, lun.PreferredNode
	return nil
}
