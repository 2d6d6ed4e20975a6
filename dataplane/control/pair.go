package control

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/dataplane/balance"
	"github.com/gemel-storage/gemel/dataplane/meta"
	"github.com/gemel-storage/gemel/dataplane/pair"
)

// GetStatus implements targetv1.TargetServiceServer.
func (c *server) GetStatus(ctx context.Context, _ *targetv1.GetStatusRequest) (*targetv1.Status, error) {
	return c.n.Status(ctx), nil
}

// How long a transfer holds.
const (
	defaultHold = 30 * time.Minute
	maxHold     = targetv1.MaxHold
)

// TransferOwnership implements targetv1.TargetServiceServer.
func (c *server) TransferOwnership(ctx context.Context, req *targetv1.TransferOwnershipRequest) (*targetv1.TransferOwnershipResponse, error) {
	to, err := pair.ParseNode(req.ToNode)
	if err != nil {
		return nil, invalid("to_node", "%v", err)
	}
	if req.All == (len(req.LunUuids) > 0) {
		return nil, invalid("lun_uuids", "set either uuids or all")
	}
	hold := defaultHold
	if req.HoldSeconds != nil {
		hold = time.Duration(*req.HoldSeconds) * time.Second
	}
	if hold > maxHold {
		return nil, invalid("hold_seconds", "%d exceeds the limit of %d: pin the LUN to keep it at the node", *req.HoldSeconds, int(maxHold.Seconds()))
	}
	var t Transferred
	if req.All {
		t, err = c.n.TransferAll(ctx, to, hold)
	} else {
		t, err = c.n.Transfer(ctx, req.LunUuids, to, hold)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	r := &targetv1.TransferOwnershipResponse{Moved: uint32(t.Moved), PauseUs: uint64(t.Pause.Microseconds())}
	if !t.HeldUntil.IsZero() {
		r.HeldUntil = timestamppb.New(t.HeldUntil)
	}
	return r, nil
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

// DrainMember implements targetv1.TargetServiceServer.
func (c *server) DrainMember(ctx context.Context, req *targetv1.DrainMemberRequest) (*targetv1.DrainMemberResponse, error) {
	if req.Member == "" {
		return nil, invalid("member", "is missing")
	}
	if err := c.n.DrainMember(ctx, req.Volume, req.Member, !req.End); err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.DrainMemberResponse{}, nil
}

// GetTiering implements targetv1.TargetServiceServer.
func (c *server) GetTiering(_ context.Context, req *targetv1.GetTieringRequest) (*targetv1.GetTieringResponse, error) {
	if req.LunUuid != "" {
		if err := checkUUID("lun_uuid", req.LunUuid); err != nil {
			return nil, err
		}
	}
	r, err := c.n.GetTiering(req.LunUuid)
	if err != nil {
		return nil, grpcError(err)
	}
	return r, nil
}

// Limits of the delay of fail-back.
const (
	minFailBackDelay = 5 * time.Second
	maxFailBackDelay = 24 * time.Hour
)

// SetOwnershipPolicy implements targetv1.TargetServiceServer.
func (c *server) SetOwnershipPolicy(ctx context.Context, req *targetv1.SetOwnershipPolicyRequest) (*targetv1.SetOwnershipPolicyResponse, error) {
	if _, ok := balance.ParseMode(req.Mode); !ok || req.Mode == "" {
		return nil, invalid("mode", "%q must be auto, observe or off", req.Mode)
	}
	d := time.Duration(req.FailBackDelaySeconds) * time.Second
	if d < minFailBackDelay || d > maxFailBackDelay {
		return nil, invalid("fail_back_delay_seconds", "%d must be from %d to %d", req.FailBackDelaySeconds, int(minFailBackDelay.Seconds()), int(maxFailBackDelay.Seconds()))
	}
	if req.Version == 0 {
		return nil, invalid("version", "is required, from 1 on: it tells which policy a decision was made under")
	}
	if err := c.member(); err != nil {
		return nil, err
	}
	if err := c.n.SetPolicy(ctx, meta.Policy{Mode: req.Mode, FailBackDelay: d, Version: req.Version}); err != nil {
		return nil, grpcError(err)
	}
	return &targetv1.SetOwnershipPolicyResponse{}, nil
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
