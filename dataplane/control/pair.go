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
func (c *server) TransferOwnership(ctx context.Context, req *targetv1.TransferOwnershipRequest) (*targetv1.TransferOwnershipResponse, error) {
	to, err := pair.ParseNode(req.ToNode)
	if err != nil {
		return nil, invalid("to_node", "%v", err)
	}
	if req.All == (len(req.LunUuids) > 0) {
		return nil, invalid("lun_uuids", "set either uuids or all")
	}
	var moved int
	var pause time.Duration
	if req.All {
		moved, pause, err = c.n.TransferAll(ctx, to)
	} else {
		moved, pause, err = c.n.Transfer(ctx, req.LunUuids, to)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.TransferOwnershipResponse{Moved: uint32(moved), PauseUs: uint64(pause.Microseconds())}, nil
}

// Limits of a drain.
const (
	maxDrain       = time.Hour
	maxDrainReason = 256 // bytes
)

// Drain implements targetv1.TargetServiceServer.
func (c *server) Drain(ctx context.Context, req *targetv1.DrainRequest) (*targetv1.DrainResponse, error) {
	node, err := pair.ParseNode(req.Node)
	if err != nil {
		return nil, invalid("node", "%v", err)
	}
	d := time.Duration(req.Seconds) * time.Second
	if d > maxDrain {
		return nil, invalid("seconds", "%d exceeds the limit of %d: repeat the call to keep the node drained", req.Seconds, int(maxDrain.Seconds()))
	}
	if len(req.Reason) > maxDrainReason {
		return nil, invalid("reason", "has %d bytes, and may have %d", len(req.Reason), maxDrainReason)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	moved, pause, err := c.n.Drain(ctx, node, d, req.Reason)
	if err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.DrainResponse{Moved: uint32(moved), PauseUs: uint64(pause.Microseconds())}, nil
}

// maxScrubRate is in bytes a second.
const maxScrubRate = 1 << 40

// Scrub implements targetv1.TargetServiceServer.
func (c *server) Scrub(ctx context.Context, req *targetv1.ScrubRequest) (*targetv1.ScrubResponse, error) {
	for _, id := range req.Uuids {
		if err := checkUUID("uuids", id); err != nil {
			return nil, err
		}
	}
	if req.BytesPerSecond > maxScrubRate {
		return nil, invalid("bytes_per_second", "%d exceeds the limit of 1 TiB", req.BytesPerSecond)
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if _, ok := targetv1.ScrubOrigin_name[int32(req.Origin)]; !ok {
		return nil, invalid("origin", "unknown value %d: 0 is a person, 1 is a schedule", req.Origin)
	}
	r, err := c.n.Scrub(ctx, req)
	if err != nil {
		return nil, grpcError(err)
	}
	return r, nil
}

// Force implements targetv1.TargetServiceServer.
func (c *server) Force(_ context.Context, req *targetv1.ForceRequest) (*targetv1.ForceResponse, error) {
	if !req.AcceptDataLoss {
		return nil, invalid("accept_data_loss", "must be true: writes that only the lost member has are lost")
	}
	if req.Epoch == 0 {
		return nil, invalid("epoch", "is required: set it to force_epoch of this node's status")
	}
	if err := c.n.Force(req.Epoch); err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.ForceResponse{}, nil
}
