package logicalunit

import (
	"context"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
)

// modify sets the write cache mode and the preferred node of the spec. It compares with the pair
// each time, so that nothing is missed after a crash or with a lost status; fields that the spec
// does not set stay. The pair itself moves the LUN to its preferred node.
func (p *pass) modify(ctx context.Context) error {
	req := &targetv1.ModifyLUNRequest{Uuid: p.lun.Uuid}
	if want := targetv1.ParseWriteCache(p.lu.Spec.WriteCache); want != p.lun.WriteCache {
		req.WriteCache = want
	}
	if want := p.lu.Spec.PreferredNode; want != p.lun.PreferredNode {
		req.PreferredNode = want
	}
	if req.WriteCache == targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED && req.PreferredNode == "" {
		return nil
	}
	lun, err := rpc(ctx, p, "modify the LUN", service.ModifyLUN, req)
	if err != nil {
		return err
	}
	p.lun.WriteCache, p.lun.PreferredNode = lun.WriteCache, lun.PreferredNode
	return nil
}
