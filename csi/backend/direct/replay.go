package direct

import (
	"context"
	"errors"
	"fmt"
	"slices"

	targetv1 "github.com/gemel-storage/gemel/api/dataplane/v1"
	"github.com/gemel-storage/gemel/csi/attach"
	"github.com/gemel-storage/gemel/csi/backend"
)

// A filesystem on several hosts is only read (capability.Parse). So a writable mapping of such a
// volume is for replaying its log, and a read-only one means that the log was replayed. There is no
// other state: the next host after all were unmapped replays the log again, which then has nothing
// to do.

// publishReader maps such a volume to a host.
func (b *Backend) publishReader(ctx context.Context, req *targetv1.MapHostRequest) (attach.Attachment, error) {
	l, err := call(ctx, b, "publish volume", client.GetLUN, &targetv1.GetLUNRequest{Uuid: req.LunUuid})
	if err != nil {
		return attach.Attachment{}, err
	}
	if err := replaying(l, req.HostIqn); err != nil {
		return attach.Attachment{}, err
	}
	if own := mappingOf(l, req.HostIqn); own != nil {
		req.ReadOnly = own.GetReadOnly()
	} else {
		req.ReadOnly = len(l.Mappings) > 0
	}
	req.Exclusive = !req.ReadOnly // the pair decides: of two concurrent first hosts, one succeeds
	m, err := call(ctx, b, "publish volume", client.MapHost, req)
	if errors.Is(err, backend.ErrInUse) {
		return attach.Attachment{}, fmt.Errorf("%w: another worker is replaying the log of the filesystem: the call will be retried (%v)", backend.ErrUnavailable, err)
	}
	if err != nil {
		return attach.Attachment{}, err
	}
	if req.ReadOnly {
		if err := b.recheckReader(ctx, req.LunUuid, req.HostIqn); err != nil {
			return attach.Attachment{}, err
		}
	}
	a := attachment(req.LunUuid, m, req.ReadOnly)
	a.Replay = !req.ReadOnly
	return a, nil
}

// recheckReader unmaps a reader again if another host may write. It checks after the reader is
// mapped: from then on no other host can be mapped for writing, because that requires exclusive
// use.
func (b *Backend) recheckReader(ctx context.Context, id, host string) error {
	l, err := call(ctx, b, "publish volume", client.GetLUN, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		return err
	}
	if busy := replaying(l, host); busy != nil {
		_, err := call(ctx, b, "publish volume", client.UnmapHost, &targetv1.UnmapHostRequest{LunUuid: id, HostIqn: host})
		return errors.Join(busy, err)
	}
	return nil
}

// replaying returns an error while another host may write.
func replaying(l *targetv1.LUN, host string) error {
	for _, m := range l.Mappings {
		if m.HostIqn != host && !m.GetReadOnly() {
			return fmt.Errorf("%w: volume %s: %s is replaying the log of its filesystem, and no other worker can use the volume meanwhile: the call will be retried",
				backend.ErrUnavailable, l.Uuid, m.HostIqn)
		}
	}
	return nil
}

func mappingOf(l *targetv1.LUN, host string) *targetv1.Mapping {
	if i := slices.IndexFunc(l.Mappings, func(m *targetv1.Mapping) bool { return m.HostIqn == host }); i >= 0 {
		return l.Mappings[i]
	}
	return nil
}

// Reach implements node.Publications (csi/node). Between the fence and the new mapping the host has
// no mapping, and another host may start to replay the log. So a host without a mapping that has
// replayed the log under an earlier one is mapped read-only as soon as no host may write.
func (b *Backend) Reach(ctx context.Context, was attach.Attachment, replayed uint64) (attach.Attachment, error) {
	a, err := b.reach(ctx, was, replayed)
	if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrTimeout) {
		err = fmt.Errorf("%w: %w", attach.ErrFailed, err)
	}
	return a, err
}

func (b *Backend) reach(ctx context.Context, was attach.Attachment, replayed uint64) (attach.Attachment, error) {
	id, host := was.VolumeID, was.HostIQN
	l, err := call(ctx, b, "volume "+id, client.GetLUN, &targetv1.GetLUNRequest{Uuid: id})
	if err != nil {
		return attach.Attachment{}, err
	}
	m := mappingOf(l, host)
	switch {
	case m == nil && (replayed == 0 || !was.Replay || replayed != was.Generation):
		return attach.Attachment{}, fmt.Errorf("%w: volume %s is no longer published to %s: publish it again", attach.ErrInvalid, id, host)
	case m == nil:
		if m, err = b.mapReader(ctx, l, was); err != nil {
			return attach.Attachment{}, err
		}
	case !m.GetReadOnly() && replayed == m.Generation:
		if err := b.Unpublish(ctx, id, host); err != nil {
			return attach.Attachment{}, err
		}
		if m, err = b.mapReader(ctx, l, was); err != nil {
			return attach.Attachment{}, err
		}
	}
	a := attachment(id, m, m.GetReadOnly())
	a.Replay, a.Pair, a.Enroll, a.Auth, a.MutualAuth = !a.ReadOnly, was.Pair, was.Enroll, was.Auth, was.MutualAuth
	return a, nil
}

// mapReader maps a volume read-only to the host of was, unless another host may write.
func (b *Backend) mapReader(ctx context.Context, l *targetv1.LUN, was attach.Attachment) (*targetv1.Mapping, error) {
	id, host := was.VolumeID, was.HostIQN
	if err := replaying(l, host); err != nil {
		return nil, err
	}
	req := &targetv1.MapHostRequest{LunUuid: id, HostIqn: host, ReadOnly: true, Chap: credentials(was.Auth, was.MutualAuth)}
	m, err := call(ctx, b, "publish volume", client.MapHost, req)
	if err != nil {
		return nil, err
	}
	if err := b.recheckReader(ctx, id, host); err != nil {
		return nil, err
	}
	m.ReadOnly = &req.ReadOnly
	return m, nil
}

func credentials(auth, mutual *attach.CHAP) *targetv1.CHAP {
	if auth == nil {
		return nil
	}
	c := &targetv1.CHAP{User: auth.User, Secret: auth.Secret}
	if mutual != nil {
		c.MutualUser, c.MutualSecret = mutual.User, mutual.Secret
	}
	return c
}
