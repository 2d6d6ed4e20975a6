package node

import (
	"context"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/meta"
)

func (c *control) ModifyLUN(ctx context.Context, q *targetv1.ModifyLUNRequest) (*targetv1.LUN, error) {
	if err := checkUUID("uuid", q.Uuid); err != nil {
		return nil, err
	}
	if err := checkNode("preferred_node", q.PreferredNode); err != nil {
		return nil, err
	}
	e := meta.Modify{UUID: q.Uuid, Preferred: q.PreferredNode}
	if q.WriteCache != targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED {
		through, err := writeThrough(q.WriteCache)
		if err != nil {
			return nil, err
		}
		e.WriteThrough = &through
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if err := c.n.modify(ctx, e); err != nil {
		return nil, grpcError(err)
	}
	return c.lun(q.Uuid)
}

// writeThrough reads a write cache mode; unspecified is write-back.
func writeThrough(w targetv1.WriteCache) (bool, error) {
	switch w {
	case targetv1.WriteCache_WRITE_CACHE_UNSPECIFIED, targetv1.WriteCache_WRITE_CACHE_WRITE_BACK:
		return false, nil
	case targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH:
		return true, nil
	}
	return false, invalid("write_cache", "%d is neither write-back nor write-through", w)
}

func writeCacheProto(l *meta.LUN) targetv1.WriteCache {
	if l.WriteThrough() {
		return targetv1.WriteCache_WRITE_CACHE_WRITE_THROUGH
	}
	return targetv1.WriteCache_WRITE_CACHE_WRITE_BACK
}
