// Package node is the CSI node service over an attacher. A record per volume is written before
// anything is changed on this machine; every call compares the record with the machine.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"

	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/credentials"
	"github.com/gemel-storage/gemel/csi/durable"
	"github.com/gemel-storage/gemel/csi/identity"
	"github.com/gemel-storage/gemel/csi/inflight"
	"github.com/gemel-storage/gemel/internal/enroll"
	"github.com/gemel-storage/gemel/internal/grpcerr"
)

// capabilities of the driver.
var capabilities = []csi.NodeServiceCapability_RPC_Type{
	csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
}

// Config of the node service.
type Config struct {
	IQN      string // this node's ID
	StateDir string // absolute; survives restarts
	Attacher attach.Attacher
	MaxLUNs  int64 // that may be published to this node; 0: no limit
	// Credentials has this worker's CHAP credentials; nil: they come only with the calls.
	Credentials *credentials.Keeper
	// Publications is used when a log must be replayed; nil: such volumes are rejected.
	Publications Publications
	// Topology returns the topology labels of this worker that are reported besides the segment
	// that all workers have; nil: none. An error is temporary, and the kubelet asks again.
	Topology func(context.Context) (map[string]string, error)
	Log      *slog.Logger
}

// Server implements csi.NodeServer. It serializes the calls for a volume.
type Server struct {
	csi.UnimplementedNodeServer
	unlocked unlocked
	inflight inflight.Set
}

// unlocked is the logic of the node service; calls for one volume must not overlap.
type unlocked struct {
	cfg     Config
	log     *slog.Logger
	dir     string // of the records
	mounter mount.Interface

	statMu sync.Mutex
	stuck  map[string]struct{} // paths whose statfs has not returned
}

// New checks the configuration and creates its folder.
func New(c Config) (*Server, error) {
	if c.IQN == "" || !filepath.IsAbs(c.StateDir) || c.Attacher == nil || c.MaxLUNs < 0 {
		return nil, errors.New("node service: IQN, an absolute StateDir and Attacher are required, and MaxLUNs must not be negative")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	dir := filepath.Join(c.StateDir, "staged")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("node service: %w", err)
	}
	if err := durable.RemoveTemp(dir); err != nil {
		return nil, fmt.Errorf("node service: %w", err)
	}
	return &Server{unlocked: unlocked{cfg: c, log: c.Log, dir: dir, mounter: mount.NewWithoutSystemd(""), stuck: map[string]struct{}{}}}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (s *Server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range capabilities {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return r, nil
}

// NodeGetInfo returns the IQN as the node ID, as used by the targets, the segments of this worker,
// and how many volumes it can have. Kubernetes counts volumes, and what a worker can hold are LUNs:
// so each attached striped volume takes the places of its further LUNs away from the limit, which
// the kubelet reads again from time to time (CSIDriver nodeAllocatableUpdatePeriodSeconds).
func (s *Server) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	c := &s.unlocked.cfg
	segments := map[string]string{}
	if c.Topology != nil {
		labels, err := c.Topology(ctx)
		if err != nil {
			return nil, status.Errorf(codes.Unavailable, "topology of this worker: %v", err)
		}
		maps.Copy(segments, labels)
	}
	maps.Copy(segments, identity.Topology)
	most, err := s.unlocked.maxVolumes()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "attached volumes: %v", err)
	}
	return &csi.NodeGetInfoResponse{NodeId: c.IQN, MaxVolumesPerNode: most, AccessibleTopology: &csi.Topology{Segments: segments}}, nil
}

// maxVolumes is how many volumes this worker can have, if every further one has one LUN; 0: as many
// as there are.
func (n *unlocked) maxVolumes() (int64, error) {
	if n.cfg.MaxLUNs == 0 {
		return 0, nil
	}
	volumes, err := n.cfg.Attacher.Attached()
	if err != nil {
		return 0, err
	}
	luns, err := n.cfg.Attacher.LUNs()
	if err != nil {
		return 0, err
	}
	return max(n.cfg.MaxLUNs-int64(luns-len(volumes)), 1), nil
}

// exclusively runs a call with the volume locked.
func exclusively[Q interface{ GetVolumeId() string }, R any](s *Server, ctx context.Context, req Q, f func(context.Context, Q) (R, error)) (R, error) {
	var none R
	if req.GetVolumeId() == "" {
		return none, invalid("volume_id is missing")
	}
	done, err := s.inflight.Start(req.GetVolumeId())
	if err != nil {
		return none, err
	}
	defer done()
	r, err := f(ctx, req)
	if err != nil {
		return none, grpcError(err)
	}
	return r, nil
}

// NodeStageVolume attaches the LUN and mounts its filesystem.
func (s *Server) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return exclusively(s, ctx, req, s.unlocked.stage)
}

// NodeUnstageVolume undoes NodeStageVolume.
func (s *Server) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return exclusively(s, ctx, req, s.unlocked.unstage)
}

// NodePublishVolume mounts a staged volume at a path.
func (s *Server) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return exclusively(s, ctx, req, s.unlocked.publish)
}

// NodeUnpublishVolume undoes NodePublishVolume.
func (s *Server) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return exclusively(s, ctx, req, s.unlocked.unpublish)
}

// NodeExpandVolume grows device and filesystem to the size of the LUN.
func (s *Server) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return exclusively(s, ctx, req, s.unlocked.expand)
}

// NodeGetVolumeStats does not lock the volume: it must answer while another call hangs.
func (s *Server) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	r, err := s.unlocked.stats(ctx, req)
	return r, grpcError(err)
}

// NodeGetVolumeHealth does not lock the volume either.
func (s *Server) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	r, err := s.unlocked.health(ctx, req)
	return r, grpcError(err)
}

// NodeGetStorageHealth sums up all attached volumes.
func (s *Server) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	r, err := s.unlocked.storageHealth(ctx)
	return r, grpcError(err)
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// errorCodes are the codes of the CSI specification for errors.
var errorCodes = []grpcerr.Code{
	{Err: attach.ErrInvalid, Code: codes.InvalidArgument},
	{Err: attach.ErrNotAttached, Code: codes.NotFound},
	{Err: attach.ErrBusy, Code: codes.FailedPrecondition},
	{Err: enroll.ErrNotReached, Code: codes.FailedPrecondition},
	{Err: enroll.ErrUnavailable, Code: codes.Unavailable},
	{Err: enroll.ErrRefused, Code: codes.FailedPrecondition},
	{Err: attach.ErrFailed, Code: codes.Unavailable},
}

func grpcError(err error) error { return grpcerr.Status(err, errorCodes) }

// commandLimit bounds one host command (mkfs, fsck, xfs_growfs, ...) if the call has no deadline.
const commandLimit = 5 * time.Minute
