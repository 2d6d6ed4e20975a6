package node

import (
	"context"
	"fmt"
	"time"

	"github.com/gemel-storage/gemel/dataplane/control"
	"github.com/gemel-storage/gemel/dataplane/pair"
	"github.com/gemel-storage/gemel/dataplane/scsi"
)

// quiesce holds the commands of LUNs that this node owns and waits until none is at work; release
// lets them continue.
func (n *Node) quiesce(ctx context.Context, ids []pair.LUNID, limit time.Duration) (release func(), err error) {
	_, release, err = n.still(ctx, limit, func(m *pair.Machine, now int64, id uint64) { m.Quiesce(now, id, ids, int64(limit)) })
	return release, err
}

// still begins with a quiesce of either kind, and waits for its answer.
func (n *Node) still(ctx context.Context, limit time.Duration, begin func(m *pair.Machine, now int64, id uint64)) (id uint64, release func(), err error) {
	id = n.waits.next.Add(1)
	c := make(chan scsi.Result, 1)
	n.waits.quiets.add(id, c)
	release = func() {
		n.waits.quiets.take(id)
		n.do(func(m *pair.Machine, now int64) { m.Release(now, id) })
	}
	n.do(func(m *pair.Machine, now int64) { begin(m, now, id) })
	select {
	case res := <-c:
		switch res {
		case scsi.OK:
			return id, release, nil
		case scsi.Busy:
			err = fmt.Errorf("commands in progress did not finish within %v: %w", limit, control.ErrUnavailable)
		default:
			err = control.ErrUnavailable
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	release()
	return 0, nil, err
}

func (n *Node) quietEnded(x pair.Action) {
	c := n.waits.quiets.take(x.ID)
	if c != nil {
		c <- x.Result
	}
}
