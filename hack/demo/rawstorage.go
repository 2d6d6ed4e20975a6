package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/initiator"
	"github.com/gemel-storage/gemel/internal/testkit/harness"
	"github.com/gemel-storage/gemel/internal/testkit/load"
)

// rawStorage talks to the control API and uses the initiator in this process.
type rawStorage struct {
	pair *harness.Pair
	host string        // IQN
	wait time.Duration // how long I/O waits while no node serves
}

// call asks one node after the other until one answers: either may be down.
func call[R any](ctx context.Context, p *harness.Pair, f func(context.Context, targetv1.TargetServiceClient) (R, error)) (r R, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for i := 0; ; i = 1 - i {
		one, stop := context.WithTimeout(ctx, 5*time.Second)
		r, err = f(one, p.Client(i))
		stop()
		if c := status.Code(err); c != codes.Unavailable && c != codes.DeadlineExceeded {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, errors.Join(context.Cause(ctx), err)
		case <-t.C:
		}
	}
}

func openDevice(ctx context.Context, m *targetv1.Mapping, wait time.Duration, nodes ...string) (*initiator.Device, error) {
	cfg := initiator.Config{InitiatorName: m.HostIqn, Target: m.TargetIqn, LUN: uint16(m.Lun), WWID: m.Wwid, Deadline: wait}
	for _, p := range m.Portals {
		for _, n := range nodes {
			if p.Node == n {
				cfg.Portals = append(cfg.Portals, p.Address)
			}
		}
	}
	return initiator.Open(ctx, cfg)
}

func mapHost(ctx context.Context, p *harness.Pair, lun, host string) (*targetv1.Mapping, error) {
	return call(ctx, p, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.Mapping, error) {
		return c.MapHost(ctx, &targetv1.MapHostRequest{LunUuid: lun, HostIqn: host})
	})
}

func unmapHost(ctx context.Context, p *harness.Pair, lun, host string) error {
	_, err := call(ctx, p, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.UnmapHostResponse, error) {
		return c.UnmapHost(ctx, &targetv1.UnmapHostRequest{LunUuid: lun, HostIqn: host})
	})
	return err
}

func (s *rawStorage) create(ctx context.Context, name string, k kind, size int64, snapshot string) (*volume, error) {
	v := &volume{name: name, kind: k, lun: uuid.NewString(), size: size, snap: snapshot != ""}
	_, err := call(ctx, s.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.LUN, error) {
		return c.CreateLUN(ctx, &targetv1.CreateLUNRequest{Uuid: v.lun, Name: name, SizeBytes: uint64(size), SourceSnapshotUuid: snapshot})
	})
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	m, err := mapHost(ctx, s.pair, v.lun, s.host)
	if err != nil {
		return v, fmt.Errorf("map %s: %w", name, err)
	}
	v.dev, err = openDevice(ctx, m, s.wait, harness.Names[:]...)
	return v, err
}

func (s *rawStorage) open(v *volume) (load.Target, error) { return load.Device{D: v.dev}, nil }

func (s *rawStorage) expand(ctx context.Context, v *volume, size int64) (int64, error) {
	_, err := call(ctx, s.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.LUN, error) {
		return c.ExpandLUN(ctx, &targetv1.ExpandLUNRequest{Uuid: v.lun, SizeBytes: uint64(size)})
	})
	if err != nil {
		return 0, fmt.Errorf("expand %s: %w", v.name, err)
	}
	v.size = size
	return v.dev.Rescan(ctx)
}

func (s *rawStorage) snapshot(ctx context.Context, v *volume, name string) (string, error) {
	id := uuid.NewString()
	_, err := call(ctx, s.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.Snapshot, error) {
		return c.CreateSnapshot(ctx, &targetv1.CreateSnapshotRequest{Uuid: id, Name: name, SourceLunUuid: v.lun})
	})
	return id, err
}

func (s *rawStorage) release(ctx context.Context, v *volume) error {
	var err error
	if v.dev != nil {
		err = v.dev.Close(ctx)
		v.dev = nil
	}
	return errors.Join(err, unmapHost(ctx, s.pair, v.lun, s.host))
}

func (s *rawStorage) destroy(ctx context.Context, v *volume) error {
	_, err := call(ctx, s.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.DeleteLUNResponse, error) {
		return c.DeleteLUN(ctx, &targetv1.DeleteLUNRequest{Uuid: v.lun})
	})
	return err
}

func (s *rawStorage) destroySnapshot(ctx context.Context, id string) error {
	_, err := call(ctx, s.pair, func(ctx context.Context, c targetv1.TargetServiceClient) (*targetv1.DeleteSnapshotResponse, error) {
		return c.DeleteSnapshot(ctx, &targetv1.DeleteSnapshotRequest{Uuid: id})
	})
	return err
}

func (s *rawStorage) close() error { return nil }
