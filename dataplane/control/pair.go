package control

import (
	"context"
	"time"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// GetStatus implements targetv1.TargetServiceServer.
func (c *server) GetStatus(ctx context.Context, _ *targetv1.GetStatusRequest) (*targetv1.Status, error) {
	return c.n.Status(ctx), nil
}

// TransferOwnership implements targetv1.TargetServiceServer.
func (c *server) TransferOwnership(ctx context.Context, q *targetv1.TransferOwnershipRequest) (*targetv1.TransferOwnershipResponse, error) {
	to, err := pair.ParseNode(q.ToNode)
	if err != nil {
		return nil, invalid("to_node", "%v", err)
	}
	if q.All == (len(q.LunUuids) > 0) {
		return nil, invalid("lun_uuids", "either name LUNs or set all")
	}
	var moved int
	var pause time.Duration
	if q.All {
		moved, pause, err = c.n.TransferAll(ctx, to)
	} else {
		moved, pause, err = c.n.Transfer(ctx, q.LunUuids, to)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.TransferOwnershipResponse{Moved: uint32(moved), PauseUs: uint64(pause.Microseconds())}, nil
}

// maxScrubRate is in bytes a second.
const maxScrubRate = 1 << 40

// Scrub implements targetv1.TargetServiceServer.
func (c *server) Scrub(ctx context.Context, q *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error) {
	for _, id := range q.Uuids {
		if err := checkUUID("uuids", id); err != nil {
			return nil, err
		}
	}
	if q.BytesPerSecond > maxScrubRate {
		return nil, invalid("bytes_per_second", "%d exceeds the limit of 1 TiB", q.BytesPerSecond)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if _, ok := targetv1.ScrubOrigin_name[int32(q.Origin)]; !ok {
		return nil, invalid("origin", "this release does not know %d: 0 is a person, 1 is a schedule", q.Origin)
	}
	r, err := c.n.Scrub(ctx, q)
	if err != nil {
		return nil, grpcError(err)
	}
	return r, nil
}

// Force implements targetv1.TargetServiceServer.
func (c *server) Force(_ context.Context, q *targetv1.ForceRequest) (*targetv1.ForceResponse, error) {
	if !q.AcceptDataLoss {
		return nil, invalid("accept_data_loss", "must be true: writes that only the lost member has are given up")
	}
	if q.Epoch == 0 {
		return nil, invalid("epoch", "is required: give force_epoch of this node's status")
	}
	if err := c.n.Force(q.Epoch); err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.ForceResponse{}, nil
}
