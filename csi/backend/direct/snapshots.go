package direct

import (
	"context"
	"fmt"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/backend"
)

func snapshot(s *targetv1.Snapshot) backend.Snapshot {
	return backend.Snapshot{ID: s.Uuid, Name: s.Name, SourceVolume: s.SourceLunUuid, Size: int64(s.SizeBytes), Created: s.Created.AsTime()}
}

// CreateSnapshot implements backend.Backend.
func (b *Backend) CreateSnapshot(ctx context.Context, id, name, source string) (backend.Snapshot, error) {
	if !ours(source) {
		return backend.Snapshot{}, notFound("volume", source)
	}
	s, err := call(ctx, b, "create snapshot", client.CreateSnapshot, &targetv1.CreateSnapshotRequest{Uuid: id, Name: name, SourceLunUuid: source})
	if err != nil {
		return backend.Snapshot{}, err
	}
	return snapshot(s), nil
}

// DeleteSnapshot implements backend.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	if !ours(id) {
		return nil
	}
	_, err := call(ctx, b, "delete snapshot", client.DeleteSnapshot, &targetv1.DeleteSnapshotRequest{Uuid: id})
	return err
}

// GetSnapshot implements backend.Backend.
func (b *Backend) GetSnapshot(ctx context.Context, id string) (backend.Snapshot, error) {
	if !ours(id) {
		return backend.Snapshot{}, notFound("snapshot", id)
	}
	r, err := call(ctx, b, "get snapshot", client.ListSnapshots, &targetv1.ListSnapshotsRequest{Uuid: id})
	if err != nil {
		return backend.Snapshot{}, err
	}
	if len(r.Snapshots) == 0 {
		return backend.Snapshot{}, notFound("snapshot", id)
	}
	return snapshot(r.Snapshots[0]), nil
}

// ListSnapshots implements backend.Backend.
func (b *Backend) ListSnapshots(ctx context.Context, source string, p backend.Page) ([]backend.Snapshot, string, error) {
	if err := checkToken(p); err != nil {
		return nil, "", err
	}
	if source != "" && !ours(source) {
		return nil, "", nil
	}
	var out []backend.Snapshot
	req := &targetv1.ListSnapshotsRequest{SourceLunUuid: source, AfterUuid: p.After, Limit: limit(p)}
	for {
		r, err := call(ctx, b, "list snapshots", client.ListSnapshots, req)
		if err != nil {
			return nil, "", err
		}
		for _, s := range r.Snapshots {
			out = append(out, snapshot(s))
		}
		if p.Limit > 0 || r.NextAfterUuid == "" {
			return out, r.NextAfterUuid, nil
		}
		req.AfterUuid = r.NextAfterUuid
	}
}

// Capacity implements backend.Backend. The pair restricts no volume to some workers.
func (b *Backend) Capacity(ctx context.Context, _, pool string, _ map[string]string) (int64, error) {
	s, err := call(ctx, b, "capacity", client.GetStatus, &targetv1.GetStatusRequest{})
	if err != nil {
		return 0, err
	}
	for _, v := range s.Volumes {
		if (pool == "" || v.Name == pool) && len(v.Lacks) == 0 {
			return int64(v.FreeBytes), nil
		}
	}
	if len(s.Volumes) == 0 && pool == "" { // a target of an earlier release
		return int64(s.FreeBytes), nil
	}
	return 0, nil
}

// Health implements backend.Backend. It calls every node once: a node that does not answer says
// nothing about the other.
func (b *Backend) Health(ctx context.Context) (map[string]backend.Health, error) {
	return map[string]backend.Health{"": b.health(ctx)}, nil
}

func (b *Backend) health(ctx context.Context) backend.Health {
	worst := backend.Health{Reason: "PairUnreachable", Message: "no node of the pair answers on its control address: check that the targets run"}
	for _, n := range b.pair.Nodes {
		s, err := n.GetStatus(ctx, &targetv1.GetStatusRequest{})
		if err != nil {
			worst.Message += fmt.Sprintf("; %s: %v", n.Address, err)
			continue
		}
		switch s.Phase {
		case targetv1.Phase_PHASE_IN_SYNC:
			return backend.Health{Serving: true}
		case targetv1.Phase_PHASE_ALONE, targetv1.Phase_PHASE_RESYNCING:
			return backend.Health{Serving: true, Reason: "RedundancyLost",
				Message: fmt.Sprintf("only node %s has the latest data: %s", s.Node, s.Reason)}
		case targetv1.Phase_PHASE_UNLINKED:
			worst = backend.Health{Serving: true, Reason: "PairUnlinked", Message: "the nodes cannot connect to each other: " + s.Reason}
		default:
			if !worst.Serving {
				worst = backend.Health{Reason: "PairNotServing", Message: fmt.Sprintf("node %s is %s: %s", s.Node, s.Phase, s.Reason)}
			}
		}
	}
	return worst
}
