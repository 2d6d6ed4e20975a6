package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/node"
	"github.com/gemel-storage/gemel/internal/enroll"
)

// publications returns how a volume is reached, from the pair or from the operator; nil if neither
// is configured.
func (c *config) publications() (node.Publications, func(), error) {
	switch {
	case len(c.PairEndpoints) > 0:
		b, err := c.directPair()
		if err != nil {
			return nil, nil, err
		}
		return b, func() { _ = b.Close() }, nil
	case c.EnrollEndpoint != "":
		return byOperator{&enroll.Client{Endpoint: c.EnrollEndpoint, CAFile: c.EnrollCA, TokenFile: c.EnrollToken}}, func() {}, nil
	}
	return nil, func() {}, nil
}

// byOperator calls the operator.
type byOperator struct {
	client interface {
		Reach(context.Context, enroll.ReachRequest) (enroll.Reach, error)
	}
}

// Reach implements node.Publications.
func (o byOperator) Reach(ctx context.Context, a attach.Attachment, replayed uint64) (attach.Attachment, error) {
	r, err := o.client.Reach(ctx, enroll.ReachRequest{Volume: a.VolumeID, Replayed: int64(replayed)})
	switch {
	case errors.Is(err, enroll.ErrReach):
		return attach.Attachment{}, fmt.Errorf("%w: %w", attach.ErrFailed, err)
	case err != nil:
		return attach.Attachment{}, err
	}
	return attach.Attachment{VolumeID: a.VolumeID, Generation: uint64(r.Generation), HostIQN: a.HostIQN, TargetIQN: r.TargetIQN, Portals: r.Portals, LUN: uint16(r.LUN),
		WWID: r.WWID, ReadOnly: r.ReadOnly, Replay: !r.ReadOnly, Pair: r.Pair, Enroll: r.CHAP, Auth: a.Auth, MutualAuth: a.MutualAuth}, nil
}
